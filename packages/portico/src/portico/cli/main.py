"""The `portico` command: finds the module of a command, runs it, and reports what went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from portico import __version__
from portico._lazy import load_module
from portico.auth.errors import AuthorizationFailed
from portico.cli.specs.parser import Parser
from portico.cli.terminal_text import printable
from portico.protocol.errors import Error, TransportError, UsageError
from portico.transports.importer import LoadFailed


class CommandEntry(NamedTuple):
    """The function that takes the words behind the command and gives its exit status. Its module is imported when the
    command is run: a server should start without loading the others."""

    module: str
    summary: str = ""
    function: str = "run"


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
    "console": CommandEntry("portico_console.cli.console", "look at any server in a browser: try it, watch it"),
    "dev": CommandEntry("portico.cli.dev", "serve a file, load it again when it changes, and look at it in a browser"),
    "record": CommandEntry("portico.cli.record", "write down what a client and a server say", "run_record"),
    "replay": CommandEntry("portico.cli.record", "serve a recording: it answers as it was answered", "run_replay"),
    "gateway": CommandEntry("portico_gateway.cli.gateway", "look at the servers behind a gateway: check, status"),
    "pins": CommandEntry(
        "portico_gateway.cli.pins", "what tools behind a gateway were when approved: list, diff, approve"
    ),
    "work": CommandEntry("portico.cli.serve", "run the tasks of a server, and nothing else", "run_work"),
    "jobs": CommandEntry("portico.cli.tasks", "look at the tasks in a store; cancel or retry them"),
    "status": CommandEntry("portico.cli.status", "workers, sessions and leases, by the store that processes share"),
    "audit": CommandEntry(
        "portico_gateway.cli.audit", "what was asked of a server, and whether the record of it is whole"
    ),
    "policy": CommandEntry("portico_gateway.cli.policy", "who may do what, by the rules of a file: explain, test"),
    "contracts": CommandEntry(
        "portico_services.cli.contracts", "what tools promise: render, lint, diff, codegen, lock, check"
    ),
    "memory": CommandEntry("portico_services.cli.memory", "store and find memories; answer the hooks of assistants"),
    "tasks": CommandEntry("portico_services.cli.items", "work items: add, list, next, done, tree, …"),
    "install": CommandEntry("portico.cli.install", "put a server into the configuration of a client"),
    "port": CommandEntry("portico.cli.port", "rewrite a project that uses FastMCP or the official SDK"),
    "tokens": CommandEntry("portico_gateway.cli.tokens", "tokens for programs that cannot log in: add, list, remove"),
    "profiles": CommandEntry(
        "portico_services.cli.profiles", "files that make `serve` look like another server: list, show"
    ),
    "completion": CommandEntry("portico.cli.completion", "print the script that completes these commands in a shell"),
}
HIDDEN = {
    # Called by the scripts of `completion` when TAB is pressed.
    "complete": CommandEntry("portico.cli.completion", function="run_complete"),
    # An assistant waits for a hook each time its user says something, so it does not load the other actions.
    "memory hook": CommandEntry("portico_services.cli.memory_hooks"),
}

# Commands of other tools, and the ones that do the same here.
OTHER_NAMES = {
    "run": "serve",
    "start": "serve",
    "proxy": "serve URL",
    "version": "--version",
    "help": "--help",
    "tools": "list tools",
    "resources": "list resources",
    "prompts": "list prompts",
    "discover": "list",
    "info": "inspect",
    "inspector": "console",
    "check": "doctor",
    "migrate": "port",
    "uninstall": "install --remove",
    "add": "install",
}
# As a shell reports a command that a signal has ended.
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are printed as escapes.
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Error as mistake:
        status = _report(mistake)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = PIPE_CLOSED
    if status:
        _flush_or_discard()
        raise SystemExit(status)


def _run(words: list[str]) -> int:
    entry = HIDDEN.get(" ".join(words[:2])) or (COMMANDS | HIDDEN).get(words[0]) if words else None
    if entry is None:
        _no_command(words)
        return 0
    status: int | None = getattr(load_module(entry.module), entry.function)(words[1:])
    return status or 0


def _report(mistake: Error) -> int:
    """Print an error, and return the exit status.

    It is 1 if the server refused or its file has an error, 2 for a wrong command line, 3 for an unreachable server.
    """
    for line in printable(str(mistake)).splitlines() or [type(mistake).__name__]:
        print(f"portico: {line}", file=sys.stderr)
    if isinstance(mistake, UsageError):
        return 1 if isinstance(mistake, LoadFailed) else 2
    return 3 if isinstance(mistake, TransportError | AuthorizationFailed) else 1


def _flush_or_discard() -> None:
    """Python flushes again when it exits, and prints a traceback if that fails, as on a full disk: it has been
    reported."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _no_command(words: list[str]) -> None:
    """--help and --version; everything else is a mistake."""
    # Only needed here.
    from difflib import get_close_matches

    listed = "\n".join(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items())
    parser = Parser("", "portico COMMAND …", f"The Model Context Protocol for Python.\n\ncommands:\n{listed}")
    parser.epilog = "`portico COMMAND --help` explains each of them."
    parser.add_argument("--version", action="version", version=f"portico {__version__}")
    if words and not words[0].startswith("-"):
        near = OTHER_NAMES.get(words[0].lower()) or next(iter(get_close_matches(words[0], COMMANDS, n=1)), None)
        hint = f"did you mean {near!r}?" if near else f"commands are {', '.join(COMMANDS)}"
        parser.error(f"unknown command {words[0]!r}; {hint}")
    parser.parse_args(words)
    parser.error(f"a command is required: {', '.join(COMMANDS)}")
