"""Writing to standard output, which may be full or gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from portico.wire.errors import Error


@contextmanager
def writing() -> Iterator[None]:
    """Nobody reading any more is silent, as it is with other commands; anything else is said."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as failure:
        raise Error(f"cannot write to standard output: {failure.strerror or failure}") from None
