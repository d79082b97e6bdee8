"""In-process session of a service for the shell commands: each action calls one of its tools."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from portico import __version__
from portico.cli.files import read_text
from portico.cli.output import Printer
from portico.client.client import Client
from portico.protocol.errors import UsageError
from portico.server.registry.service import Service
from portico.server.server import Server
from portico.store.database import parse_database_url
from portico.store.keys import MEMORY

# Actor recorded in the history for changes made by the shell commands.
WHO = "shell"
MAX_INPUT_BYTES = 50_000_000


class ServiceSession:
    """Parsed arguments, output, and a client of the service."""

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.printer = Printer(arguments.format)
        self.show = self.printer.print_value
        self._client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its structured result. Arguments that are None are omitted. Raises `ToolError`."""
        result = await self._client.call_tool(
            tool, {name: value for name, value in arguments.items() if value is not None}
        )
        structured: dict[str, Any] = result.structured
        return structured


@asynccontextmanager
async def opened(service: Service, arguments: argparse.Namespace) -> AsyncIterator[ServiceSession]:
    """Open a service and yield a session for it."""
    server = Server("portico", version=__version__)
    server.add(service)
    async with Client(server, client_name=WHO) as client:
        shell = ServiceSession(client, arguments)
        try:
            yield shell
        finally:
            shell.printer.flush()


def require_database(url: str) -> None:
    """Raise `UsageError` if the store is a file that does not exist, because opening it would create it."""
    engine, database = parse_database_url(url)
    if engine == "sqlite" and database != MEMORY and not os.path.exists(database):
        raise UsageError(f"database {database} not found; check --store and PORTICO_STORE")


def require_arguments(arguments: list[str], label: str) -> list[str]:
    """Return the arguments. Raises `UsageError` if there are none."""
    if not arguments:
        raise UsageError(f"{label} is required")
    return arguments


def text_of(words: list[str]) -> str:
    """Return the words as one text, or standard input for `-`."""
    if words == ["-"]:
        return read_text("-", MAX_INPUT_BYTES)
    return " ".join(require_arguments(words, "a text"))
