"""`portico memory hooks install`: add the memory hooks to Claude Code's settings, or remove them.

As with `portico install`, the change is shown first and written with --write. Other hooks stay unchanged.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from portico.cli import install
from portico.cli.jsonc import InvalidJsonc, delete_value, read, set_value
from portico.protocol.errors import UsageError
from portico_services.cli.specs import HOOKS

# Claude Code's event names by hook name.
EVENTS = {
    "session-start": "SessionStart",
    "user-prompt-submit": "UserPromptSubmit",
    "post-tool-use": "PostToolUse",
    "pre-compact": "PreCompact",
    "stop": "Stop",
}
# Tools after which memories about a file are retrieved.
MATCHERS = {"post-tool-use": "Read|Edit|Write|MultiEdit|NotebookEdit"}
_OURS = re.compile(r"\bportico(?:\.exe)?[\"']?\s+(?:.*\s)?memory\s+hook\s")


def run(arguments: argparse.Namespace) -> None:
    action, *names = arguments.words or [""]
    if action not in ("install", "remove"):
        raise UsageError(f"expected `portico memory hooks install` or `remove`, got {action or 'nothing'!r}")
    unknown = [name for name in names if name not in HOOKS]
    if unknown:
        raise UsageError(f"unknown hook {unknown[0]!r}; hooks are {', '.join(HOOKS)}")
    path = Path(os.path.realpath(_settings_file(arguments.scope)))
    before = install._read(path)
    try:
        mark = "\ufeff" if before.startswith("\ufeff") else ""
        after = mark + _edit(before.removeprefix(mark), action, names or list(HOOKS), arguments)
    except InvalidJsonc as mistake:
        raise UsageError(f"{path}, {mistake}; the file was not changed") from None
    install._write_changes(path, before, after, arguments)


def _settings_file(scope: str) -> Path:
    return (Path.cwd() if scope == "project" else Path.home()) / ".claude" / "settings.json"


def _edit(text: str, action: str, names: list[str], arguments: argparse.Namespace) -> str:
    """Return the settings with or without the hooks of these names."""
    for name in names:
        key = ("hooks", EVENTS[name])
        groups = _groups(text, key)
        others = _without_ours(groups, name)
        if action == "install":
            command = {"type": "command", "command": _command(name, arguments)}
            matcher = {"matcher": MATCHERS[name]} if name in MATCHERS else {}
            text = set_value(text, key, [*others, {**matcher, "hooks": [command]}])
        elif others != groups:
            text = set_value(text, key, others) if others else delete_value(text, key)
    return text


def _groups(text: str, key: tuple[str, str]) -> list[Any]:
    """Return the hook groups of an event in the settings."""
    hooks = read(text).value.get(key[0], {})
    groups = hooks.get(key[1], []) if isinstance(hooks, dict) else None
    if not isinstance(groups, list):
        raise InvalidJsonc(f"{'.'.join(key)}: expected a list of hooks")
    return groups


def _without_ours(groups: list[Any], name: str) -> list[Any]:
    """Return the groups without our hook of this name. A group that contained nothing else is removed."""
    remaining = []
    for group in groups:
        hooks = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(hooks, list):
            remaining.append(group)
            continue
        others = [hook for hook in hooks if not _is_ours(hook, name)]
        if others or not hooks:
            remaining.append({**group, "hooks": others} if others != hooks else group)
    return remaining


def _is_ours(hook: Any, name: str) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and _OURS.search(command) is not None and name in command.split()


def _command(name: str, arguments: argparse.Namespace) -> str:
    """Return the command line of a hook. In a file shared with the project it contains no path of this machine."""
    words = ["portico"] if arguments.scope == "project" else install.portico_command()
    words = [*words, "memory", "hook", name]
    if arguments.store:
        words += ["--store", arguments.store if "://" in arguments.store else os.path.abspath(arguments.store)]
    if arguments.data:
        words += ["--data", os.path.abspath(arguments.data)]
    if arguments.project:
        words += ["--project", arguments.project]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
