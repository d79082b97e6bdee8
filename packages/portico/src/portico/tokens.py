"""Estimates of tokens without a tokenizer: of data of which only the size is known, and of a text.

The estimate of a text is conservative. It counts characters by class with C-speed string methods, and weighs each class
by what the least favourable of three tokenizers needs for it. `python benchmarks/result_tokens.py` measures the error
against real vocabularies.
"""

from __future__ import annotations

import string

# JSON and English prose have about four bytes per token, in the tokenizers of all common models.
BYTES_PER_TOKEN = 4
# Weight in tokens of one character, by the bytes that encode it in UTF-8. Continuation bytes have no weight.
_WEIGHTS: tuple[tuple[bytes, float], ...] = (
    (string.ascii_lowercase.encode(), 0.25),
    # Rare in prose and code, frequent in base64 and identifiers, which are the most expensive texts.
    (string.ascii_uppercase.encode(), 1.2),
    (string.digits.encode(), 0.75),
    (b" \t\r", 0.06),
    (string.punctuation.encode() + b"\n" + bytes(set(range(32)) - set(b"\t\n\r")) + b"\x7f", 0.7),
    # First bytes of two (Cyrillic, Arabic), three (Chinese, Japanese, Korean) and four (emoji).
    (bytes(range(0xC0, 0xE0)), 0.95),
    (bytes(range(0xE0, 0xF0)), 1.3),
    (bytes(range(0xF0, 0x100)), 3.0),
)
# No text has more estimated tokens per byte, so a smaller one needs no estimate.
MAX_TOKENS_PER_BYTE = 1.2
# Estimated at a time, so that the estimate of a large text ends soon after its limit.
_BLOCK_BYTES = 32 * 1024

# What hosts charge for an image at most; they scale larger ones down. Images above the size limit of the common APIs
# are rejected by them, and count by their bytes.
MAX_IMAGE_TOKENS = 1_600
MAX_IMAGE_BASE64_CHARS = 5_000_000


def tokens_from_bytes(size: int) -> int:
    """Return the estimated number of tokens in UTF-8 text of this size."""
    return -(-size // BYTES_PER_TOKEN)


def estimate_tokens(text: str | bytes, limit: float = float("inf")) -> int:
    """Return the estimated tokens of a text. The estimate stops above `limit`."""
    if isinstance(text, bytes):
        return estimate_span(text, 0, len(text), limit)
    total = 0.0
    for start in range(0, len(text), _BLOCK_BYTES):
        # Encoded in blocks: a large text is not copied.
        total += _weigh(text[start : start + _BLOCK_BYTES].encode(errors="replace"))
        if total > limit:
            break
    return _round_up(total)


def _weigh(block: bytes) -> float:
    size = len(block)
    return sum(weight * (size - len(block.translate(None, characters))) for characters, weight in _WEIGHTS)


def _round_up(total: float) -> int:
    return int(total + 0.999)


def estimate_span(data: bytes, start: int, end: int, limit: float = float("inf")) -> int:
    """Return the estimated tokens of a part of an encoded text. The estimate stops above `limit`."""
    total = 0.0
    while start < end and total <= limit:
        block = data[start : min(start + _BLOCK_BYTES, end)]
        total += _weigh(block)
        start += len(block)
    return _round_up(total)


def estimate_binary(base64_chars: int, *, is_image: bool) -> int:
    """Return the estimated tokens of binary content, given the length of its base64 text."""
    as_text = int(base64_chars * MAX_TOKENS_PER_BYTE)
    return min(as_text, MAX_IMAGE_TOKENS) if is_image and base64_chars <= MAX_IMAGE_BASE64_CHARS else as_text


def fit_text(text: str, budget: float) -> int:
    """Return the length of the longest prefix within the budget."""
    end, total = 0, 0.0
    while end < len(text):
        cost = estimate_tokens(text[end : end + 4096])
        if total + cost > budget:
            break
        total, end = total + cost, end + 4096
    if end >= len(text):
        return len(text)
    low, high = end, end + 4096
    while low < high:
        middle = (low + high + 1) // 2
        if total + estimate_tokens(text[end:middle]) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
