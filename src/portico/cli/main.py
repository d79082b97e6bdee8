"""The `portico` command. Only argparse here: a server should be there before anybody notices that it was not."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from portico import __version__
from portico._lazy import load_module
from portico.auth.errors import AuthorizationFailed
from portico.cli.forms import Parser
from portico.cli.printable import printable
from portico.wire.errors import Error, TransportError, UsageError


class Command(NamedTuple):
    """Its module is imported when it is wanted; `run` there takes the words that were typed after it."""

    module: str
    summary: str


COMMANDS = {
    "serve": Command("portico.cli.serve", "serve a server on stdio or over HTTP"),
    "list": Command("portico.cli.listing", "list the tools, resources, templates or prompts of a server"),
    "call": Command("portico.cli.call", "call a tool"),
    "read": Command("portico.cli.read", "read a resource"),
    "prompt": Command("portico.cli.prompt", "fill in a prompt"),
    "work": Command("portico.cli.work", "run the tasks of a server, and nothing else"),
    "jobs": Command("portico.cli.jobs", "look at the tasks in a store; cancel or retry them"),
    "contracts": Command("portico.cli.contracts", "what tools promise: render, lint, diff, codegen, lock, check"),
    "memory": Command("portico.cli.memory", "store and find memories; answer the hooks of assistants"),
    "tasks": Command("portico.cli.tasks", "work items: add, list, next, done, tree, …"),
    "install": Command("portico.cli.install", "put a server into the configuration of a client"),
    "profiles": Command("portico.cli.profiles", "the files that make `serve` look like another server: list, show"),
    "completion": Command("portico.cli.completion", "print the script that completes these commands in a shell"),
}
# What the scripts of `completion` call when TAB is pressed.
HIDDEN = {"complete": Command("portico.cli.complete", "")}

# As a shell reports a command that a signal has ended.
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # What the terminal's encoding does not have is still said, as an escape.
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
        _let_go()
        raise SystemExit(status)


def _run(words: list[str]) -> int:
    command = (COMMANDS | HIDDEN).get(words[0]) if words else None
    if command is None:
        _explain(words)
        return 0
    status: int | None = load_module(command.module).run(words[1:])
    return status or 0


def _report(mistake: Error) -> int:
    """1 for what the server refused, 2 for what was typed, 3 when the server cannot be reached."""
    for line in printable(str(mistake)).splitlines() or [type(mistake).__name__]:
        print(f"portico: {line}", file=sys.stderr)
    if isinstance(mistake, UsageError):
        return 2
    return 3 if isinstance(mistake, TransportError | AuthorizationFailed) else 1


def _let_go() -> None:
    """Python flushes once more when it ends, and would complain if that failed: nobody may be reading, as behind
    `| head`, or the disk may be full. That has been said."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _explain(words: list[str]) -> None:
    """--help and --version; anything else is a command that is none."""
    # Only ever needed to explain a mistake.
    from difflib import get_close_matches

    listed = "\n".join(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items())
    parser = Parser("", "portico COMMAND …", f"The Model Context Protocol for Python.\n\ncommands:\n{listed}")
    parser.epilog = "`portico COMMAND --help` says more about each."
    parser.add_argument("--version", action="version", version=f"portico {__version__}")
    if not words:
        parser.error(f"which command? There is {', '.join(COMMANDS)}")
    if not words[0].startswith("-"):
        near = get_close_matches(words[0], COMMANDS, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(COMMANDS)}"
        parser.error(f"there is no command {words[0]!r}; {meant}")
    parser.parse_args(words)
    parser.error("which command?")
