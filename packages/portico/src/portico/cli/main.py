"""The `portico` command: finds the module of a command, runs it and reports errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from portico._lazy import load_module
from portico.auth.errors import AuthorizationError
from portico.cli.commands import PACKAGES, all_commands, find_command
from portico.cli.specs.parser import CommandParser
from portico.cli.terminal_text import escape_control, report_write_errors
from portico.plugins import install_command
from portico.protocol.errors import PorticoError, TransportError, UsageError
from portico.transports.importer import LoadFailed

# Commands of other tools, with the equivalent here.
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
# The exit status that a shell reports for a command terminated by a signal.
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command line, by default the arguments of the process, and exit with its status."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding cannot represent are printed as escapes.
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with report_write_errors():
            status = _run_and_flush(words)
    except PorticoError as mistake:
        status = _report(mistake)
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    # `portico list … | head` is normal use, so it ends silently, as a program killed by SIGPIPE does.
    except BrokenPipeError:
        status = EXIT_PIPE_CLOSED
    # On success main() returns instead, so that a program that calls it can go on.
    if status:
        _flush_or_discard()
        raise SystemExit(status)


def _run_and_flush(words: list[str]) -> int:
    """Run a command line and write all of its output, so that an error is reported instead of lost at exit."""
    try:
        return _run(words)
    # `--help` and usage errors end in SystemExit.
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def _run(words: list[str]) -> int:
    entry = find_command(words)
    if entry is None:
        _no_command(words)
        return 0
    status: int | None = getattr(load_module(entry.module), entry.function)(words[1:])
    return status or 0


def _report(mistake: PorticoError) -> int:
    """Print an error and return the exit status.

    The status is 1 if the server refused or its file has an error, 2 for a usage error, 3 for an unreachable server.
    """
    for line in escape_control(str(mistake)).splitlines() or [type(mistake).__name__]:
        print(f"portico: {line}", file=sys.stderr)
    # A file that fails to load is not a mistake in the command line.
    if isinstance(mistake, UsageError):
        return 1 if isinstance(mistake, LoadFailed) else 2
    return 3 if isinstance(mistake, TransportError | AuthorizationError) else 1


def _flush_or_discard() -> None:
    """Flush standard output, or discard it if that fails.

    Python flushes again at exit and would print a traceback for an error, such as a full disk, that was already
    reported.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _no_command(words: list[str]) -> None:
    """Handle --help and --version; report anything else as a usage error."""
    # Only needed here.
    from difflib import get_close_matches

    commands = all_commands()
    listed = "\n".join(f"  {name:<12}{command.summary}" for name, command in commands.items())
    parser = CommandParser("", "portico COMMAND …", f"The Model Context Protocol for Python.\n\ncommands:\n{listed}")
    parser.epilog = "Run `portico COMMAND --help` for details of a command."
    parser.add_argument("--version", action="store_true", help="show versions and platform, for bug reports")
    if words and not words[0].startswith("-"):
        # A command that exists in another package deserves the install command rather than a guess.
        package = next((name for name, commands in PACKAGES.items() if words[0] in commands), None)
        if package is not None:
            parser.error(f"{words[0]!r} is a command of portico-{package}: {install_command(package)}")
        suggestion = OTHER_NAMES.get(words[0].lower()) or next(iter(get_close_matches(words[0], commands, n=1)), None)
        hint = f"did you mean {suggestion!r}?" if suggestion else f"expected one of {', '.join(commands)}"
        parser.error(f"unknown command {words[0]!r}; {hint}")
    if parser.parse_args(words).version:
        # Reads the metadata of every installed package.
        print(load_module("portico.cli.environment").describe_environment())
        return
    parser.error(f"a command is required: {', '.join(commands)}")
