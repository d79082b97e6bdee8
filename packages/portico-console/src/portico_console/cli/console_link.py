"""The console of a server that a command serves: attached before it runs, and announced with a link when it does."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit, urlunsplit

from portico._lazy import LazyModule
from portico.cli import local_token
from portico.cli.data_dir import made_directory
from portico.cli.terminal_text import is_terminal
from portico.protocol.errors import UsageError
from portico.server.server import Server

if TYPE_CHECKING:
    from portico_console import session_auth, site
else:
    session_auth = LazyModule("portico_console.session_auth")
    site = LazyModule("portico_console.site")

# Whose the secret in a file is that links are signed with.
CONSOLE = "console"
# The workers of one server sign with the same.
_SECRET = "PORTICO_CONSOLE_SECRET"
HOW_TO_ENTER = "run `portico console` with the address of this page: it prints a link"


def attach_console(server: Server, arguments: argparse.Namespace, **options: Any) -> Any:
    """The ConsoleSite of a server that is about to be served over HTTP; None if there is to be none."""
    access = session_auth.ConsoleAccess.read(arguments.console)
    if access is None:
        return None
    port = arguments.port if arguments.unix is None and arguments.fd is None else 0
    several = arguments.workers is not None or bool(os.environ.get("PORTICO_WORKERS"))
    return site.attach(server, access, secret(port, arguments.data, several=several), how=HOW_TO_ENTER, **options)


def secret(port: int, data: str | None = None, *, several: bool = False) -> bytes:
    """Return the key that links are signed with.

    It is the same when a port is served again, so that open pages go on working, and the same in `several` workers.
    """
    value = os.environ.pop(_SECRET, None)
    if value is not None:
        # This process is a worker. It starts no others, and its child processes do not need the key.
        return value.encode()
    value = (local_token.find(port, data, CONSOLE) if port else None) or secrets.token_urlsafe(32)
    if several:
        os.environ[_SECRET] = value
    return value.encode()


def announce_console(site: Any, announce: Callable[[str], None] | None, data: str | None, url: str) -> None:
    """Print the server's URL, and then how to open its console."""
    if announce is not None:
        announce(url)
    else:
        print(f"Serving on {url}", file=sys.stderr, flush=True)
    if site is not None and (line := describe_link(site, url, data, sys.stderr)):
        print(f"  Console: {line}", file=sys.stderr, flush=True)


def describe_link(site: Any, url: str, data: str | None, stream: TextIO | None) -> str | None:
    """Return how to open the console, for a line in `stream`; None where no browser comes.

    A link makes its reader the owner, so only a terminal shows it. A log names the command that prints one, which
    works for the user who runs the server, because the key is in a file that only this user can read.
    """
    link = page_link(site, url)
    if link is None:
        return None
    is_stored = store_key(site, url, data)
    page, _, token = link.partition("#")
    if not token or is_terminal(stream):
        return link
    if not is_stored:
        return f"{page}, with the token of the server; a server started at a terminal prints a link"
    option = f" --data {quote(data)}" if data else ""
    return f"run `portico console {page}{option}` for a link"


def store_key(site: Any, url: str, data: str | None) -> bool:
    """Write the key of links to its file, and return whether it is there.

    The file has the port in its name, which is known for certain only when the server listens. Where nothing can be
    written, the links of this start work all the same.
    """
    key, port = site.gate.secret.decode(), urlsplit(url).port
    if not port:
        return False
    if local_token.find(port, data, CONSOLE) == key:
        return True
    try:
        made_directory(data)
        local_token.keep(key, port, data, CONSOLE)
    except (OSError, UsageError):
        return False
    return True


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
