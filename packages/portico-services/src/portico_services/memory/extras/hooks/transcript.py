"""Before a conversation is cut short: what in it sounds like a decision or a finding."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

# Of a conversation, the end.
LONGEST_TRANSCRIPT = 1_000_000
LONGEST_TEXT = 20_000
MOST_PICKED = 5
_TELLING = re.compile(
    r"\b(?:we (?:decided|agreed|will use|chose)|decided to|let's (?:use|go with)|turns out|the root cause|"
    r"remember that|from now on|always use|never use)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^\n.!?]+[.!?]?")


class Picked(NamedTuple):
    author: str
    sentence: str


def pick(transcript: str) -> list[Picked]:
    """From a file with a message on each line, as assistants keep their conversations."""
    return list(_telling(transcript))[-MOST_PICKED:] if transcript else []


def _telling(transcript: str) -> Iterator[Picked]:
    for line in _lines(transcript):
        try:
            said = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        message = said.get("message") if isinstance(said, dict) else None
        if isinstance(message, dict) and message.get("role") in ("user", "assistant"):
            for text in _texts(message.get("content")):
                for sentence in _SENTENCE.findall(text[:LONGEST_TEXT]):
                    if _TELLING.search(sentence) and 20 <= len(sentence) <= 600:
                        yield Picked(message["role"], sentence.strip())


def _lines(transcript: str) -> list[bytes]:
    """Nothing where it cannot be read, or is no file: a pipe would keep us waiting."""
    try:
        descriptor = os.open(transcript, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    except (OSError, ValueError):
        return []
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return []
        file.seek(max(0, about.st_size - LONGEST_TRANSCRIPT))
        return file.read(LONGEST_TRANSCRIPT).splitlines()


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (one["text"] for one in content if isinstance(one, dict) and isinstance(one.get("text"), str))
