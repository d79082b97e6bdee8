"""Estimate of the number of tokens in data of which only the size is known.

Bounded results use a conservative estimate of the text instead, `portico.server.results.token_estimate`.
"""

from __future__ import annotations

# JSON and English prose have about four bytes per token, in the tokenizers of all common models.
BYTES_PER_TOKEN = 4


def tokens_from_bytes(size: int) -> int:
    """Return the estimated number of tokens in UTF-8 text of this size."""
    return -(-size // BYTES_PER_TOKEN)
