"""Values, options and arguments that several commands share."""

from __future__ import annotations

import argparse
import math

from portico.cli.specs.parser import Argument, CommandSpec, Option, argument, option
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS

TARGET_HELP = """\
TARGET is one of
  https://host/mcp            a server over HTTP
  path/to/file.py[:object]    a Server in a file, run inside this command
  module:object               a Server in a module, run inside this command
  path/to/mcp.json[:name]     an entry of a configuration file, or all of them
  'command arg …'             a command to start; or at the end: -- COMMAND …
"""
EXIT_STATUS_HELP = "Exit status: 0 success; 1 refused or not found; 2 usage error; 3 server\nunreachable."
TARGET = argument("target", "target", metavar="TARGET", help="server: a URL, file, module or command (see below)")
ARGUMENT_PAIRS = argument("pairs", "pairs", nargs="*", default=[], metavar="key=value", help="arguments by name")

# Values


def parse_seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # Also rejects NaN, which compares false with everything.
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return value


def parse_count(text: str) -> int:
    """Parse a whole number."""
    # Bounded, because int() rejects thousands of digits with a traceback.
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 999999999, got {text!r}")
    return int(text)


def parse_port(text: str) -> int:
    """Parse a port; 0 means any free port."""
    if not text.isdecimal() or int(text[:9]) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


# Options

HEADER = option(
    "--header", action="append", default=[], metavar="'NAME: VALUE'", help="HTTP header to send; repeatable"
)
TOKEN = option("--token", metavar="TOKEN", help="bearer token (prefer PORTICO_CLIENT_TOKEN)")
ENV = option(
    "--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable for a command; repeatable"
)
CWD = option("--cwd", metavar="DIR", help="working directory of a command")
CONNECTION = {
    "connection": (
        option("--timeout", type=parse_seconds, metavar="SECONDS", help="request timeout (default: 60)"),
        option(
            "--protocol-version",
            choices=SUPPORTED_PROTOCOL_VERSIONS,
            metavar="VERSION",
            help="protocol version to use (default: the newest both sides support)",
        ),
        HEADER,
        TOKEN,
        option("--oauth", action="store_true", help="log in if the server requires it; see `portico login`"),
        ENV,
        CWD,
    )
}
DEBUGGING = (
    option("--trace", action="store_true", help="print every message to standard error"),
    option("--verbose", action="store_true", help="print the server's log messages to standard error"),
)
FORMATS = ("table", "json", "jsonl")


FORMAT = option("--format", choices=FORMATS, help="output format (default: table on a terminal, jsonl elsewhere)")


def report_format(*more: str) -> Option:
    """Return the --format option of a command whose reports are read in CI logs, so that a pipe gets a table, too.

    `more`: additional formats of one command.
    """
    return option("--format", choices=(*FORMATS, *more), default="table", help="output format (default: %(default)s)")


UPSTREAM_TIMEOUT = option(
    "--timeout", type=parse_seconds, default=30.0, metavar="SECONDS", help="upstream timeout (default: %(default)g)"
)
SAVE_DIR = option("--save-dir", metavar="DIR", help="save images, audio and other binary content in this directory")
STORE = (
    option(
        "--store",
        metavar="URL",
        help="database: a path, sqlite:///path or postgresql://… (default: PORTICO_STORE, or a file in the data "
        "directory)",
    ),
    option("--data", metavar="DIR", help="data directory (default: PORTICO_DATA)"),
)
DATA = STORE[1:]
TASK_CONCURRENCY = option(
    "--task-concurrency",
    type=parse_count,
    default=16,
    metavar="N",
    help="tasks to run concurrently (default: %(default)s; 0 disables)",
)
SERVER_REFERENCE_HELP = "module[:object] or path/to/file.py[:object]"


def limit_option(default: int | None = None) -> Option:
    default_text = "" if default is None else " (default: %(default)s)"
    return option(
        "--limit", type=parse_count, default=default, metavar="N", help=f"maximum number of entries{default_text}"
    )


def client_command(
    command: str,
    first: str,
    second: str,
    about: str,
    arguments: tuple[Argument, ...],
    *own: Option,
    action_options: dict[str, str] | None = None,
    examples: tuple[str, ...] = (),
) -> CommandSpec:
    """Return the specification of a command that connects to a server."""
    usage = f"portico {command} {first} [options]\n       portico {command} [options] {second}"
    reaching = {heading: (*flags, *DATA) for heading, flags in CONNECTION.items()}
    flags = {**reaching, "": (*DEBUGGING, *own)}
    return CommandSpec(
        usage, about, arguments, flags, f"{TARGET_HELP}\n{EXIT_STATUS_HELP}", action_options or {}, examples
    )


def repeatable(name: str, metavar: str, text: str) -> Option:
    """Return an option that may be given several times."""
    return option(name, action="append", default=[], metavar=metavar, help=f"{text}; repeatable")
