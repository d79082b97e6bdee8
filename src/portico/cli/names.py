"""What the servers that were talked to are known to have, kept for whoever presses TAB: a small file for each target.

Only names are kept, and only those that mean nothing to a shell: a server could call its tool `$(rm …)`, and a line
is run as it was completed. The target itself is not written down, for a URL may hold a secret: the file is called by
its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

MOST_TARGETS = 64
MOST_NAMES = 500
MOST_ARGUMENTS = 50
LONGEST_FILE = 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@%+,~-]{0,199}")

Known = dict[str, Any]


def is_harmless(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def place(target: str | list[str]) -> str:
    """The file of a target. Paths and commands mean what they mean in the folder they are said in."""
    is_url = isinstance(target, str) and target.lower().startswith(("http://", "https://"))
    key = json.dumps([target, "" if is_url else os.getcwd()])
    return os.path.join(_folder(), f"{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}.json")


def _folder() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    root = cache if os.path.isabs(cache) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "portico", "names")


def recall(target: str | list[str]) -> Known:
    """What is known of a target; nothing if nothing is, or if somebody has written nonsense there."""
    try:
        with open(place(target), encoding="utf-8") as file:
            said = json.loads(file.read(LONGEST_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def remember(target: str | list[str], kind: str, found: dict[str, dict[str, list[str]]]) -> None:
    """Keep the names of one kind, each with its arguments and what they can be. To fail at this is no failure."""
    kept = {name: _arguments(arguments) for name, arguments in found.items() if is_harmless(name)}
    known = {**recall(target), kind: dict(list(kept.items())[:MOST_NAMES])}
    path = place(target)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _write(path, json.dumps(known))
        _forget(os.path.dirname(path))
    except OSError:
        return


def _arguments(found: dict[str, list[str]]) -> dict[str, list[str]]:
    kept = {
        name: [value for value in values if is_harmless(value)] for name, values in found.items() if is_harmless(name)
    }
    return {name: values[:MOST_ARGUMENTS] for name, values in list(kept.items())[:MOST_ARGUMENTS]}


def _write(path: str, text: str) -> None:
    if len(text) > LONGEST_FILE:
        return
    # Made for its owner alone, and put in place whole.
    draft = f"{path}.{os.getpid()}.draft"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
        raise


def _forget(folder: str) -> None:
    """The targets that have not been used for longest make room."""
    files = [entry for entry in os.scandir(folder) if entry.name.endswith((".json", ".draft"))]
    if len(files) > MOST_TARGETS:
        files.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in files[: len(files) - MOST_TARGETS]:
            os.unlink(entry.path)
