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
    parser = commands.add_parser("serve", help="serve a server", description="Serve a server on stdio or over HTTP.")
    parser.add_argument("target", help="module:object or path/to/file.py:object (the object may be left out)")
    parser.add_argument("--transport", choices=["stdio", "http"], default="stdio", help="default: %(default)s")
    parser.add_argument(
        "--lifecycle",
        choices=["auto", "strict", "lenient"],
        default="auto",
        help="whether requests must wait for notifications/initialized (default: by revision)",
    )
    parser.add_argument(
        "--max-message", type=int, metavar="BYTES", help="the longest message that is read (default: 4 MiB)"
    )
    http = parser.add_argument_group("over HTTP")
    http.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    http.add_argument("--port", type=int, default=8080, help="the port (default: %(default)s; 0: any free one)")
    http.add_argument("--path", default="/mcp", help="the endpoint (default: %(default)s; / is the same)")
    http.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a name we are reached by")
    http.add_argument("--allow-origin", action="append", default=[], metavar="URL", help="an origin that pages have")
    http.add_argument("--insecure", action="store_true", help="serve other machines without a token")
    http.add_argument("--sse", action="store_true", help="also the two endpoints of 2024-11-05: /sse and /messages")
    http.add_argument("--certificate", metavar="FILE", help="a TLS certificate with its chain")
    http.add_argument("--key", metavar="FILE", help="its private key, if it is not in the same file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    set_log_level(os.environ.get("LOG_LEVEL", "warning"))
    options = _http(arguments) if arguments.transport == "http" else {"lifecycle": arguments.lifecycle}
    if arguments.max_message is not None:
        options["longest_body" if arguments.transport == "http" else "longest"] = arguments.max_message
    load(arguments.target).run(arguments.transport, **options)


def _http(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "host": arguments.host,
        "port": arguments.port,
        "path": arguments.path,
        "allow_hosts": arguments.allow_host,
        "allow_origins": arguments.allow_origin,
        "insecure": arguments.insecure,
        "sse": arguments.sse,
        "certificate": arguments.certificate,
        "key": arguments.key,
    }


def set_log_level(level: str) -> None:
    """Logging goes to standard error, whatever the transport."""
    if level.lower() not in LEVELS:
        raise UsageError(f"LOG_LEVEL={level!r}: there are {', '.join(LEVELS)}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
