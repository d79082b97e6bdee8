"""The commands of `portico`: its own, and the commands of other installed packages.

A package adds commands with an entry point of the group `portico.commands` that names a dict of `CommandEntry`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from portico._lazy import load_module

GROUP = "portico.commands"


class CommandEntry(NamedTuple):
    """A command: a function that takes the arguments and returns the exit status.

    Its module is imported when the command runs, so that starting one command does not load the others.
    """

    module: str
    summary: str = ""
    function: str = "run"
    # The module that describes the command's arguments.
    forms: str = "portico.cli.specs"


COMMANDS = {
    "serve": CommandEntry("portico.cli.serve", "serve a server over stdio or HTTP"),
    "dev": CommandEntry("portico.cli.dev", "serve a file over HTTP and reload it on change"),
    "list": CommandEntry("portico.cli.list", "list a server's tools, resources, resource templates or prompts"),
    "call": CommandEntry("portico.cli.call", "call a tool"),
    "read": CommandEntry("portico.cli.call", "read a resource", "run_read"),
    "prompt": CommandEntry("portico.cli.call", "render a prompt", "run_prompt"),
    "inspect": CommandEntry("portico.cli.inspect", "show a server's info, capabilities and token cost"),
    "doctor": CommandEntry("portico.cli.doctor", "check the environment, the store and a server's health"),
    "install": CommandEntry("portico.cli.install", "add a server to a client's configuration"),
    "login": CommandEntry("portico.cli.login", "log in to a server and store the token"),
    "logout": CommandEntry("portico.cli.login", "delete the stored token of a server", "run_logout"),
    "publish": CommandEntry("portico.cli.publish", "generate server.json, a bundle manifest and a server card"),
    "port": CommandEntry("portico.cli.port", "rewrite FastMCP or MCP SDK code for Portico"),
    "record": CommandEntry("portico.cli.record", "capture the messages between a client and a server", "run_record"),
    "replay": CommandEntry("portico.cli.record", "serve a recording", "run_replay"),
    "tasks": CommandEntry("portico.cli.tasks", "list, show, cancel or retry the tasks in a store"),
    "worker": CommandEntry("portico.cli.serve", "run a server's queued tasks without serving requests", "run_worker"),
    "status": CommandEntry("portico.cli.status", "show workers, sessions and leases recorded in a server's store"),
    "completion": CommandEntry("portico.cli.completion", "print a shell completion script"),
}
HIDDEN_COMMANDS = {
    # Called by the scripts of `completion` when TAB is pressed.
    "complete": CommandEntry("portico.cli.completion", function="run_complete"),
}

# The commands of the other packages, for a hint if a package is not installed.
PACKAGES = {
    "console": ("console",),
    "gateway": ("gateway", "hub", "connect", "adopt", "pins", "audit", "usage", "policy", "tokens"),
    "services": ("memory", "items", "contracts", "profiles"),
}


def find_command(words: list[str]) -> CommandEntry | None:
    """Return the command that a command line begins with, or None.

    Plugin commands are only searched for words that are not built in: listing entry points takes milliseconds.
    """
    if not words or words[0].startswith("-"):
        return None
    builtin = COMMANDS.get(words[0]) or HIDDEN_COMMANDS.get(words[0])
    if builtin is not None:
        return builtin
    result = plugin_commands()
    # `memory hook` has a separate module that loads faster than the one of `memory`.
    return result.get(" ".join(words[:2])) or result.get(words[0])


def all_commands() -> dict[str, CommandEntry]:
    """Return all visible commands by name."""
    return COMMANDS | {name: entry for name, entry in plugin_commands().items() if entry.summary}


@cache
def plugin_commands() -> dict[str, CommandEntry]:
    """Return the commands of other installed packages by name."""
    # Only needed here, and slow to import.
    from importlib.metadata import entry_points

    result: dict[str, CommandEntry] = {}
    # Sorted, so that the order does not depend on the order of installation.
    for point in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        result.update(getattr(load_module(point.module), point.attr))
    return result
