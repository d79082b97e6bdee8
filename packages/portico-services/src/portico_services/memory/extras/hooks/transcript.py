"""Extraction of decisions and findings from a transcript before the conversation is compacted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

# Only the end of a transcript is read.
MAX_TRANSCRIPT_BYTES = 1_000_000
MAX_MESSAGE_CHARS = 20_000
MAX_EXCERPTS = 5
_DECISION_PATTERN = re.compile(
    r"\b(?:we (?:decided|agreed|will use|chose)|decided to|let's (?:use|go with)|turns out|the root cause|"
    r"remember that|from now on|always use|never use)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^\n.!?]+[.!?]?")


class TranscriptExcerpt(NamedTuple):
    """A sentence of a transcript and its author."""

    author: str
    sentence: str


def extract_decisions(transcript: str) -> list[TranscriptExcerpt]:
    """Return the last decisions in a transcript file, which has one JSON message per line."""
    return list(_decision_sentences(transcript))[-MAX_EXCERPTS:] if transcript else []


def _decision_sentences(transcript: str) -> Iterator[TranscriptExcerpt]:
    for line in _read_lines(transcript):
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        message = entry.get("message") if isinstance(entry, dict) else None
        if isinstance(message, dict) and message.get("role") in ("user", "assistant"):
            for text in _text_blocks(message.get("content")):
                for sentence in _SENTENCE.findall(text[:MAX_MESSAGE_CHARS]):
                    if _DECISION_PATTERN.search(sentence) and 20 <= len(sentence) <= 600:
                        yield TranscriptExcerpt(message["role"], sentence.strip())


def _read_lines(transcript: str) -> list[bytes]:
    """Return the last lines of a file; empty if it is not readable or not a regular file. A pipe would block."""
    try:
        descriptor = os.open(transcript, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    except (OSError, ValueError):
        return []
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return []
        file.seek(max(0, about.st_size - MAX_TRANSCRIPT_BYTES))
        return file.read(MAX_TRANSCRIPT_BYTES).splitlines()


def _text_blocks(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (item["text"] for item in content if isinstance(item, dict) and isinstance(item.get("text"), str))
