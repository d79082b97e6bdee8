"""The console of a server that a command serves: attached before it runs, and announced with a link afterwards."""

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
from portico.cli.data_dir import ensure_data_dir
from portico.cli.terminal_text import is_terminal
from portico.protocol.errors import UsageError
from portico.server.server import Server

if TYPE_CHECKING:
    from portico_console import site
else:
    site = LazyModule("portico_console.site")

# The role of the stored secret that signs links.
CONSOLE = "console"
# Shares the secret between the workers of one server.
_SECRET = "PORTICO_CONSOLE_SECRET"
HOW_TO_ENTER = "run `portico console` with the address of this page to get a link"


def attach_console(server: Server, arguments: argparse.Namespace, **options: Any) -> Any:
    """Attach a console to a server before it is served over HTTP; return its ConsoleSite, or None if disabled."""
    from portico_console import session_auth

    access = session_auth.ConsoleAccess.parse(arguments.console)
    if access is None:
        return None
    port = arguments.port if arguments.unix_socket is None and arguments.fd is None else 0
    several = arguments.workers is not None or bool(os.environ.get("PORTICO_WORKERS"))
    return site.attach_console(
        server, access, session_secret(port, arguments.data, shared=several), login_hint=HOW_TO_ENTER, **options
    )


def session_secret(port: int, data: str | None = None, *, shared: bool = False) -> bytes:
    """Return the key that signs links.

    It is the same when a port is served again, so that open pages keep working, and the same in all workers if
    `shared`.
    """
    value = os.environ.pop(_SECRET, None)
    if value is not None:
        # This process is a worker. It starts no others, and its child processes do not need the key.
        return value.encode()
    value = (local_token.find_token(port, data, CONSOLE) if port else None) or secrets.token_urlsafe(32)
    if shared:
        os.environ[_SECRET] = value
    return value.encode()


def announce_console(site: Any, announce: Callable[[str], None] | None, data: str | None, url: str) -> None:
    """Print the server's URL and how to open its console."""
    if announce is not None:
        announce(url)
    else:
        print(f"Serving on {url}", file=sys.stderr, flush=True)
    if site is not None and (line := describe_link(site, url, data, sys.stderr)):
        print(f"  Console: {line}", file=sys.stderr, flush=True)


def describe_link(site: Any, url: str, data: str | None, stream: TextIO | None) -> str | None:
    """Return how to open the console, for a line in `stream`; None if no browser can connect.

    A link makes its reader the owner, so only a terminal shows it. A log shows the command that prints one, which works
    for the user who runs the server, because the key is in a file that only this user can read.
    """
    link = console_url(site, url)
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
    """Store the key that signs links in its file, and return whether it is stored.

    The file name contains the port, which is known for certain only when the server listens. If nothing can be written,
    the links of this process still work.
    """
    key, port = site.authenticator.secret.decode(), urlsplit(url).port
    if not port:
        return False
    if local_token.find_token(port, data, CONSOLE) == key:
        return True
    try:
        ensure_data_dir(data)
        local_token.save_token(key, port, data, CONSOLE)
    except (OSError, UsageError):
        return False
    return True


def console_url(site: Any, url: str) -> str | None:
    """Return a login link; with a login, the URL of the page; None if no browser can connect."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    home = urlunsplit((parts.scheme, parts.netloc, site.home_path, "", ""))
    if site.authenticator.access.scope is not None:
        return str(home)
    name = "127.0.0.1" if parts.hostname in ("0.0.0.0", "::") else parts.hostname
    if name not in ("localhost", "127.0.0.1", "::1"):
        return None
    netloc = parts.netloc.replace(parts.hostname, name)
    return str(site.authenticator.login_url(urlunsplit((parts.scheme, netloc, site.home_path, "", ""))))
