"""The default data directory."""

from __future__ import annotations

import os
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
