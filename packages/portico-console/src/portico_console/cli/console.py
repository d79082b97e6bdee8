"""`portico console`"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from portico.auth.url_policy import names_loopback
from portico.cli import local_token
from portico.cli.connect import connection_options, is_url
from portico.cli.logging import set_log_level
from portico.cli.specs import parse
from portico.protocol.errors import UsageError
from portico.server.http import serve_http
from portico.server.server import Server
from portico.store.data_directory import data_directory
from portico.transports.event_loop import new_loop
from portico_console.cli.console_link import CONSOLE, page_link, secret, store_key
from portico_console.console import Console
from portico_console.session_auth import ConsoleAccess, ConsoleGate
from portico_console.site import PATH, ROOT, SAVED, attach


def run(words: list[str]) -> int:
    arguments = parse("console", words)
    set_log_level("warning")
    known = _served_here(arguments)
    if known is not None:
        print(known)
        return 0
    _check_file(arguments.target)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(arguments))
    return 0


def _served_here(arguments: argparse.Namespace) -> str | None:
    """A new link to the page of a server that this user serves."""
    target = arguments.target
    if not isinstance(target, str) or not is_url(target):
        return None
    place = urlsplit(target)
    if place.path not in ("", ROOT, PATH) or not names_loopback(place.hostname or ""):
        return None
    key = local_token.for_url(target, arguments.data, CONSOLE)
    if key is None:
        raise UsageError(f"this user serves nothing at {target}; the endpoint of a server is such as {target}/mcp")
    page = f"{place.scheme}://{place.netloc}{place.path or ROOT}"
    return ConsoleGate(ConsoleAccess(), key.encode(), _never).link(page)


async def _never(id: str, expires: float) -> bool:
    raise UsageError("links are used elsewhere")


def _check_file(target: Any) -> None:
    """What is misspelt is said here, and not in the page."""
    if isinstance(target, str) and " " not in target:
        place = target if target.endswith((".py", ".json", ".toml")) else target.rpartition(":")[0]
        if place.endswith((".py", ".json", ".toml")) and not os.path.isfile(place):
            raise UsageError(f"there is no file {place}")


async def _serve(arguments: argparse.Namespace) -> None:
    # Only a door for the page: it offers nothing itself, and its endpoint is closed.
    door = Server("portico console")
    saved = data_directory(arguments.data) / SAVED
    console = Console(mode="console", opens=True, auth_for=local_token.for_url, saved=saved)
    target: Any = arguments.target
    if isinstance(target, str) and target.endswith(".toml"):
        raise UsageError(f"{target} is for a gateway: `portico serve {target} --transport http` has a console too")
    console.name_target(target, arguments.revision, **connection_options(target, arguments))
    site = attach(
        door,
        ConsoleAccess(),
        secret(arguments.port, arguments.data),
        how="run `portico console` again: it prints a new link",
        make=lambda: console,
    )

    def ready(url: str) -> None:
        store_key(site, url, arguments.data)
        # The link is the output of this command, so it goes to standard output wherever that leads.
        print(page_link(site, url), flush=True)
        print("  open this link to look at the server; Ctrl-C ends it", file=sys.stderr, flush=True)

    await serve_http(door, ready=ready, host="127.0.0.1", port=arguments.port, token=local_token.make())
