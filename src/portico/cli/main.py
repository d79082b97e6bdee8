"""The `portico` command. Only argparse here: a server should be there before anybody notices that it was not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from portico import __version__
from portico.cli import serve
from portico.wire.errors import Error


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="portico", description="The Model Context Protocol for Python.")
    parser.add_argument("--version", action="version", version=f"portico {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except Error as mistake:
        print(f"portico: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
