"""The detector: finds the secrets and the personal data in a text.

Cheap tests come first: does the text contain this word at all, this sign, a stretch of sixteen characters without a
space, seven digits close together? Only where one succeeds is a pattern tried, and only in that place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from portico.screening.addresses import ip_addresses, mail_addresses
from portico.screening.assignments import (
    beside,
    commented,
    in_queries,
    named_after,
    named_secrets,
    nearby,
)
from portico.screening.credential_syntax import (
    command_secrets,
    header_credentials,
    okta_tokens,
    password_hashes,
    private_keys,
    url_passwords,
    web_tokens,
    wrapped_keys,
)
from portico.screening.entropy import is_random
from portico.screening.findings import KINDS, Finding, Kind, without_overlaps
from portico.screening.identity_documents import documents
from portico.screening.lazy_patterns import pattern
from portico.screening.normalization import plain
from portico.screening.personal_numbers import ibans, identities_with_letters, numbers, vat_numbers
from portico.screening.placeholders import examples
from portico.screening.secret_names import SECRET_SIGNS
from portico.screening.vendor_keys import provider_keys, shaped_keys

# A long text is scanned in pieces, so that the lowered copy and the findings stay small. Each piece is seen with some
# text before it, where the word may be that announces a value, and after it, where a key may go on.
PIECE = 256 * 1024
BEFORE = 512
AFTER = 24 * 1024

# No provider has shorter keys, and most words are shorter.
_LONG = pattern(r"\S{16,}+")
_ASCII_LOW = {code: code + 32 for code in range(65, 91)}


def find(
    text: str, kinds: Collection[Kind] = KINDS, least: float = 0.5, *, with_examples: bool = False
) -> list[Finding]:
    """The secrets and the personal data in a text, in its order, without overlaps.

    `least` is the confidence below which nothing is reported; `with_examples` also finds what is plainly made up. The
    time is proportional to the length of the text.
    """
    return list(scan(text, kinds, least, with_examples=with_examples))


def scan(
    text: str, kinds: Collection[Kind] = KINDS, least: float = 0.5, *, with_examples: bool = False
) -> Iterator[Finding]:
    """Like `find`, one finding at a time, for texts that are too long for a list of all of them."""
    reached = 0
    for at in range(0, len(text), PIECE):
        low = max(0, at - BEFORE)
        whole = len(text) <= PIECE
        piece = text if whole else text[low : at + PIECE + AFTER]
        for one in without_overlaps(f for f in _findings_in(piece, kinds, with_examples) if f.confidence >= least):
            start, end = one.start + low, one.end + low
            # What starts in this piece is reported here and with no other piece.
            if at <= start < at + PIECE and end > reached:
                yield one if whole else one._replace(start=max(start, reached), end=end)
                reached = end


def _findings_in(text: str, kinds: Collection[Kind], with_examples: bool) -> Iterator[Finding]:
    text = plain(text)
    lower = _lowered(text)
    secrets = _secrets(text, lower) if "secret" in kinds else ()
    personal = _personal(text, lower) if "personal" in kinds else ()
    marks = [found.span() for found in _MARK.finditer(text)] if "[REDACTED:" in text else ()
    for one in chain(secrets, personal, examples(text, kinds) if with_examples else ()):
        if not marks or _is_outside(one, marks):
            yield one


_MARK = pattern(r"\[REDACTED:\w{1,40}+\]")


def _is_outside(finding: Finding, marks: Sequence[tuple[int, int]]) -> bool:
    """Whether a finding is more than the mark of an earlier redaction: at least four characters outside of marks."""
    near = marks[max(0, bisect_left(marks, (finding.start, 0)) - 1) : bisect_left(marks, (finding.end, 0))]
    inside = sum(max(0, min(end, finding.end) - max(start, finding.start)) for start, end in near)
    return finding.end - finding.start - inside >= 4


def _lowered(text: str) -> str:
    """The text in lower case, of the same length: a few capitals become two letters, which would shift all places."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOW)


def _secrets(text: str, lower: str) -> Iterator[Finding]:
    for stretch in _LONG.finditer(text):
        for one in provider_keys(text, *stretch.span()):
            yield one
            if one.name == "aws_access_key":
                yield from _aws_secret_keys(text, one.end)
        yield from nearby(text, lower, *stretch.span())
    yield from shaped_keys(text)
    if "-----BEGIN " in text or "Private-Lines: " in text:
        yield from private_keys(text)
    if "$" in text or "{s" in lower or "{md5}" in lower:
        yield from password_hashes(text)
    if "okta" in lower or "ssws" in lower:
        yield from okta_tokens(text, lower)
    if "LS0tLS1CRUdJTi" in text:
        yield from wrapped_keys(text)
    if "eyJ" in text:
        yield from web_tokens(text)
    if "://" in text:
        yield from url_passwords(text)
        if "?" in text:
            yield from in_queries(text)
    if any(word in lower for word in SECRET_SIGNS):
        yield from named_secrets(text, lower)
        yield from named_after(text, lower)
        yield from beside(text, lower)
        yield from commented(text, lower)
    yield from header_credentials(text, lower)
    yield from command_secrets(text, lower)


_FORTY = pattern(r"(?<![0-9A-Za-z/+])[0-9A-Za-z/+]{40}(?![0-9A-Za-z/+=])")


def _aws_secret_keys(text: str, at: int) -> Iterator[Finding]:
    """The secret half of an AWS key, which has no prefix of its own, within 200 characters after the access key."""
    for found in _FORTY.finditer(text, at, at + 200):
        if is_random(found[0]):
            yield Finding("secret", "aws_secret_key", found.start(), found.end(), 0.9)


def _personal(text: str, lower: str) -> Iterator[Finding]:
    if "@" in text:
        yield from mail_addresses(text)
    yield from ip_addresses(text)
    yield from numbers(text, lower)
    yield from ibans(text)
    yield from vat_numbers(text, lower)
    yield from identities_with_letters(text, lower)
    yield from documents(text, lower)
