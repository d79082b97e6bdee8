"""Findings: where a secret or a personal datum is, and the text with it replaced."""

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


def without_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order of the text, with overlapping ones merged. The more certain one gives its name to the
    whole, so that a secret is never left half visible because of another finding in the middle of it."""
    merged: list[Finding] = []
    for finding in sorted(findings, key=lambda one: (one.start, -one.end)):
        if not merged or finding.start >= merged[-1].end:
            merged.append(finding)
            continue
        last = merged[-1]
        stronger = finding if _rank(finding) > _rank(last) else last
        merged[-1] = stronger._replace(start=last.start, end=max(last.end, finding.end))
    return merged


@cache
def mark(name: str) -> str:
    """The text that replaces a finding of this name."""
    return f"[REDACTED:{name}]"


def redact(text: str, findings: Iterable[Finding]) -> str:
    """The text with `[REDACTED:name]` in place of each finding. Such a mark is never a finding itself, so redacting
    twice changes nothing."""
    pieces: list[str] = []
    at = 0
    for one in without_overlaps(findings):
        pieces.append(text[at : one.start])
        pieces.append(mark(one.name))
        at = one.end
    pieces.append(text[at:])
    return "".join(pieces)


def _rank(finding: Finding) -> tuple[bool, float]:
    return finding.kind == "secret", finding.confidence
