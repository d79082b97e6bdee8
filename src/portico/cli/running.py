"""One errand to a server: the way there is opened, the errand done, the way closed. Whatever ends it, a server that we
have started ends too."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout

from portico.auth.errors import AuthorizationFailed
from portico.cli.connect import client_for
from portico.cli.logs import set_log_level
from portico.cli.printer import Printer
from portico.cli.questions import can_ask
from portico.client.client import Client
from portico.wire.errors import Error, MissingCapability, ProtocolError
from portico.wire.revisions import MODERN

Errand = Callable[[Client, Printer], Awaitable[int]]

TERMINATED = 128 + signal.SIGTERM


def run_errand(arguments: argparse.Namespace, errand: Errand) -> int:
    """Its exit status. Errors are left to whoever called."""
    # A server in this process logs what went wrong in a tool, traceback and all: for those who ask for it.
    set_log_level("info" if arguments.verbose else "critical")
    printer = Printer(arguments.output)
    # It may also print, and our output is not its.
    with redirect_stdout(sys.stderr):
        try:
            status = asyncio.run(_run(arguments, printer, errand))
            printer.flush()
            return status
        except Error as failure:
            raise _explained(failure) from None
        finally:
            printer.clear()


def _explained(failure: Error) -> Error:
    """With what can be done about it from here."""
    if type(failure) is AuthorizationFailed:
        return AuthorizationFailed(
            str(failure).replace('auth="oauth"', "--oauth; a token goes into PORTICO_CLIENT_TOKEN")
        )
    if isinstance(failure, MissingCapability) and not can_ask():
        return ProtocolError(f"{failure}. Questions can be answered where there is a terminal.", code=failure.code)
    return failure


async def _run(arguments: argparse.Namespace, printer: Printer, errand: Errand) -> int:
    ended = _on_sigterm()
    try:
        async with client_for(arguments.target, arguments, printer) as client:
            if arguments.verbose:
                await _hear_all(client)
            return await errand(client, printer)
    except asyncio.CancelledError:
        if not ended:
            raise
        return TERMINATED


def _on_sigterm() -> list[int]:
    """SIGTERM leaves by the same door as SIGINT does, past the end of the child. Gives a list that says so."""
    ended: list[int] = []
    task = asyncio.current_task()
    assert task is not None

    def leave() -> None:
        ended.append(signal.SIGTERM)
        task.cancel()

    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
    except (NotImplementedError, ValueError, RuntimeError):
        pass  # no signals on this system, or not in this thread
    return ended


async def _hear_all(client: Client) -> None:
    """A server of the handshake that has nothing to log would refuse to be asked."""
    if client.revision >= MODERN or client.server_capabilities.logging is not None:
        await client.set_log_level("debug")
