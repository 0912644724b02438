"""Flask: send a message, wait for its answer, or watch it being written.

memory-tasks up                            # in another terminal
export MEMORY_TASKS_REDIS_URL=...          # as it says there
flask --app examples.flask_app run
curl -H 'X-User: ann' -d '{"text": "hello"}' -H 'Content-Type: application/json' localhost:5000/chat/c1
"""

from collections.abc import Iterator

from flask import Flask, Response, jsonify, request

from memory_tasks import InvalidInputError, MemoryClient, TurnFailedError, UnknownTurnError

app = Flask(__name__)
memory = MemoryClient.from_settings()


def current_user() -> str:
    """Replace with your own authentication: whoever may set the user id may read that user's memory."""
    return request.headers.get("X-User", "")


@app.post("/chat/<conversation>")
def say(conversation: str) -> tuple[Response, int] | Response:
    """Answer a message. Repeated with the same Idempotency-Key header, it is answered and paid for once."""
    said = request.get_json()
    key = request.headers.get("Idempotency-Key")
    try:
        pending = memory.reply(current_user(), conversation, said.get("text", ""), idempotency_key=key)
        reply = pending.result(timeout=60)
    except InvalidInputError as error:
        return jsonify(error=str(error)), 422
    except TurnFailedError as error:
        return jsonify(error=f"failed in {error.step}"), 502
    return jsonify(turn_id=reply.turn_id, answer=reply.answer)


@app.get("/chat/<conversation>/<turn_id>/events")
def events(conversation: str, turn_id: str) -> tuple[Response, int] | Response:
    """The answer as server-sent events, from where the browser was."""
    pending = memory.pending(current_user(), conversation, turn_id)
    try:
        pending.status()
    except UnknownTurnError:
        return jsonify(error="no such turn"), 404
    after = request.headers.get("Last-Event-ID", "0-0")

    def lines() -> Iterator[str]:
        for event in pending.events(after=after):
            yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"

    return Response(lines(), mimetype="text/event-stream")
