"""Any OpenAI-compatible endpoint through the official SDK: OpenAI, vLLM, Ollama, llama.cpp (extra `openai`)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memory_tasks.errors import CompletionError, RetryableCompletionError
from memory_tasks.loading import needs_extra
from memory_tasks.models import Completion, Message, ReplyRequest

if TYPE_CHECKING:
    from openai import OpenAI

    from memory_tasks.settings import Settings

SDK_RETRIES = 2
"""Quick retries inside one call, by the SDK. What still fails waits in the ledger without holding a worker."""


def openai_client(settings: "Settings") -> "OpenAI":
    """The SDK's client for the settings.

    Raises:
        SettingsError: The extra or the key is missing.
    """
    try:
        from openai import OpenAI
    except ImportError as error:
        raise needs_extra("openai", "MEMORY_TASKS_COMPLETER or MEMORY_TASKS_EMBEDDER=openai") from error
    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
    if key is None:
        if settings.openai_base_url is None:
            from memory_tasks.errors import SettingsError

            raise SettingsError("set OPENAI_API_KEY, or MEMORY_TASKS_OPENAI_BASE_URL for a server that needs no key")
        key = "none"
    return OpenAI(
        api_key=key,
        base_url=settings.openai_base_url,
        timeout=settings.completion_timeout,
        max_retries=SDK_RETRIES,
    )


class OpenAICompleter:
    """Streams chat completions. The turn id goes along as `X-Client-Request-Id`, to be found in the provider's log."""

    def __init__(self, settings: "Settings") -> None:
        self._client = openai_client(settings)
        self._model = settings.openai_model

    def __call__(self, messages: Sequence[Message], request: ReplyRequest) -> Iterator[str | Completion]:
        import openai

        try:
            yield from self._stream(messages, request)
        except (openai.RateLimitError, openai.InternalServerError) as error:
            raise RetryableCompletionError(f"the provider answered {error.status_code}", _retry_after(error)) from error
        except (openai.APITimeoutError, openai.APIConnectionError) as error:
            raise RetryableCompletionError(f"the provider can't be reached ({type(error).__name__})") from error
        except openai.APIStatusError as error:
            # Its message may quote the prompt.
            raise CompletionError(f"the provider refused the request with {error.status_code}") from error

    def _stream(self, messages: Sequence[Message], request: ReplyRequest) -> Iterator[str | Completion]:
        chat: list[Any] = [message.model_dump() for message in messages]
        stream = self._client.chat.completions.create(
            model=self._model,
            messages=chat,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Client-Request-Id": request.turn_id} if request.turn_id.isascii() else {},
        )
        model, usage, pieces = self._model, None, list[str]()
        finished = False
        with stream:
            for chunk in stream:
                model, usage = chunk.model or model, chunk.usage or usage
                for choice in chunk.choices:
                    finished = finished or choice.finish_reason is not None
                    if choice.delta.content:
                        pieces.append(choice.delta.content)
                        yield choice.delta.content
        if not finished:
            raise RetryableCompletionError("the provider's stream ended in mid-answer")
        yield Completion(
            text="".join(pieces),
            model=model,
            input_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
        )


def _retry_after(error: Any) -> float | None:
    try:
        return max(0.0, float(error.response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
