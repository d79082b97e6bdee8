"""Data directory and default store of the commands."""

from __future__ import annotations

from pathlib import Path

from portico.protocol.errors import UsageError
from portico.store.data_directory import find_store, named_store, resolve_data_directory

# The database of the built-in services: `portico serve`, `portico memory` and `portico items` share it.
DEFAULT_STORE_NAME = "portico"


def store_url(store: str | None, data: str | None, name: str) -> str:
    """Return the URL of a server's store, creating the data directory if it is needed."""
    if named_store(store) is None:
        ensure_data_dir(data)
    return find_store(store, data, name)


def ensure_data_dir(path: str | None) -> Path:
    """Create the data directory if necessary and return it. Raises UsageError if that fails."""
    folder = resolve_data_directory(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise UsageError(f"cannot create the data directory {folder}: {failure.strerror}") from None
    return folder
