"""Locations of data: resolves the store and the data directory.

The store is the first of:

1. the explicit store: `--store`, `Server(store=…)` or the `store` of a settings table;

2. PORTICO_STORE;

3. the file NAME.db in the data directory, if the caller has a name for it.

The data directory is the first of:

1. the explicit directory: `--data`, or a setting;

2. PORTICO_DATA;

3. the operating system's directory for application data.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

MAX_NAME_CHARS = 100


def resolve_data_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory. It may not exist."""
    named = path or os.environ.get("PORTICO_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "portico"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "portico"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "portico"


def named_store(store: str | None = None) -> str | None:
    """Return the URL of the explicit store or of PORTICO_STORE, or None."""
    url = store or os.environ.get("PORTICO_STORE")
    # Shells do not expand `~` in a variable or after `=`.
    return os.path.expanduser(url) if url else None


def find_store(store: str | None, data: str | os.PathLike[str] | None, name: str) -> str:
    """Return the URL of the explicit store or of PORTICO_STORE, or the path of NAME.db."""
    # The name comes from a server, and must not leave the data directory.
    file_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:MAX_NAME_CHARS]
    return named_store(store) or str(resolve_data_directory(data) / f"{file_name}.db")
