"""`portico console`: inspect a server in a browser."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from portico.auth.url_policy import is_loopback_name
from portico.cli import local_token
from portico.cli.connect import connection_options, is_url
from portico.cli.logging import configure_logging
from portico.cli.specs import parse_target_command
from portico.protocol.errors import UsageError
from portico.server.http import serve_http
from portico.server.server import Server
from portico.store.data_directory import resolve_data_directory
from portico.transports import importer
from portico.transports.event_loop import new_event_loop
from portico_console.cli.console_link import CONSOLE, console_url, session_secret, store_key
from portico_console.console import Console
from portico_console.session_auth import ConsoleAccess, ConsoleAuthenticator
from portico_console.site import CONSOLE_PATH, ROOT_PATH, SAVED_CALLS_FILE, attach_console


def run(words: list[str]) -> int:
    """Run `portico console`."""
    arguments = parse_target_command("console", words)
    configure_logging("warning")
    local_server = _served_here(arguments)
    if local_server is not None:
        print(local_server)
        return 0
    _check_file(arguments.target)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(arguments))
    return 0


def _served_here(arguments: argparse.Namespace) -> str | None:
    """Return a new login link for a server that this user serves, or None."""
    target = arguments.target
    if not isinstance(target, str) or not is_url(target):
        return None
    url = urlsplit(target)
    if url.path not in ("", ROOT_PATH, CONSOLE_PATH) or not is_loopback_name(url.hostname or ""):
        return None
    key = local_token.token_for_url(target, arguments.data, CONSOLE)
    if key is None:
        endpoint = f"{target.rstrip('/')}/mcp"
        raise UsageError(
            f"this user serves nothing at {target}; the endpoint of a server has a path such as {endpoint}"
        )
    page = f"{url.scheme}://{url.netloc}{url.path or ROOT_PATH}"
    return ConsoleAuthenticator(ConsoleAccess(), key.encode(), _reject_login).login_url(page)


async def _reject_login(id: str, expires: float) -> bool:
    raise UsageError("login links are not redeemed here")


def _check_file(target: Any) -> None:
    """Raise UsageError for a missing file here, not in the page."""
    if isinstance(target, str) and not importer.is_command_line(target):
        module_path = target if target.endswith((".py", ".json", ".toml")) else target.rpartition(":")[0]
        if module_path.endswith((".py", ".json", ".toml")) and not os.path.isfile(module_path):
            raise UsageError(f"file {module_path} not found")


async def _serve(arguments: argparse.Namespace) -> None:
    # An empty server that only hosts the page; its endpoint requires an unknown token.
    door = Server("portico console")
    saved = resolve_data_directory(arguments.data) / SAVED_CALLS_FILE
    console = Console(
        mode="console", can_open_targets=True, token_for=local_token.token_for_url, saved_calls_file=saved
    )
    target: Any = arguments.target
    if isinstance(target, str) and target.endswith(".toml"):
        raise UsageError(
            f"{target} is a gateway file: run `portico serve {target} --transport http`, which has a console"
        )
    console.add_initial_target(target, arguments.protocol_version, **connection_options(target, arguments))
    site = attach_console(
        door,
        ConsoleAccess(),
        session_secret(arguments.port, arguments.data),
        login_hint="run `portico console` again to get a new link",
        make=lambda: console,
    )

    def ready(url: str) -> None:
        store_key(site, url, arguments.data)
        # The link is the output of this command, so it goes to standard output wherever that leads.
        print(console_url(site, url), flush=True)
        print("  open this link to inspect the server; press Ctrl-C to stop", file=sys.stderr, flush=True)

    await serve_http(door, on_ready=ready, host="127.0.0.1", port=arguments.port, token=local_token.generate_token())
