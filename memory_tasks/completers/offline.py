"""Answers without any model: from what it was given, and saying so. For demos and a first try."""

import re
from collections.abc import Iterator, Sequence
from html import unescape

from memory_tasks.models import Completion, Message, ReplyRequest
from memory_tasks.prompt import FENCE_OPEN

_MEMORY = re.compile(r"<memory[^>]*>\nUser: (.*?)(?:\nAssistant: .*?)?\n</memory>", re.DOTALL)


def complete_offline(messages: Sequence[Message], _: ReplyRequest) -> Iterator[str | Completion]:
    """Quote what was recalled, or else the last thing the user said, in a few streamed pieces."""
    fenced = next((m.content for m in messages if m.role == "system" and FENCE_OPEN in m.content), "")
    recalled = [unescape(text) for text in _MEMORY.findall(fenced)]
    said = [m.content for m in messages[:-1] if m.role == "user"]
    if recalled:
        answer = f'(offline, no model) From long-term memory: "{recalled[0]}"'
    elif said:
        answer = f'(offline, no model) Noted. Before that you said: "{said[-1]}"'
    else:
        answer = "(offline, no model) Noted. This is the first thing I know of our conversation."
    words = answer.split(" ")
    for start in range(0, len(words), 4):
        yield " ".join(words[start : start + 4]) + (" " if start + 4 < len(words) else "")
    yield Completion(text=answer, model="offline", input_tokens=0, output_tokens=0)
