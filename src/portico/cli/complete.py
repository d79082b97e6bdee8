"""What could stand where somebody presses TAB. The scripts of `portico completion` call this; nothing is started for it
and nothing is waited for: names are those that have been seen before.

`portico complete words WORD …`: the words behind `portico`, the last one being written. `portico complete bash LINE
BREAKS`: the line up to the cursor, and the characters at which bash begins a new word. A line of output is a word to
offer; `:files` means that files are, behind what may follow it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Action
from collections.abc import Callable, Iterable

from portico.cli import forms, memory_forms, tasks_forms
from portico.cli.names import Known, is_harmless, recall
from portico.services import profiles

COMMANDS: dict[str, Callable[[], forms.Parser]] = {
    "serve": forms.serve_form,
    "list": forms.list_form,
    "call": forms.call_form,
    "read": forms.read_form,
    "prompt": forms.prompt_form,
    "work": forms.work_form,
    "jobs": forms.jobs_form,
    "contracts": forms.contracts_form,
    "memory": memory_forms.memory_form,
    "tasks": tasks_forms.tasks_form,
    "install": forms.install_form,
    "profiles": forms.profiles_form,
    "completion": forms.completion_form,
}
# What stands where, behind the command.
PLACES = {
    "serve": ("file",),
    "list": ("kind", "target"),
    "call": ("target", "tools", "pair"),
    "read": ("target", "resources"),
    "prompt": ("target", "prompts", "pair"),
    "work": ("file",),
    "jobs": ("errand",),
    "contracts": ("clause", "targets"),
    "memory": ("memory", "hook"),
    "tasks": ("tasks",),
    "install": ("client",),
    "profiles": ("profile errand", "profile"),
    "completion": ("shell",),
}
# Where one of a few words stands.
CHOICES = {"kind": forms.KINDS, "shell": forms.SHELLS, "errand": forms.ERRANDS, "clause": forms.CLAUSES}
CHOICES["client"] = forms.CLIENTS
CHOICES |= {"memory": memory_forms.ERRANDS, "hook": memory_forms.HOOKS, "profile errand": forms.PROFILE_ERRANDS}
CHOICES["tasks"] = tasks_forms.ERRANDS
FILES = ":files"
FOLDERS = ("--cwd", "--save", "--certificate", "--key", "--out", "--lock", "--config", "--data")
LONGEST_CONFIGURATION = 1024 * 1024


def run(words: list[str]) -> None:
    shell, *rest = words or [""]
    found = _in_bash(*rest[:2]) if shell == "bash" and len(rest) > 1 else complete(rest or [""])
    sys.stdout.write("".join(f"{one}\n" for one in found))


def _in_bash(line: str, breaks: str) -> list[str]:
    """bash replaces only what stands behind the last character at which it begins a new word."""
    words, is_quoted = _split(line)
    current = words[-1]
    kept = 0 if is_quoted else max((current.rfind(mark) + 1 for mark in breaks), default=0)
    found = complete(words[1:]) if len(words) > 1 else []
    return [one if one.startswith(FILES) else one[kept:] for one in found]


def _split(line: str) -> tuple[list[str], bool]:
    """The words of an unfinished line, the last of which may be empty or an open quotation."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        is_new = not closing and (line[-1:].strip() == "" and not line.endswith("\\ "))
        return ([*words, ""] if is_new or not words else words), bool(closing)
    return [""], False


def complete(words: list[str]) -> list[str]:
    """The words that could stand in place of the last one."""
    *before, current = words
    if not before:
        return _beginning(current, [*COMMANDS, "--help", "--version"])
    if before[0] not in COMMANDS:
        return []
    if "--" in before:
        return [FILES]
    flags = {name: flag for flag in COMMANDS[before[0]]().flags for name in flag.option_strings}
    behind = flags.get(before[-1])
    if behind is not None and behind.nargs != 0:
        return _of_flag(behind, current)
    if current.startswith("-"):
        return _beginning(current, [*flags, "--help"])
    return _of_place(before[0], _positionals(before[1:], flags), current)


def _positionals(words: list[str], flags: dict[str, Action]) -> list[str]:
    found, skips = [], False
    for word in words:
        if skips:
            skips = False
        elif word.startswith("-") and len(word) > 1:
            flag = flags.get(word)
            skips = flag is not None and flag.nargs != 0
        else:
            found.append(word)
    return found


def _of_flag(flag: Action, current: str) -> list[str]:
    if any(name in FOLDERS for name in flag.option_strings):
        return [FILES]
    if "--profile" in flag.option_strings:
        return _of_profiles(current)
    return _beginning(current, map(str, flag.choices or ()))


def _of_place(command: str, given: list[str], current: str) -> list[str]:
    places = PLACES[command]
    place = places[min(len(given), len(places) - 1)]
    if len(given) >= len(places) and place not in ("pair", "targets"):
        return []
    if place == "file":
        return [FILES]
    if place in ("target", "targets"):
        return _of_configuration(current) or [FILES]
    if place in CHOICES:
        return _beginning(current, CHOICES[place])
    if place == "profile":
        return _of_profiles(current)
    known = recall(os.path.expanduser(given[0]))
    if place == "pair":
        return _of_pair(known, "tools" if command == "call" else "prompts", given[1], current)
    return _beginning(current, _names(known.get(place)))


def _of_profiles(current: str) -> list[str]:
    """Those that come with Portico, or else a file."""
    return _beginning(current, profiles.names()) or [FILES]


def _of_pair(known: Known, kind: str, name: str, current: str) -> list[str]:
    named = known.get(kind)
    arguments = named.get(name) if isinstance(named, dict) else None
    key, mark, value = current.partition("=")
    if mark and value.startswith("@"):
        return [f"{FILES} {key}=@"]
    if not isinstance(arguments, dict):
        return []
    if not mark:
        return _beginning(current, [f"{one}=" for one in _names(arguments)])
    values = arguments.get(key)
    found = [one for one in values if isinstance(one, str) and is_harmless(one)] if isinstance(values, list) else []
    return _beginning(current, [f"{key}={one}" for one in found])


def _of_configuration(current: str) -> list[str]:
    """The servers of an mcp.json, once its name has been written out."""
    path, mark, name = current.rpartition(":")
    if not mark or not path.endswith(".json"):
        return []
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            said = json.loads(file.read(LONGEST_CONFIGURATION))
    except (OSError, ValueError, RecursionError):
        return []
    servers = said.get("mcpServers", said.get("servers")) if isinstance(said, dict) else None
    return [f"{path}:{one}" for one in _beginning(name, _names(servers))]


def _names(found: object) -> list[str]:
    """Also what we have written ourselves is looked at again: others can write there too."""
    return [name for name in found if is_harmless(name)] if isinstance(found, dict) else []


def _beginning(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]
