"""Estimates of the number of tokens that a model reads, without a tokenizer."""

from __future__ import annotations

# JSON and English prose have about four bytes per token, in the tokenizers of all common models.
BYTES_PER_TOKEN = 4


def estimate_tokens(data: bytes | str) -> int:
    """Return the estimated number of tokens in a text or its UTF-8 encoding."""
    return tokens_from_bytes(len(data if isinstance(data, bytes) else data.encode(errors="replace")))


def tokens_from_bytes(size: int) -> int:
    """Return the estimated number of tokens in UTF-8 text of this size."""
    return -(-size // BYTES_PER_TOKEN)
