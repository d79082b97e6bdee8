"""What a person at a terminal is told when the built-in services begin: what there is, where it is, what to try."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from portico.cli.data import made_directory
from portico.server.server import Server


def after(announce: Callable[[str], None] | None, server: Server, data: str | None) -> Callable[[str], None] | None:
    """What announces the URL, and then the rest if there is a person to read it."""
    if not sys.stderr.isatty():
        return announce

    def told(url: str) -> None:
        if announce is None:
            print(f"Serving on {url}", file=sys.stderr)
        else:
            announce(url)
        tell(server, data, f"portico list tools {url}; portico call {url} system_info")

    return told


def tell(server: Server, data: str | None, attempts: str) -> None:
    services = [service.name for service in server.services]
    listed = len(server.faces.always) + 2 if server.front is not server else len(server.tools)
    count = f"{len(server.tools)} tools of {', '.join(services)}"
    if listed < len(server.tools):
        count += f"; {listed} are listed, find_tools finds the rest, --services {services[0]} lists all of one"
    print(f"  {count}\n  kept in {made_directory(data)}\n  try: {attempts}", file=sys.stderr, flush=True)


def waiting(server: Server, arguments: Any) -> None:
    """The same on stdio, where a person has started what a program should."""
    print(f"{server.name} waits on standard input for a client; --port serves over HTTP", file=sys.stderr, flush=True)
    if arguments.target is None:
        tell(server, arguments.data, "portico install, which adds it to the clients of this machine; or --port 8080")
