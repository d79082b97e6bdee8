"""Cache of tool, resource and prompt names for shell completion: one small file per target.

Only names without a meaning to a shell are stored: a server could name its tool `$(rm …)`, and the shell executes a
line as it was completed. The target is not stored, because a URL may contain a secret: the file name is its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from portico.cli.files import write_atomic
from portico.protocol.errors import UsageError

# At most 64 MB in total; a user has a handful of servers.
MAX_TARGETS = 64
MAX_NAMES = 500
MAX_ARGUMENTS = 50
MAX_FILE_BYTES = 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@%+,~-]{0,199}")

CachedNames = dict[str, Any]


def is_shell_safe(name: str) -> bool:
    """Return whether a name has no special meaning to a shell."""
    return _NAME.fullmatch(name) is not None


def cache_file(target: str | list[str]) -> str:
    """Return the cache file of a target. The key includes the working directory unless it is a URL."""
    is_url = isinstance(target, str) and target.lower().startswith(("http://", "https://"))
    key = json.dumps([target, "" if is_url else os.getcwd()])
    return os.path.join(_cache_dir(), f"{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}.json")


def _cache_dir() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification requires relative paths to be ignored.
    root = cache if os.path.isabs(cache) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "portico", "names")


def load_names(target: str | list[str]) -> CachedNames:
    """Return the stored names of a target, or an empty dict if there are none or the file is unreadable."""
    try:
        with open(cache_file(target), encoding="utf-8") as file:
            stored = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def store_names(target: str | list[str], kind: str, names: dict[str, dict[str, list[str]]]) -> None:
    """Store the names of one kind, each with its arguments and their choices. Failures are ignored: this is a cache."""
    harmless = {name: _safe_arguments(arguments) for name, arguments in names.items() if is_shell_safe(name)}
    cached_names = {**load_names(target), kind: dict(list(harmless.items())[:MAX_NAMES])}
    path, text = cache_file(target), json.dumps(cached_names)
    try:
        # Private, because the names of tools show which systems a user works with.
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # A larger file would be cut off by `load_names` and then fail to parse.
        if len(text) <= MAX_FILE_BYTES:
            write_atomic(path, text, 0o600)
        _evict_old(os.path.dirname(path))
    except (OSError, UsageError):
        return


def _safe_arguments(choices: dict[str, list[str]]) -> dict[str, list[str]]:
    harmless = [name for name in choices if is_shell_safe(name)][:MAX_ARGUMENTS]
    return {name: [value for value in choices[name] if is_shell_safe(value)][:MAX_ARGUMENTS] for name in harmless}


def _evict_old(folder: str) -> None:
    """Delete the files of the least recently used targets."""
    # Drafts count as well: a process that was killed while writing leaves one behind.
    files = [entry for entry in os.scandir(folder) if entry.name.endswith((".json", ".draft"))]
    if len(files) > MAX_TARGETS:
        files.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in files[: len(files) - MAX_TARGETS]:
            os.unlink(entry.path)
