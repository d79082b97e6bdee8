"""The `portico` command: finds the module of a command, runs it, and reports what went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from portico import __version__
from portico._lazy import load_module
from portico.auth.errors import AuthorizationFailed
from portico.cli.commands import PACKAGES, all_commands, find_command
from portico.cli.specs.parser import Parser
from portico.cli.terminal_text import printable
from portico.protocol.errors import Error, TransportError, UsageError
from portico.transports.importer import LoadFailed

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
    entry = find_command(words)
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

    commands = all_commands()
    listed = "\n".join(f"  {name:<12}{command.summary}" for name, command in commands.items())
    parser = Parser("", "portico COMMAND …", f"The Model Context Protocol for Python.\n\ncommands:\n{listed}")
    parser.epilog = "`portico COMMAND --help` explains each of them."
    parser.add_argument("--version", action="version", version=f"portico {__version__}")
    if words and not words[0].startswith("-"):
        package = next((name for name, commands in PACKAGES.items() if words[0] in commands), None)
        if package is not None:
            parser.error(f"{words[0]!r} is a command of portico-{package}: pip install 'portico[{package}]'")
        near = OTHER_NAMES.get(words[0].lower()) or next(iter(get_close_matches(words[0], commands, n=1)), None)
        hint = f"did you mean {near!r}?" if near else f"commands are {', '.join(commands)}"
        parser.error(f"unknown command {words[0]!r}; {hint}")
    parser.parse_args(words)
    parser.error(f"a command is required: {', '.join(commands)}")
