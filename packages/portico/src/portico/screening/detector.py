"""The detector: finds the secrets and the personal data in a text.

Cheap tests come first: does the text contain this word at all, this sign, a stretch of sixteen characters without a
space, seven digits close together? Only where one succeeds is a pattern tried, and only in that place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from portico.screening.addresses import find_emails, find_ip_addresses
from portico.screening.assignments import (
    find_adjacent_passwords,
    find_assigned_secrets,
    find_commented_secrets,
    find_query_secrets,
    find_secrets_named_after,
    find_secrets_near_keywords,
)
from portico.screening.credential_syntax import (
    find_base64_keys,
    find_command_line_secrets,
    find_header_credentials,
    find_jwts,
    find_private_keys,
    find_url_passwords,
    okta_tokens,
    password_hashes,
)
from portico.screening.entropy import is_random
from portico.screening.findings import KINDS, Finding, Kind, merge_overlaps
from portico.screening.identity_documents import find_identity_documents
from portico.screening.lazy_patterns import lazy_pattern
from portico.screening.normalization import has_invisible, normalize_text, remove_invisible
from portico.screening.personal_numbers import (
    find_alphanumeric_ids,
    find_ibans,
    find_personal_numbers,
    find_vat_numbers,
)
from portico.screening.placeholders import find_placeholders
from portico.screening.secret_names import SECRET_KEYWORDS
from portico.screening.vendor_keys import find_infix_keys, find_prefixed_keys

# A long text is scanned in chunks to limit memory. Each chunk includes some text before it, which may contain the
# keyword of a value, and after it, where a key may continue.
# Large enough that the overlap costs little, small enough that the normalized copies stay in cache.
CHUNK_CHARS = 256 * 1024
CONTEXT_BEFORE_CHARS = 512
CONTEXT_AFTER_CHARS = 24 * 1024

# No provider has shorter keys, and most words are shorter.
_TOKEN_CANDIDATE = lazy_pattern(r"\S{16,}+")
_ASCII_LOW = {code: code + 32 for code in range(65, 91)}


def find(
    text: str, kinds: Collection[Kind] = KINDS, min_confidence: float = 0.5, *, include_placeholders: bool = False
) -> list[Finding]:
    """Return the secrets and personal data in a text, in order and without overlaps."""
    return list(iter_findings(text, kinds, min_confidence, include_placeholders=include_placeholders))


def iter_findings(
    text: str, kinds: Collection[Kind] = KINDS, min_confidence: float = 0.5, *, include_placeholders: bool = False
) -> Iterator[Finding]:
    """Yield findings one at a time, for texts that are too long for a list of all findings."""
    reached = 0
    for at in range(0, len(text), CHUNK_CHARS):
        context_start = max(0, at - CONTEXT_BEFORE_CHARS)
        is_single_chunk = len(text) <= CHUNK_CHARS
        chunk = text if is_single_chunk else text[context_start : at + CHUNK_CHARS + CONTEXT_AFTER_CHARS]
        for finding in merge_overlaps(
            f for f in _findings_in(chunk, kinds, include_placeholders) if f.confidence >= min_confidence
        ):
            start, end = finding.start + context_start, finding.end + context_start
            # A finding is reported only with the chunk in which it starts.
            # Without the second test, a finding that the previous chunk already covered would be redacted twice.
            if at <= start < at + CHUNK_CHARS and end > reached:
                yield finding if is_single_chunk else finding._replace(start=max(start, reached), end=end)
                reached = end


def _findings_in(text: str, kinds: Collection[Kind], include_placeholders: bool) -> Iterator[Finding]:
    original, text = text, normalize_text(text)
    lower = _lower_same_length(text)
    secrets = _find_secrets(text, lower) if "secret" in kinds else ()
    personal = _find_pii(text, lower) if "personal" in kinds else ()
    marks = [match.span() for match in _REDACTION_MARK.finditer(text)] if "[REDACTED:" in text else ()
    hidden = _find_interrupted_keys(original) if "secret" in kinds else ()
    for item in chain(secrets, personal, hidden, find_placeholders(text, kinds) if include_placeholders else ()):
        if not marks or _is_outside(item, marks):
            yield item


_REDACTION_MARK = lazy_pattern(r"\[REDACTED:\w{1,40}+\]")


def _is_outside(finding: Finding, marks: Sequence[tuple[int, int]]) -> bool:
    """Return whether a finding has at least four characters outside the marks of an earlier redaction."""
    nearby_marks = marks[max(0, bisect_left(marks, (finding.start, 0)) - 1) : bisect_left(marks, (finding.end, 0))]
    inside = sum(max(0, min(end, finding.end) - max(start, finding.start)) for start, end in nearby_marks)
    return finding.end - finding.start - inside >= 4


def _lower_same_length(text: str) -> str:
    """Return the text in lower case with unchanged length.

    Some capitals become two letters in lower case, which would shift the positions of findings.
    """
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOW)


def _find_secrets(text: str, lower: str) -> Iterator[Finding]:
    for stretch in _TOKEN_CANDIDATE.finditer(text):
        for prefixed_key in find_prefixed_keys(text, *stretch.span()):
            yield prefixed_key
            # Files with credentials list the secret key right after the access key.
            if prefixed_key.name == "aws_access_key":
                yield from _aws_secret_keys(text, prefixed_key.end)
        yield from find_secrets_near_keywords(text, lower, *stretch.span())
    yield from find_infix_keys(text)
    # Substring searches run at memory speed; a pattern costs a hundred times more.
    if "-----BEGIN " in text or "Private-Lines: " in text:
        yield from find_private_keys(text)
    if "$" in text or "{s" in lower or "{md5}" in lower:
        yield from password_hashes(text)
    if "okta" in lower or "ssws" in lower:
        yield from okta_tokens(text, lower)
    # The beginning of "-----BEGIN " in Base64, which is always the same: it starts at a group boundary.
    if "LS0tLS1CRUdJTi" in text:
        yield from find_base64_keys(text)
    # `{"` in Base64, with which the header of every JSON Web Token begins.
    if "eyJ" in text:
        yield from find_jwts(text)
    if "://" in text:
        yield from find_url_passwords(text)
        if "?" in text:
            yield from find_query_secrets(text)
    if any(word in lower for word in SECRET_KEYWORDS):
        yield from find_assigned_secrets(text, lower)
        yield from find_secrets_named_after(text, lower)
        yield from find_adjacent_passwords(text, lower)
        yield from find_commented_secrets(text, lower)
    yield from find_header_credentials(text, lower)
    yield from find_command_line_secrets(text, lower)


def _find_interrupted_keys(text: str) -> Iterator[Finding]:
    """Yield keys with invisible characters in them, which web pages and chats insert, and which readers drop."""
    if not has_invisible(text):
        return
    visible, positions = remove_invisible(text)
    for finding in _find_recognizable_keys(normalize_text(visible)):
        start, end = positions[finding.start], positions[finding.end - 1] + 1
        if end - start > finding.end - finding.start:
            yield finding._replace(start=start, end=end)


def _find_recognizable_keys(text: str) -> Iterator[Finding]:
    """Yield keys that their own syntax identifies: without a keyword, nothing else is certain in a joined text."""
    for stretch in _TOKEN_CANDIDATE.finditer(text):
        yield from find_prefixed_keys(text, *stretch.span())
    yield from find_infix_keys(text)
    if "-----BEGIN " in text or "Private-Lines: " in text:
        yield from find_private_keys(text)
    if "LS0tLS1CRUdJTi" in text:
        yield from find_base64_keys(text)
    if "eyJ" in text:
        yield from find_jwts(text)


_AWS_SECRET_SHAPE = lazy_pattern(r"(?<![0-9A-Za-z/+])[0-9A-Za-z/+]{40}(?![0-9A-Za-z/+=])")


def _aws_secret_keys(text: str, at: int) -> Iterator[Finding]:
    """Yield the AWS secret key, which has no prefix, within 200 characters after an access key."""
    for match in _AWS_SECRET_SHAPE.finditer(text, at, at + 200):
        if is_random(match[0]):
            yield Finding("secret", "aws_secret_key", match.start(), match.end(), 0.9)


def _find_pii(text: str, lower: str) -> Iterator[Finding]:
    if "@" in text:
        yield from find_emails(text)
    yield from find_ip_addresses(text)
    yield from find_personal_numbers(text, lower)
    yield from find_ibans(text)
    yield from find_vat_numbers(text, lower)
    yield from find_alphanumeric_ids(text, lower)
    yield from find_identity_documents(text, lower)
