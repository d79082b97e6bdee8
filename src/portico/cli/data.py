"""Where a command keeps things when nobody says where."""

from __future__ import annotations

import os
import re

from portico.store.folder import data_directory


def store_url(store: str | None, data: str | None, name: str) -> str:
    """The database of a server: the one that was named, or PORTICO_STORE, or a file of its own. Its folder is made."""
    url = store or os.environ.get("PORTICO_STORE")
    if url is not None and url != "":
        return url
    folder = data_directory(data)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}.db")
