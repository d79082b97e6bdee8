"""A service at the shell: an action is a call of one of its tools, in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from portico import __version__
from portico.cli.output import Printer
from portico.client.client import Client
from portico.protocol.errors import UsageError
from portico.server.registry.service import Service
from portico.server.server import Server

# What the history of a memory or a task says about changes that were made here.
WHO = "shell"
LONGEST_INPUT = 50_000_000


class ServiceShell:
    """What was typed, where to print, and a client of the service."""

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.printer = Printer(arguments.output)
        self.show = self.printer.show
        self._client = client

    async def call(self, tool: str, **given: Any) -> dict[str, Any]:
        """The structured result of a tool. An argument that is None is left out. Raises ToolError if it refuses."""
        result = await self._client.call_tool(tool, {name: value for name, value in given.items() if value is not None})
        structured: dict[str, Any] = result.structured
        return structured


@asynccontextmanager
async def opened(service: Service, arguments: argparse.Namespace) -> AsyncIterator[ServiceShell]:
    server = Server("portico", version=__version__)
    server.add(service)
    async with Client(server, name=WHO) as client:
        shell = ServiceShell(client, arguments)
        yield shell
        shell.printer.flush()


def required(words: list[str], what: str) -> list[str]:
    if not words:
        raise UsageError(f"{what} is required")
    return words


def text_of(words: list[str]) -> str:
    """The words as one text; standard input for `-`."""
    if words == ["-"]:
        return sys.stdin.read(LONGEST_INPUT)
    return " ".join(required(words, "a text"))
