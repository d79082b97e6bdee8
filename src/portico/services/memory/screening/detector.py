"""One look over a text for everything that should not be kept.

Cheap questions come first: does the text hold this word at all, this sign, a stretch of sixteen characters without a
space, seven digits close together? Only where the answer is yes is a pattern tried, and only in that place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from portico.services.memory.screening.addresses import machines, mails
from portico.services.memory.screening.assignments import named_secrets
from portico.services.memory.screening.commands import command_secrets
from portico.services.memory.screening.documents import documents
from portico.services.memory.screening.findings import KINDS, Finding, Kind, settled
from portico.services.memory.screening.mentions import beside, commented, in_queries, named_after, nearby
from portico.services.memory.screening.names import GATE
from portico.services.memory.screening.numbers import ibans, identities_with_letters, numbers, vat_numbers
from portico.services.memory.screening.patterns import pattern
from portico.services.memory.screening.providers import provider_keys, shaped_keys
from portico.services.memory.screening.randomness import is_random
from portico.services.memory.screening.structures import (
    header_credentials,
    private_keys,
    url_passwords,
    web_tokens,
    wrapped_keys,
)

# A long text is looked at in pieces, so that what is held besides it stays small. Each piece is seen with what stands
# before it, where a telling word may be, and after it, where a key may go on.
PIECE = 256 * 1024
BEFORE = 512
AFTER = 24 * 1024

# Shorter than this no key of any provider is, and most words are.
_LONG = pattern(r"\S{16,}+")
_ASCII_LOW = {code: code + 32 for code in range(65, 91)}


def find(text: str, kinds: Collection[Kind] = KINDS, least: float = 0.5) -> list[Finding]:
    """The secrets and the personal data in a text, in its order, none over another.

    `least` is the confidence below which nothing is reported. The time is proportional to the length of the text.
    """
    return list(scan(text, kinds, least))


def scan(text: str, kinds: Collection[Kind] = KINDS, least: float = 0.5) -> Iterator[Finding]:
    """As `find`, one after the other: for texts so long that the list itself would be a burden."""
    reached = 0
    for at in range(0, len(text), PIECE):
        low = max(0, at - BEFORE)
        whole = len(text) <= PIECE
        piece = text if whole else text[low : at + PIECE + AFTER]
        for one in settled(f for f in _look(piece, kinds) if f.confidence >= least):
            start, end = one.start + low, one.end + low
            # What starts in this piece is reported here, and nowhere else.
            if at <= start < at + PIECE and end > reached:
                yield one if whole else one._replace(start=max(start, reached), end=end)
                reached = end


def _look(text: str, kinds: Collection[Kind]) -> Iterator[Finding]:
    lower = _lowered(text)
    secrets = _secrets(text, lower) if "secret" in kinds else ()
    personal = _personal(text, lower) if "personal" in kinds else ()
    marks = [found.span() for found in _MARK.finditer(text)] if "[REDACTED:" in text else ()
    for one in chain(secrets, personal):
        if not marks or _is_besides(one, marks):
            yield one


_MARK = pattern(r"\[REDACTED:\w{1,40}+\]")


def _is_besides(finding: Finding, marks: Sequence[tuple[int, int]]) -> bool:
    """More than what stands in the place of something that was found before."""
    near = marks[max(0, bisect_left(marks, (finding.start, 0)) - 1) : bisect_left(marks, (finding.end, 0))]
    inside = sum(max(0, min(end, finding.end) - max(start, finding.start)) for start, end in near)
    return finding.end - finding.start - inside >= 4


def _lowered(text: str) -> str:
    """In small letters, each in the place of its capital: a few capitals become two letters, and places would shift."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOW)


def _secrets(text: str, lower: str) -> Iterator[Finding]:
    for stretch in _LONG.finditer(text):
        for one in provider_keys(text, *stretch.span()):
            yield one
            if one.name == "aws_access_key":
                yield from _other_half(text, one.end)
        yield from nearby(text, lower, *stretch.span())
    yield from shaped_keys(text)
    if "-----BEGIN " in text or "Private-Lines: " in text:
        yield from private_keys(text)
    if "LS0tLS1CRUdJTi" in text:
        yield from wrapped_keys(text)
    if "eyJ" in text:
        yield from web_tokens(text)
    if "://" in text:
        yield from url_passwords(text)
        if "?" in text:
            yield from in_queries(text)
    if any(word in lower for word in GATE):
        yield from named_secrets(text, lower)
        yield from named_after(text, lower)
        yield from beside(text, lower)
        yield from commented(text, lower)
    yield from header_credentials(text, lower)
    yield from command_secrets(text, lower)


_FORTY = pattern(r"(?<![0-9A-Za-z/+])[0-9A-Za-z/+]{40}(?![0-9A-Za-z/+=])")


def _other_half(text: str, at: int) -> Iterator[Finding]:
    """The secret half of an AWS key, which has no mark of its own, in the lines after the other half."""
    for found in _FORTY.finditer(text, at, at + 200):
        if is_random(found[0]):
            yield Finding("secret", "aws_secret_key", found.start(), found.end(), 0.9)


def _personal(text: str, lower: str) -> Iterator[Finding]:
    if "@" in text:
        yield from mails(text)
    yield from machines(text)
    yield from numbers(text, lower)
    yield from ibans(text)
    yield from vat_numbers(text, lower)
    yield from identities_with_letters(text, lower)
    yield from documents(text, lower)
