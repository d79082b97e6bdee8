"""Messages at the start of the built-in services at a terminal: the tools, their data, commands to try."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable

from portico.cli.data_dir import ensure_data_dir
from portico.server.server import Server
from portico.store.data_directory import resolve_data_directory

# Tools that need no arguments and change nothing, the most informative first.
_SUGGESTED = ("memory_status", "list_tasks", "system_info", "live_system_info", "eventlog_list_logs")


def after(
    announce: Callable[[str], None] | None, server: Server, arguments: argparse.Namespace
) -> Callable[[str], None] | None:
    """Return a function that announces the URL, followed by the other lines if standard error is a terminal."""
    if not sys.stderr.isatty():
        return announce

    def announce_all(url: str) -> None:
        if announce is None:
            print(f"Serving on {url}", file=sys.stderr)
        else:
            announce(url)
        _describe(server, arguments, *_commands(server, arguments, url))

    return announce_all


def _commands(server: Server, arguments: argparse.Namespace, url: str) -> list[str]:
    """Return commands that work with this server as it is installed here."""
    suggested_names = [name for name in _SUGGESTED if server.tools.get(name) is not None]
    commands = [f"portico list tools {url}", *(f"portico call {url} {name}" for name in suggested_names[:1])]
    # Without it these commands would not find the token.
    folder = resolve_data_directory(arguments.data)
    prefix = "" if folder == resolve_data_directory() else f"PORTICO_DATA={folder} "
    return [f"{prefix}{command}" for command in commands]


def _describe(server: Server, arguments: argparse.Namespace, *commands: str) -> None:
    services = [service.name for service in server.services]
    *head, last = services
    names = f"{', '.join(head)} and {last}" if head else last
    listed = len(server.tool_search.always) + 2 if server.public_handler is not server else len(server.tools)
    lines = [f"{len(server.tools)} tools from {names}."]
    if listed < len(server.tools):
        lines[0] += f" {listed} are listed; use find_tools to find the others."
    lines += [f"{name}: {_required_extra(reason)}" for name, reason in getattr(arguments, "unavailable", {}).items()]
    lines += [f"Data: {ensure_data_dir(arguments.data)}", "Try:", *(f"  {command}" for command in commands)]
    print("".join(f"  {line}\n" for line in lines), end="", file=sys.stderr, flush=True)


def _required_extra(reason: str) -> str:
    """Return the extra that a reason names, or the reason itself."""
    extra = re.search(r"portico\[[\w,-]+\]", reason)
    return reason if extra is None or reason.startswith("need ") else f"needs {extra[0]}"


def print_stdio_hint(server: Server, arguments: argparse.Namespace) -> None:
    """Print a hint on stdio if a user started a server that a client should start."""
    print(
        f"{server.name} is waiting for a client on stdin (use --port to serve over HTTP)", file=sys.stderr, flush=True
    )
    if arguments.target is None:
        _describe(server, arguments, "portico install", "portico serve --port 8080")
