"""Reads the LoCoMo data set: very long conversations, and questions with the ids of the turns that answer them."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_EVIDENCE = re.compile(r"D(\d+):0*(\d+)")


@dataclass(frozen=True, slots=True)
class Exchange:
    """Two consecutive dialog turns of a session; the second may be missing."""

    turn_id: str
    user_message: str
    reply: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the exchanges that hold its evidence."""

    text: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of two people over many sessions."""

    id: str
    exchanges: list[Exchange]
    questions: list[Question]
    """Those with valid evidence."""


def load(path: Path) -> list[Conversation]:
    """All conversations of the file."""
    return [_conversation(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _conversation(entry: dict[str, Any]) -> Conversation:
    name, sessions = entry["sample_id"], entry["conversation"]
    exchanges: list[Exchange] = []
    holder: dict[tuple[int, int], str] = {}
    number = 1
    while f"session_{number}_date_time" in sessions:
        said_at = datetime.strptime(sessions[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y")
        turns = sessions.get(f"session_{number}", [])
        for start in range(0, len(turns), 2):
            turn_id = f"{name}-{len(exchanges)}"
            pair = turns[start : start + 2]
            for turn in pair:
                session, position = _EVIDENCE.findall(turn["dia_id"])[0]
                holder[int(session), int(position)] = turn_id
            texts = [_text(turn) for turn in pair] + [""]
            exchanges.append(Exchange(turn_id, texts[0], texts[1], said_at.replace(tzinfo=UTC)))
        number += 1
    questions = []
    for item in entry["qa"]:
        ids = {(int(s), int(p)) for part in item.get("evidence", []) for s, p in _EVIDENCE.findall(part)}
        evidence = frozenset(holder[id] for id in ids if id in holder)
        if evidence:
            questions.append(Question(item["question"], evidence))
    return Conversation(name, exchanges, questions)


def _text(turn: dict[str, Any]) -> str:
    caption = f" [shared image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
    return f"{turn['speaker']}: {turn['text']}{caption}"


def recall_at(ranked: list[str], evidence: frozenset[str], k: int) -> float:
    """Share of a question's evidence among the first k ids."""
    return len(evidence & set(ranked[:k])) / len(evidence)
