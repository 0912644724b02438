"""The ledger: the saved state of every accepted turn, and the mailbox that keeps a conversation in order."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote

from pydantic import TypeAdapter

from memory_tasks.connection import reaching
from memory_tasks.errors import CorruptEntryError, UnknownTurnError
from memory_tasks.keys import Keys, TurnKeys, is_turn_tag, parse_turn_tag
from memory_tasks.models import Completion, Recall, Record, Reply, ReplyRequest, Scope, State, Step
from memory_tasks.scripts import Scripts, as_text
from memory_tasks.sealing import Sealer, new_key
from memory_tasks.settings import Settings
from memory_tasks.turns import Accepted, Begun, ListedTurn, TurnRef, TurnStatus

logger = logging.getLogger(__name__)

EVENTS_PER_TURN = 10_000
"""Chunks kept of one answer; a reader that comes later gets the rest with the whole answer."""
PAGE = 100
FORGET_PAGE = 500


class Ledger:
    """Accepts turns and saves each change of their state in one step of Redis.

    Args:
        client: A redis-py client; the caller owns it.
        settings: Deadlines, caps and the prefix.
    """

    def __init__(self, client: Any, settings: Settings) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._settings = settings
        self.sealer = Sealer.of(settings)
        self._carrier: Sealer | None = None
        self.keys = Keys(settings.prefix)
        self._grace = _ms(settings.republish_after)
        self._ttl = _ms(settings.result_ttl)

    def _call(self, command: str, keys: TurnKeys, epoch: int | str, *args: str | int | float) -> Any:
        return self._scripts("ledger", _key_list(keys), [command, keys.tag, epoch, *args])

    def _sealed(self, record: Record) -> str:
        return self.sealer.seal(record.model_dump_json())

    def _turn(self, ref: TurnRef) -> TurnKeys:
        return self.keys.turn(ref.scope, ref.turn_id)

    def accept(self, request: ReplyRequest, trace: Mapping[str, str] | None = None) -> Accepted:
        """Save the request and put it into its conversation's mailbox. The same turn id again changes nothing.

        Args:
            request: The message.
            trace: Of the caller, for the steps that follow.

        Raises:
            StoreUnavailableError: Nothing is known to be accepted; accept again with the same turn id.
        """
        keys = self.keys.turn(request.scope, request.turn_id)
        traced = json.dumps(trace) if trace else ""
        new, epoch, publish = self._call("accept", keys, "", self._sealed(request), self._grace, traced)
        ref = TurnRef(scope=request.scope, turn_id=request.turn_id, epoch=int(epoch))
        return Accepted(ref, is_new=bool(new), is_active=bool(publish))

    def begin(self, ref: TurnRef, step: Step, token: str = "") -> Begun:
        """Ask to do a step. Only "go" allows it.

        Args:
            ref: The turn.
            step: What to do.
            token: For "complete": the name under which this call holds the completion lease.
        """
        deadline = self._settings.completion_lease if step == "complete" else self._settings.step_timeout
        answer = self._call(
            "begin",
            self._turn(ref),
            ref.epoch,
            step,
            _ms(deadline),
            self._settings.max_deliveries,
            token,
            self._grace,
        )
        if answer[0] != "go":
            return Begun(answer[0], next=_next(answer[1] if len(answer) > 1 else ""))
        with _readable(ref.turn_id):
            _, request, context, reply, attempts, call, waiting, trace = answer
            return Begun(
                "go",
                request=ReplyRequest.model_validate_json(self.sealer.open(request)),
                recall=Recall.model_validate_json(self.sealer.open(context)) if context else None,
                reply=Reply.model_validate_json(self.sealer.open(reply)) if reply else None,
                attempts=attempts,
                call=call,
                waiting=waiting,
                trace=_Trace.validate_json(trace) if trace else {},
            )

    def recalled(self, ref: TurnRef, recall: Recall) -> bool:
        """Save what was recalled. False when the turn has moved on or was forgotten."""
        return bool(self._call("recalled", self._turn(ref), ref.epoch, self._sealed(recall), self._grace))

    def renew(self, ref: TurnRef, token: str) -> bool:
        """Keep the completion lease for another while. False when the call is not ours any more."""
        return bool(self._call("renew", self._turn(ref), ref.epoch, token, _ms(self._settings.completion_lease)))

    def chunk(self, ref: TurnRef, token: str, text: str, call: int) -> bool:
        """Add a piece of the answer to the turn's event stream. False when the call is not ours any more."""
        field = "sealed" if self.sealer.is_on else "text"
        text = self.sealer.seal(text)
        return bool(
            self._call("chunk", self._turn(ref), ref.epoch, token, field, text, call, EVENTS_PER_TURN, self._ttl)
        )

    def completed(self, ref: TurnRef, reply: Reply) -> bool:
        """Save the answer; the first one saved is the answer. False when the turn was forgotten."""
        outcome: int = self._call("completed", self._turn(ref), ref.epoch, self._sealed(reply), self._grace)
        return outcome >= 0

    def carrier(self) -> Sealer:
        """What encrypts an answer that has to travel through the broker: its key is known to Redis alone.

        Asks Redis once. Call it before the ledger may be unreachable.
        """
        if self._carrier is None:
            with reaching(self._client):
                self._client.set(self.keys.carrier, new_key(), nx=True)
                self._carrier = Sealer([as_text(self._client.get(self.keys.carrier))])
        return self._carrier

    def persisted(self, ref: TurnRef, *, long_term_pending: bool) -> tuple[bool, TurnRef | None]:
        """Say that working memory has the turn.

        Returns:
            Whether that was news, and the next turn of the conversation, which has become active.
        """
        first, follower = self._call(
            "persisted",
            self._turn(ref),
            ref.epoch,
            "pending" if long_term_pending else "",
            _ms(self._settings.step_timeout),
            self._ttl,
            self._grace,
        )
        return bool(first), _next(follower)

    def settled(self, ref: TurnRef, *, promoted: bool) -> None:
        """Say that the turn's own write into long-term memory is done, or was not needed after all."""
        self._call("settled", self._turn(ref), ref.epoch, "1" if promoted else "", self._ttl)

    def retry(
        self, ref: TurnRef, step: Step, error: str, *, delay: float, max_attempts: int, token: str = ""
    ) -> tuple[Literal["retry", "dead", "stale"], TurnRef | None]:
        """Record a failure. The sweep goes on with the step after `delay` seconds, unless it has failed too often.

        Args:
            ref: The turn.
            step: The step that failed.
            error: Class name of the error; never its message, which may quote the conversation.
            delay: Seconds.
            max_attempts: Failures at which the turn becomes a dead letter.
            token: For "complete": the lease under which it failed.
        """
        answer = self._call(
            "retry", self._turn(ref), ref.epoch, step, token, error, _ms(delay), max_attempts, self._grace
        )
        return answer[0], _next(answer[1] if len(answer) > 1 else "")

    def due(self) -> list[str]:
        """Tags of turns that need attention, a page of each shard, claimed so that no other sweep takes them too."""
        shards = self.keys.shards()
        found = self._scripts.each("claim", [([shard.sweep], [PAGE, self._grace]) for shard in shards])
        for shard, tags in zip(shards, found, strict=True):
            if strange := [tag for tag in tags if not is_turn_tag(tag)]:
                logger.error("removed %d names from %s that are none of ours", len(strange), shard.sweep)
                with reaching(self._client):
                    self._client.zrem(shard.sweep, *strange)
        return [tag for tags in found for tag in tags if is_turn_tag(tag)]

    def republish(self, tag: str) -> tuple[TurnRef | None, State | None]:
        """The turn behind a tag and the state to go on from, when something is left to do for it.

        Returns:
            The turn to publish (the next one of its conversation when this one is gone), and its state.
        """
        scope, turn_id = parse_turn_tag(tag)
        state, value = self._call(
            "republish",
            self.keys.turn(scope, turn_id),
            "",
            self._grace,
            _ms(self._settings.visibility_timeout),
            self._grace,
        )
        with _readable(turn_id):
            if state:
                return TurnRef(scope=scope, turn_id=turn_id, epoch=int(value)), state
            return _next(value), "accepted"

    def count_dead(self) -> int:
        """How many dead letters there are."""
        with reaching(self._client), self._client.pipeline(transaction=False) as pipe:
            for shard in self.keys.shards():
                pipe.zcard(shard.dead)
            return sum(pipe.execute())

    def dead_letters(self) -> Iterator[TurnStatus]:
        """All dead letters, oldest first within a shard."""
        for shard in self.keys.shards():
            with reaching(self._client):
                tags = self._client.zrange(shard.dead, 0, -1)
            for tag in filter(is_turn_tag, map(as_text, tags)):
                scope, turn_id = parse_turn_tag(tag)
                try:
                    status = self.find(scope, turn_id)
                except CorruptEntryError as error:
                    logger.error("%s", error)
                    continue
                if status is not None:
                    yield status

    def revive(self, scope: Scope, turn_id: str) -> tuple[TurnRef | None, State]:
        """Let a dead letter go on from its saved state.

        Returns:
            The turn when it is to be published now, None when it waits behind others; and its state.

        Raises:
            UnknownTurnError: There is no such dead letter.
        """
        verdict, state, epoch = self._call("revive", self.keys.turn(scope, turn_id), "", self._grace)
        if verdict < 0:
            raise UnknownTurnError(f"turn {turn_id} is no dead letter; see 'memory-tasks failed list'")
        return (TurnRef(scope=scope, turn_id=turn_id, epoch=int(epoch)) if verdict else None), state

    def drop(self, scope: Scope, turn_id: str) -> None:
        """Erase a dead letter.

        Raises:
            UnknownTurnError: There is no such dead letter.
        """
        if not self._call("drop", self.keys.turn(scope, turn_id), ""):
            raise UnknownTurnError(f"turn {turn_id} is no dead letter; see 'memory-tasks failed list'")

    def forget(self, scope: Scope) -> int:
        """Erase all turns of the conversation, whatever their state; how many there were.

        A turn that is accepted while this runs is a new one and stays.
        """
        keys = self.keys.scope(scope)
        with reaching(self._client):
            # Nothing waits any more, so that erasing the active turn does not send another one.
            self._client.delete(keys.scope, keys.mailbox)
            turn_ids = [unquote(as_text(turn)) for turn in self._client.zrange(keys.entries, 0, -1)]
        return self.forget_turns(scope, turn_ids)[0]

    def forget_turns(self, scope: Scope, turn_ids: Sequence[str]) -> tuple[int, list[TurnRef]]:
        """Erase these turns, whatever their state.

        Returns:
            How many there were, and the turns that became active because one before them is gone.
        """
        erased, followers = 0, list[TurnRef]()
        for start in range(0, len(turn_ids), FORGET_PAGE):
            turns = [self.keys.turn(scope, turn_id) for turn_id in turn_ids[start : start + FORGET_PAGE]]
            calls = [(_key_list(keys), ("forget", keys.tag, "", self._grace)) for keys in turns]
            for count, follower in self._scripts.each("ledger", calls):
                erased += count
                if ref := _next(follower):
                    followers.append(ref)
        # One of them may have been erased in its turn.
        return erased, [ref for ref in followers if ref.turn_id not in set(turn_ids)]

    def reply(self, scope: Scope, turn_id: str) -> Reply | None:
        """The saved answer, or None while there is none."""
        with reaching(self._client):
            saved = self._client.hget(self.keys.turn(scope, turn_id).entry, "reply")
        with _readable(turn_id):
            return Reply.model_validate_json(self.sealer.open(as_text(saved))) if saved else None

    def recall(self, scope: Scope, turn_id: str) -> Recall | None:
        """What was recalled for a turn, or None while recall is not done."""
        with reaching(self._client):
            context, reply = self._client.hmget(self.keys.turn(scope, turn_id).entry, ["context", "reply"])
        with _readable(turn_id):
            if context:
                return Recall.model_validate_json(self.sealer.open(as_text(context)))
            if reply:
                answered = Reply.model_validate_json(self.sealer.open(as_text(reply)))
                return Recall(memories=answered.memories, closest=answered.closest, degraded=answered.degraded)
        return None

    def states(self, scope: Scope, turn_ids: Sequence[str]) -> list[State | None]:
        """The state of each of these turns, None for those that the ledger does not have."""
        with reaching(self._client), self._client.pipeline(transaction=False) as pipe:
            for turn_id in turn_ids:
                pipe.hget(self.keys.turn(scope, turn_id).entry, "state")
            return [cast(State, as_text(state)) if state else None for state in pipe.execute()]

    def open_turns(self, scope: Scope) -> list[ListedTurn]:
        """The turns of a conversation that are waiting, running or dead, in the order of their acceptance."""
        fields = ["epoch", "state", "request", "reply", "failed_step", "error"]
        with reaching(self._client):
            ids = [
                unquote(as_text(id))
                for id in self._client.zrangebyscore(self.keys.scope(scope).entries, "+inf", "+inf")
            ]
            with self._client.pipeline(transaction=False) as pipe:
                for turn_id in ids:
                    pipe.hmget(self.keys.turn(scope, turn_id).entry, fields)
                found = pipe.execute()
        listed: list[tuple[int, ListedTurn]] = []
        for turn_id, values in zip(ids, found, strict=True):
            epoch, state, sealed, answer, failed_step, error = (value and as_text(value) for value in values)
            # Without a request it has just been finished, or forgotten.
            if sealed:
                with _readable(turn_id):
                    request = ReplyRequest.model_validate_json(self.sealer.open(sealed))
                    reply = Reply.model_validate_json(self.sealer.open(answer)) if answer else None
                    turn = ListedTurn(
                        turn_id=turn_id,
                        state=cast(State, state),
                        user_message=request.message,
                        assistant_message=reply.answer if reply else None,
                        created_at=request.created_at,
                        remember=request.remember,
                        failed_step=failed_step,
                        error=error,
                    )
                    listed.append((int(epoch), turn))
        return [turn for _, turn in sorted(listed, key=lambda pair: pair[0])]

    def status(self, scope: Scope, turn_id: str) -> TurnStatus:
        """The saved state of a turn.

        Raises:
            UnknownTurnError: It was never accepted, was forgotten, or finished longer than `result_ttl` ago.
        """
        status = self.find(scope, turn_id)
        if status is None:
            raise UnknownTurnError(f"the ledger has no turn {turn_id} of this conversation")
        return status

    def find(self, scope: Scope, turn_id: str) -> TurnStatus | None:
        """Like `status`, None where the ledger has no such turn."""
        states = get_args(State)
        steps = get_args(Step)
        fields = ["state", "epoch", "calls", "failed_step", "error"]
        fields += [f"{state}_at" for state in states] + [f"attempts:{step}" for step in steps]
        with reaching(self._client):
            values = self._client.hmget(self.keys.turn(scope, turn_id).entry, fields)
        found = {field: as_text(value) for field, value in zip(fields, values, strict=True) if value is not None}
        if "state" not in found:
            return None
        with _readable(turn_id):
            return self._status(scope, turn_id, found)

    def _status(self, scope: Scope, turn_id: str, found: Mapping[str, str]) -> TurnStatus:
        states, steps = get_args(State), get_args(Step)
        return TurnStatus(
            scope=scope,
            turn_id=turn_id,
            epoch=int(found["epoch"]),
            state=cast(State, found["state"]),
            times={s: datetime.fromtimestamp(int(found[f"{s}_at"]) / 1000, UTC) for s in states if f"{s}_at" in found},
            attempts={s: int(found[f"attempts:{s}"]) for s in steps if f"attempts:{s}" in found},
            calls=int(found.get("calls", 0)),
            failed_step=found.get("failed_step"),
            error=found.get("error"),
        )

    def locate(self, turn_id: str) -> list[Scope]:
        """Every conversation with a turn of this id. Reads the names of all keys: for people, not for programs."""
        ending = self.keys.turn(Scope(user_id="-", conversation_id="-"), turn_id).tag.rpartition(":")[2]
        with reaching(self._client):
            names = [
                as_text(name) for name in self._client.scan_iter(f"{self.keys.prefix}:*:turn:*:{_glob(ending)}", 1000)
            ]
        return [parse_turn_tag(name.partition(":turn:")[2])[0] for name in names]


_Trace = TypeAdapter(dict[str, str])


@contextmanager
def _readable(turn_id: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError, OSError, KeyError):
        raise CorruptEntryError(
            f"turn {turn_id}: its ledger entry was changed from outside and can't be read; erase it with "
            "'memory-tasks forget --turn'"
        ) from None


def _next(answer: str) -> TurnRef | None:
    """The turn that has just become active, of "tag epoch"."""
    if not answer:
        return None
    tag, _, epoch = answer.partition(" ")
    scope, turn_id = parse_turn_tag(tag)
    return TurnRef(scope=scope, turn_id=turn_id, epoch=int(epoch))


def _key_list(keys: TurnKeys) -> list[str]:
    shard = keys.scope.shard
    return [
        keys.entry, keys.events, keys.scope.scope, keys.scope.mailbox, shard.sweep, shard.dead,
        keys.scope.entries, keys.scope.user.conversations, keys.scope.turns,
    ]  # fmt: skip


def make_reply(request: ReplyRequest, recall: Recall, completion: Completion) -> Reply:
    """The reply to a request, before anything of it is stored."""
    return Reply(
        scope=request.scope,
        turn_id=request.turn_id,
        completion=completion,
        memories=recall.memories,
        closest=recall.closest,
        degraded=recall.degraded,
    )


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _glob(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[]^\\" else char for char in text)
