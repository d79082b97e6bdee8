"""Where things are kept when nobody says where."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def data_directory(given: str | None = None) -> Path:
    """What was given, or PORTICO_DATA, or the place that this system has for it."""
    named = given or os.environ.get("PORTICO_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "portico"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "portico"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "portico"


def store_url(store: str | None, data: str | None, name: str) -> str:
    """The database of a server: the one that was named, or PORTICO_STORE, or a file of its own. Its folder is made."""
    url = store or os.environ.get("PORTICO_STORE")
    if url is not None and url != "":
        return url
    folder = data_directory(data)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:100]}.db")
