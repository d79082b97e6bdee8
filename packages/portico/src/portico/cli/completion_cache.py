"""The names that servers were seen to have, stored for completion: a small file for each target.

Only names are stored, and only those that mean nothing to a shell: a server could call its tool `$(rm …)`, and a line
is run as it was completed. The target itself is not stored, for a URL may hold a secret: the file is named by its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from portico.cli.files import write_text
from portico.protocol.errors import UsageError

MOST_TARGETS = 64
MOST_NAMES = 500
MOST_ARGUMENTS = 50
LONGEST_FILE = 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@%+,~-]{0,199}")

Known = dict[str, Any]


def is_harmless(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def place(target: str | list[str]) -> str:
    """The file of a target. Paths and commands depend on the folder that they were typed in."""
    is_url = isinstance(target, str) and target.lower().startswith(("http://", "https://"))
    key = json.dumps([target, "" if is_url else os.getcwd()])
    return os.path.join(_folder(), f"{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}.json")


def _folder() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    root = cache if os.path.isabs(cache) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "portico", "names")


def recall(target: str | list[str]) -> Known:
    """What is stored about a target; an empty dict if there is nothing, or nothing that can be read."""
    try:
        with open(place(target), encoding="utf-8") as file:
            stored = json.loads(file.read(LONGEST_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def remember(target: str | list[str], kind: str, names: dict[str, dict[str, list[str]]]) -> None:
    """Store the names of one kind, each with its arguments and their choices. Failures are ignored."""
    harmless = {name: _arguments(arguments) for name, arguments in names.items() if is_harmless(name)}
    known = {**recall(target), kind: dict(list(harmless.items())[:MOST_NAMES])}
    path, text = place(target), json.dumps(known)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if len(text) <= LONGEST_FILE:
            write_text(path, text, 0o600)
        _forget(os.path.dirname(path))
    except (OSError, UsageError):
        return


def _arguments(choices: dict[str, list[str]]) -> dict[str, list[str]]:
    harmless = [name for name in choices if is_harmless(name)][:MOST_ARGUMENTS]
    return {name: [value for value in choices[name] if is_harmless(value)][:MOST_ARGUMENTS] for name in harmless}


def _forget(folder: str) -> None:
    """Delete the files of the targets that were not used for longest."""
    files = [entry for entry in os.scandir(folder) if entry.name.endswith((".json", ".draft"))]
    if len(files) > MOST_TARGETS:
        files.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in files[: len(files) - MOST_TARGETS]:
            os.unlink(entry.path)
