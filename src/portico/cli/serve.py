"""`portico serve`"""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from portico.cli.target import load
from portico.wire.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("serve", help="serve a server on stdio", description="Serve a server on stdio.")
    parser.add_argument("target", help="module:object or path/to/file.py:object (the object may be left out)")
    parser.add_argument("--transport", choices=["stdio"], default="stdio", help="how to serve (default: %(default)s)")
    parser.add_argument(
        "--lifecycle",
        choices=["auto", "strict", "lenient"],
        default="auto",
        help="whether requests must wait for notifications/initialized (default: by revision)",
    )
    parser.add_argument(
        "--max-message", type=int, metavar="BYTES", help="the longest message that is read (default: 4 MiB)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    set_log_level(os.environ.get("LOG_LEVEL", "warning"))
    options: dict[str, Any] = {"lifecycle": arguments.lifecycle}
    if arguments.max_message is not None:
        options["longest"] = arguments.max_message
    load(arguments.target).run(arguments.transport, **options)


def set_log_level(level: str) -> None:
    """Logging goes to standard error, whatever the transport."""
    if level.lower() not in LEVELS:
        raise UsageError(f"LOG_LEVEL={level!r}: there are {', '.join(LEVELS)}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
