"""The commands of `portico`: its own, and those of other installed packages.

A package adds commands with an entry point of the group `portico.commands` that names a dict of `CommandEntry`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from portico._lazy import load_module

GROUP = "portico.commands"


class CommandEntry(NamedTuple):
    """A command: a function that takes the arguments and returns the exit status.

    Its module is imported when the command runs, so that a server starts without loading the others.
    """

    module: str
    summary: str = ""
    function: str = "run"
    # The module whose FORMS describe the arguments.
    forms: str = "portico.cli.specs"


COMMANDS = {
    "serve": CommandEntry("portico.cli.serve", "serve a server on stdio or over HTTP"),
    "list": CommandEntry("portico.cli.list", "list the tools, resources, templates or prompts of a server"),
    "call": CommandEntry("portico.cli.call", "call a tool"),
    "inspect": CommandEntry("portico.cli.inspect", "what a server is, what it offers, and what that costs to read"),
    "doctor": CommandEntry(
        "portico.cli.doctor", "what would keep a server from working here, or a target from answering"
    ),
    "read": CommandEntry("portico.cli.call", "read a resource", "run_read"),
    "prompt": CommandEntry("portico.cli.call", "fill in a prompt", "run_prompt"),
    "dev": CommandEntry("portico.cli.dev", "serve a file, load it again when it changes, and look at it in a browser"),
    "record": CommandEntry("portico.cli.record", "write down what a client and a server say", "run_record"),
    "replay": CommandEntry("portico.cli.record", "serve a recording: it answers as it was answered", "run_replay"),
    "work": CommandEntry("portico.cli.serve", "run the tasks of a server, and nothing else", "run_work"),
    "jobs": CommandEntry("portico.cli.tasks", "look at the tasks in a store; cancel or retry them"),
    "status": CommandEntry("portico.cli.status", "workers, sessions and leases, by the store that processes share"),
    "install": CommandEntry("portico.cli.install", "put a server into the configuration of a client"),
    "port": CommandEntry("portico.cli.port", "rewrite a project that uses FastMCP or the official SDK"),
    "completion": CommandEntry("portico.cli.completion", "print the script that completes these commands in a shell"),
}
HIDDEN = {
    # Called by the scripts of `completion` when TAB is pressed.
    "complete": CommandEntry("portico.cli.completion", function="run_complete"),
}

# The commands of the other packages, for a hint where a package is not installed.
PACKAGES = {
    "console": ("console",),
    "gateway": ("gateway", "pins", "audit", "policy", "tokens"),
    "services": ("memory", "tasks", "contracts", "profiles"),
}


def find_command(words: list[str]) -> CommandEntry | None:
    """Return the command that a command line begins with, or None.

    Other packages are asked only for commands that are not built in: listing the installed ones takes milliseconds.
    """
    if not words or words[0].startswith("-"):
        return None
    builtin = COMMANDS.get(words[0]) or HIDDEN.get(words[0])
    if builtin is not None:
        return builtin
    found = plugin_commands()
    # `memory hook` has a module of its own that loads faster than the one of `memory`.
    return found.get(" ".join(words[:2])) or found.get(words[0])


def all_commands() -> dict[str, CommandEntry]:
    """Return every command that a user types, by its name."""
    return COMMANDS | {name: entry for name, entry in plugin_commands().items() if entry.summary}


@cache
def plugin_commands() -> dict[str, CommandEntry]:
    """Return the commands of other installed packages, by their names."""
    # Only needed here, and slow to import.
    from importlib.metadata import entry_points

    found: dict[str, CommandEntry] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        found.update(getattr(load_module(point.module), point.attr))
    return found
