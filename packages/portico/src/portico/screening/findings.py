"""Findings and their redaction."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

Kind = Literal["secret", "personal"]
KINDS: tuple[Kind, ...] = ("secret", "personal")


class Finding(NamedTuple):
    """One secret or item of personal data: exactly `text[start:end]`."""

    kind: Kind
    name: str
    start: int
    end: int
    confidence: float


def merge_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in text order with overlaps merged.

    The more certain one names the whole, so that no part of a secret stays visible.
    """
    merged: list[Finding] = []
    # Of two that start together the longer one comes first, so that the shorter one is merged into it.
    for finding in sorted(findings, key=lambda item: (item.start, -item.end)):
        if not merged or finding.start >= merged[-1].end:
            merged.append(finding)
            continue
        last = merged[-1]
        stronger = finding if _rank(finding) > _rank(last) else last
        merged[-1] = stronger._replace(start=last.start, end=max(last.end, finding.end))
    return merged


@cache
def redaction_mark(name: str) -> str:
    """Return the replacement text for a finding of this name."""
    return f"[REDACTED:{name}]"


def redact(text: str, findings: Iterable[Finding]) -> str:
    """Replace each finding with `[REDACTED:name]`. Such marks are never findings, so redaction is idempotent."""
    pieces: list[str] = []
    at = 0
    for finding in merge_overlaps(findings):
        pieces.append(text[at : finding.start])
        pieces.append(redaction_mark(finding.name))
        at = finding.end
    pieces.append(text[at:])
    return "".join(pieces)


def _rank(finding: Finding) -> tuple[bool, float]:
    # A secret outranks personal data: its policy is the stricter one by default.
    return finding.kind == "secret", finding.confidence
