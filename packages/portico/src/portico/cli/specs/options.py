"""What several commands take: the values, the options, and TARGET."""

from __future__ import annotations

import argparse
import math

from portico.cli.specs.parser import CommandForm, Flag, Word, flag, word
from portico.protocol.versions import REVISIONS

TARGETS = """\
A TARGET is
  https://host/mcp            a server over HTTP
  path/to/file.py[:object]    a Server in a file, run inside this command
  module:object               the same, by the name of a module
  path/to/mcp.json[:name]     an entry of a configuration file; without a name all of them
  'command arg …'             a server to start; or, at the end of the line: -- command arg …
"""
STATUS = "Exit status: 0; 1 when the server refuses; 2 for a mistake on this line; 3 when the server cannot be reached."
TARGET = word("target", "target", metavar="TARGET")
PAIRS = word("pairs", "pairs", nargs="*", default=[], metavar="key=value")

# Values


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """0 is any that is free."""
    if not text.isdecimal() or int(text[:9]) > 65535:
        raise argparse.ArgumentTypeError(f"a port is 1 to 65535, or 0 for any that is free: not {text!r}")
    return int(text)


# Options

HEADER = flag("--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header for HTTP")
TOKEN = flag("--token", help="a bearer token for HTTP (better: in the environment, as PORTICO_CLIENT_TOKEN)")
ENV = flag("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for a command")
CWD = flag("--cwd", metavar="DIR", help="the folder that a command starts in")
CONNECTION = {
    "how to reach the server": (
        flag("--timeout", type=seconds, metavar="SECONDS", help="how long an answer may take (default: 60)"),
        flag("--revision", choices=REVISIONS, help="speak this one (default: the newest that both know)"),
        HEADER,
        TOKEN,
        flag("--oauth", action="store_true", help="log in with a browser if the server wants that"),
        ENV,
        CWD,
    )
}
SEEING = (
    flag("--trace", action="store_true", help="print every message, sent and received, to standard error"),
    flag("--verbose", action="store_true", help="print what the server logs to standard error"),
)
OUTPUT = flag("--output", choices=("table", "text", "json"), help="default: table on a terminal, json elsewhere")
JSON = flag("--json", action="store_const", const="json", dest="output", help="the same as --output json")
SHORT_OUTPUT = flag("-o", *OUTPUT.names, **OUTPUT.options)
UPSTREAM_TIMEOUT = flag("--timeout", type=seconds, default=30.0, metavar="SECONDS", help="default: %(default)g")
SAVE = flag("--save", metavar="DIR", help="write images, sound and other binary data into files there")
STORE = (
    flag(
        "--store",
        metavar="URL",
        help="the database: a path, sqlite:///path or postgresql://… (default: PORTICO_STORE, or a file in the data "
        "directory)",
    ),
    flag("--data", metavar="DIR", help="the data directory (default: PORTICO_DATA)"),
)
DATA = STORE[1:]
TOKENS = flag(
    "--data", metavar="DIR", help="where a `portico serve` of yours stores its tokens (default: PORTICO_DATA)"
)
WORKING = flag(
    "--concurrency",
    type=count,
    default=16,
    metavar="N",
    help="how many tasks run at once (default: %(default)s; 0: none)",
)
SERVED = "module:object or path/to/file.py:object (the object may be left out)"


def limit(default: int | None = None) -> Flag:
    shown = "" if default is None else " (default: %(default)s)"
    return flag("--limit", type=count, default=default, metavar="N", help=f"at most this many{shown}")


def asking_form(
    command: str,
    first: str,
    second: str,
    about: str,
    words: tuple[Word, ...],
    *own: Flag,
    action_options: dict[str, str] | None = None,
    examples: tuple[str, ...] = (),
) -> CommandForm:
    usage = f"portico {command} {first} [options]\n       portico {command} [options] {second}"
    reaching = {heading: (*flags, TOKENS) for heading, flags in CONNECTION.items()}
    flags = {**reaching, "": (*SEEING, *own)}
    return CommandForm(usage, about, words, flags, f"{TARGETS}\n{STATUS}", action_options or {}, examples)
