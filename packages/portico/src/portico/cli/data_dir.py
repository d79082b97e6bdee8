"""Where commands store things."""

from __future__ import annotations

import os
import re
from pathlib import Path

from portico.protocol.errors import UsageError
from portico.store.data_directory import data_directory

# The database of the built-in services: `portico serve`, `portico memory` and `portico tasks` share it.
NAME = "portico"


def store_url(store: str | None, data: str | None, name: str) -> str:
    """The database of a server: --store, or PORTICO_STORE, or NAME.db in the data directory, which is made."""
    url = store or os.environ.get("PORTICO_STORE")
    if url:
        # A shell leaves `~` alone in a variable, and after a `=`.
        return os.path.expanduser(url)
    folder = made_directory(data)
    return str(folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}.db")


def made_directory(given: str | None) -> Path:
    """The data directory, which is there when this returns. Raises UsageError where it cannot be made."""
    folder = data_directory(given)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise UsageError(f"the data directory {folder} cannot be made: {failure.strerror}") from None
    return folder
