"""The console of a server that a command serves: attached before it runs, and announced with a link when it does."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from portico._lazy import LazyModule
from portico.cli import local_token
from portico.cli.data import made_directory
from portico.server.server import Server
from portico.wire.errors import UsageError

if TYPE_CHECKING:
    from portico.console import gate, site
else:
    gate = LazyModule("portico.console.gate")
    site = LazyModule("portico.console.site")

# Whose the secret in a file is that links are signed with.
CONSOLE = "console"
# The workers of one server sign with the same.
_SECRET = "PORTICO_CONSOLE_SECRET"


def attach_console(server: Server, arguments: argparse.Namespace, **options: Any) -> Any:
    """The ConsoleSite of a server that is about to be served over HTTP; None if there is to be none."""
    access = gate.ConsoleAccess.read(arguments.console)
    if access is None:
        return None
    port = arguments.port if arguments.unix is None and arguments.fd is None else 0
    how = "the command that serves prints a link when it starts"
    if port:
        how += f"; `portico console http://127.0.0.1:{port}` prints a new one"
    several = arguments.workers is not None or bool(os.environ.get("PORTICO_WORKERS"))
    return site.attach(server, access, secret(port, arguments.data, several=several), how=how, **options)


def secret(port: int, data: str | None = None, *, several: bool = False) -> bytes:
    """The same when a port is served again, so that pages that are open go on; and the same in `several` workers."""
    known = os.environ.pop(_SECRET, None)
    if known is None and port:
        known = local_token.find(port, data, CONSOLE)
    made = known or secrets.token_urlsafe(32)
    if port and known is None:
        # Where nothing can be written the link of this start is good all the same.
        with suppress(OSError, UsageError):
            made_directory(data)
            local_token.keep(made, port, data, CONSOLE)
    elif several:
        os.environ[_SECRET] = made
    return made.encode()


def announce_console(site: Any, announce: Callable[[str], None] | None, url: str) -> None:
    """Say where the server is, and then where its page is."""
    if announce is not None:
        announce(url)
    else:
        print(f"Serving on {url}", file=sys.stderr, flush=True)
    link = None if site is None else page_link(site, url)
    if link is not None:
        print(f"  to look at it, open {link}", file=sys.stderr, flush=True)


def page_link(site: Any, url: str) -> str | None:
    """A link that lets one browser in; where people log in, the place alone; None where no browser comes."""
    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname:
        return None
    home = urlunsplit((place.scheme, place.netloc, site.home, "", ""))
    if site.gate.access.scope is not None:
        return str(home)
    name = "127.0.0.1" if place.hostname in ("0.0.0.0", "::") else place.hostname
    if name not in ("localhost", "127.0.0.1", "::1"):
        return None
    netloc = place.netloc.replace(place.hostname, name)
    return str(site.gate.link(urlunsplit((place.scheme, netloc, site.home, "", ""))))
