"""`portico completion` prints a shell script; that script calls `portico complete` when TAB is pressed.

`portico complete words WORD …` takes the words after `portico`, the last of which is incomplete. `portico complete bash
LINE BREAKS` takes the line up to the cursor and bash's word-break characters. Each line of output is a completion;
`:files` requests file completion, with the rest of that line as prefix. No server is started and nothing blocks: the
names of tools and arguments come from `completion_cache`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import Action
from collections.abc import Iterable

from portico.cli.commands import all_commands
from portico.cli.completion_cache import CachedNames, is_shell_safe, load_names
from portico.cli.specs import parser_for
from portico.cli.specs.parser import Argument
from portico.cli.terminal_text import report_write_errors
from portico.plugins import find_plugin

SCRIPTS = os.path.join(os.path.dirname(__file__), "scripts")
FILES = ":files"
PATH_OPTIONS = (
    "--cwd",
    "--save-dir",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--output",
    "--lock-file",
    "--config",
    "--data",
    "--token-file",
    "--file",
    "--input",
    "--public-key",
    "--allow-path",
    "--python-project",
    "--unix-socket",
)
# Read on every press of TAB.
MAX_CONFIG_BYTES = 1024 * 1024


def run(argv: list[str]) -> None:
    """Run `portico completion`."""
    shell = parser_for("completion").parse(argv).shell
    with open(os.path.join(SCRIPTS, f"portico.{shell}"), encoding="utf-8") as script, report_write_errors():
        sys.stdout.write(script.read())
        sys.stdout.flush()


def run_complete(argv: list[str]) -> None:
    """Run the hidden command `portico complete`."""
    shell, *rest = argv or [""]
    completions = _complete_in_bash(*rest[:2]) if shell == "bash" and len(rest) > 1 else complete(rest or [""])
    sys.stdout.write("".join(f"{word}\n" for word in completions))


def _complete_in_bash(line: str, breaks: str) -> list[str]:
    """Return the completions for bash, which replaces only the text after the last word-break character."""
    words, is_quoted = _split_line(line)
    current = words[-1]
    # Inside quotes bash does not split at these characters.
    start = 0 if is_quoted else max((current.rfind(mark) + 1 for mark in breaks), default=0)
    completions = complete(words[1:]) if len(words) > 1 else []
    return [word if word.startswith(FILES) else word[start:] for word in completions]


def _split_line(line: str) -> tuple[list[str], bool]:
    """Split an unfinished line into words, the last of which may be empty or an open quotation."""
    # Tried with each quote, because the line may end inside a quotation.
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        is_new = not closing and (line[-1:].strip() == "" and not line.endswith("\\ "))
        return ([*words, ""] if is_new or not words else words), bool(closing)
    return [""], False


def complete(argv: list[str]) -> list[str]:
    """Return the completions of the last word."""
    *before, current = argv
    if not before:
        return _matching(current, [*all_commands(), "--help", "--version"])
    if before[0] not in all_commands():
        return []
    # The words after -- are a command of the user, whose arguments are unknown.
    if "--" in before:
        return [FILES]
    parser = parser_for(before[0])
    flags = {name: flag for flag in parser.flags for name in flag.option_strings}
    option = flags.get(before[-1])
    if option is not None and option.nargs != 0:
        return _complete_option(option, current)
    # After the check for an option that takes a value, which may begin with a dash itself.
    if current.startswith("-"):
        return _matching(current, [*flags, "--help"])
    return _complete_positional(before[0], parser.completes, _positionals(before[1:], flags), current)


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


def _complete_option(flag: Action, current: str) -> list[str]:
    if any(name in PATH_OPTIONS for name in flag.option_strings):
        return [FILES]
    if "--profile" in flag.option_strings:
        return _complete_profile(current)
    return _matching(current, map(str, flag.choices or ()))


def _complete_positional(command: str, expected: list[Argument], positionals: list[str], current: str) -> list[str]:
    argument = expected[min(len(positionals), len(expected) - 1)]
    if len(positionals) >= len(expected) and argument.completion not in ("pairs", "targets"):
        return []
    match argument.completion:
        case "":
            return _matching(current, argument.options.get("choices") or argument.completions)
        case "file":
            return [FILES]
        case "target" | "targets":
            return _complete_config_server(current) or [FILES]
        case "profile":
            return _complete_profile(current)
    cached_names = load_names(os.path.expanduser(positionals[0]))
    if argument.completion == "pairs":
        return _complete_pair(cached_names, "tools" if command == "call" else "prompts", positionals[1], current)
    return _matching(current, _safe_names(cached_names.get(argument.completion)))


def _complete_profile(current: str) -> list[str]:
    """Return the installed profiles, or file completion if none matches."""
    services = find_plugin("services")
    return _matching(current, services.profile_names() if services is not None else ()) or [FILES]


def _complete_pair(cached_names: CachedNames, kind: str, name: str, current: str) -> list[str]:
    entries = cached_names.get(kind)
    arguments = entries.get(name) if isinstance(entries, dict) else None
    key, mark, value = current.partition("=")
    if mark and value.startswith("@"):
        return [f"{FILES} {key}=@"]
    if not isinstance(arguments, dict):
        return []
    if not mark:
        return _matching(current, [f"{name}=" for name in _safe_names(arguments)])
    values = arguments.get(key)
    choices = values if isinstance(values, list) else []
    return _matching(
        current, [f"{key}={choice}" for choice in choices if isinstance(choice, str) and is_shell_safe(choice)]
    )


def _complete_config_server(current: str) -> list[str]:
    """Return the servers of an mcp.json once its path is complete."""
    path, mark, name = current.rpartition(":")
    if not mark or not path.endswith(".json"):
        return []
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            document = json.loads(file.read(MAX_CONFIG_BYTES))
    # A traceback would be printed into the line that the user is typing.
    except (OSError, ValueError, RecursionError):
        return []
    servers = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    return [f"{path}:{item}" for item in _matching(name, _safe_names(servers))]


def _safe_names(entries: object) -> list[str]:
    """Return the names that a shell does not interpret.

    They are checked again, because other programs can write the cache.
    """
    return [name for name in entries if is_shell_safe(name)] if isinstance(entries, dict) else []


def _matching(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]
