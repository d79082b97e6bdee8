"""`portico completion` prints a script for a shell; `portico complete` is what that script calls when TAB is pressed.

`portico complete words WORD …`: the words behind `portico`, the last one being typed. `portico complete bash LINE
BREAKS`: the line up to the cursor, and the characters at which bash begins a new word. Each line of output is a word to
offer; `:files` offers files, with the rest of that line in front of them. No server is started and nothing is waited
for: the names of tools and arguments are those that `names` has stored.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Action
from collections.abc import Iterable

from portico.cli.commands import all_commands
from portico.cli.completion_cache import Known, is_harmless, recall
from portico.cli.specs import parser_for
from portico.cli.specs.parser import Word
from portico.cli.terminal_text import writing
from portico.plugins import find_plugin

SCRIPTS = os.path.join(os.path.dirname(__file__), "scripts")
FILES = ":files"
FILE_FLAGS = ("--cwd", "--save", "--certificate", "--key", "--out", "--lock", "--config", "--data")
LONGEST_CONFIGURATION = 1024 * 1024


def run(words: list[str]) -> None:
    shell = parser_for("completion").read(words).shell
    with open(os.path.join(SCRIPTS, f"portico.{shell}"), encoding="utf-8") as script, writing():
        sys.stdout.write(script.read())
        sys.stdout.flush()


def run_complete(words: list[str]) -> None:
    shell, *rest = words or [""]
    offered = _in_bash(*rest[:2]) if shell == "bash" and len(rest) > 1 else complete(rest or [""])
    sys.stdout.write("".join(f"{word}\n" for word in offered))


def _in_bash(line: str, breaks: str) -> list[str]:
    """bash replaces only what stands behind the last character at which it begins a new word."""
    words, is_quoted = _split(line)
    current = words[-1]
    start = 0 if is_quoted else max((current.rfind(mark) + 1 for mark in breaks), default=0)
    offered = complete(words[1:]) if len(words) > 1 else []
    return [word if word.startswith(FILES) else word[start:] for word in offered]


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
        return _beginning(current, [*all_commands(), "--help", "--version"])
    if before[0] not in all_commands():
        return []
    if "--" in before:
        return [FILES]
    parser = parser_for(before[0])
    flags = {name: flag for flag in parser.flags for name in flag.option_strings}
    behind = flags.get(before[-1])
    if behind is not None and behind.nargs != 0:
        return _of_flag(behind, current)
    if current.startswith("-"):
        return _beginning(current, [*flags, "--help"])
    return _of_word(before[0], parser.completes, _positionals(before[1:], flags), current)


def _positionals(words: list[str], flags: dict[str, Action]) -> list[str]:
    positionals, is_value = [], False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-") and len(word) > 1:
            flag = flags.get(word)
            is_value = flag is not None and flag.nargs != 0
        else:
            positionals.append(word)
    return positionals


def _of_flag(flag: Action, current: str) -> list[str]:
    if any(name in FILE_FLAGS for name in flag.option_strings):
        return [FILES]
    if "--profile" in flag.option_strings:
        return _of_profiles(current)
    return _beginning(current, map(str, flag.choices or ()))


def _of_word(command: str, expected: list[Word], given: list[str], current: str) -> list[str]:
    word = expected[min(len(given), len(expected) - 1)]
    if len(given) >= len(expected) and word.kind not in ("pairs", "targets"):
        return []
    match word.kind:
        case "":
            return _beginning(current, word.options.get("choices") or word.completions)
        case "file":
            return [FILES]
        case "target" | "targets":
            return _of_configuration(current) or [FILES]
        case "profile":
            return _of_profiles(current)
    known = recall(os.path.expanduser(given[0]))
    if word.kind == "pairs":
        return _of_pair(known, "tools" if command == "call" else "prompts", given[1], current)
    return _beginning(current, _names(known.get(word.kind)))


def _of_profiles(current: str) -> list[str]:
    """The profiles that are installed, or else files."""
    services = find_plugin("services")
    return _beginning(current, services.profile_names() if services is not None else ()) or [FILES]


def _of_pair(known: Known, kind: str, name: str, current: str) -> list[str]:
    named = known.get(kind)
    arguments = named.get(name) if isinstance(named, dict) else None
    key, mark, value = current.partition("=")
    if mark and value.startswith("@"):
        return [f"{FILES} {key}=@"]
    if not isinstance(arguments, dict):
        return []
    if not mark:
        return _beginning(current, [f"{name}=" for name in _names(arguments)])
    values = arguments.get(key)
    choices = values if isinstance(values, list) else []
    return _beginning(current, [f"{key}={one}" for one in choices if isinstance(one, str) and is_harmless(one)])


def _of_configuration(current: str) -> list[str]:
    """The servers of an mcp.json, once its name has been written out."""
    path, mark, name = current.rpartition(":")
    if not mark or not path.endswith(".json"):
        return []
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            document = json.loads(file.read(LONGEST_CONFIGURATION))
    except (OSError, ValueError, RecursionError):
        return []
    servers = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    return [f"{path}:{one}" for one in _beginning(name, _names(servers))]


def _names(entries: object) -> list[str]:
    """The names that a shell would not interpret. Checked again here, because others can write to that file too."""
    return [name for name in entries if is_harmless(name)] if isinstance(entries, dict) else []


def _beginning(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]
