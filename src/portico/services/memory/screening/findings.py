"""What was found where, and a text without it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

Kind = Literal["secret", "personal"]
KINDS: tuple[Kind, ...] = ("secret", "personal")


class Finding(NamedTuple):
    """One secret or one personal datum: `text[start:end]` is it, and nothing around it."""

    kind: Kind
    name: str
    start: int
    end: int
    confidence: float


def settled(findings: Iterable[Finding]) -> list[Finding]:
    """In the order of the text, none over another. Where two overlap, the surer names what both cover: a secret is
    never left half visible because something else was seen in the middle of it."""
    kept: list[Finding] = []
    for one in sorted(findings, key=_place):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
            continue
        last = kept[-1]
        named = one if _rank(one) > _rank(last) else last
        kept[-1] = named._replace(start=last.start, end=max(last.end, one.end))
    return kept


@cache
def mark(name: str) -> str:
    """What stands in the place of a finding of that name."""
    return f"[REDACTED:{name}]"


def redact(text: str, findings: Iterable[Finding]) -> str:
    """The text with `[REDACTED:name]` in the place of each finding. The mark itself is nothing that is ever found, so
    doing it twice changes nothing."""
    pieces: list[str] = []
    at = 0
    for one in settled(findings):
        pieces.append(text[at : one.start])
        pieces.append(mark(one.name))
        at = one.end
    pieces.append(text[at:])
    return "".join(pieces)


def _place(finding: Finding) -> tuple[int, int]:
    return finding.start, -finding.end


def _rank(finding: Finding) -> tuple[bool, float]:
    return finding.kind == "secret", finding.confidence
