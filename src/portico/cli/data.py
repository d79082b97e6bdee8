"""Where commands store things."""

from __future__ import annotations

import os
import re

from portico.store.folder import data_directory

# The database of the built-in services: `portico serve`, `portico memory` and `portico tasks` share it.
NAME = "portico"


def store_url(store: str | None, data: str | None, name: str) -> str:
    """The database of a server: --store, or PORTICO_STORE, or NAME.db in the data directory, which is made."""
    url = store or os.environ.get("PORTICO_STORE")
    if url:
        return url
    folder = data_directory(data)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}.db")
