"""From what was typed to an open Client, one piece of work with it, and its end: whatever happens, a server that was
started for the command ends too."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, redirect_stdout
from typing import Any

import msgspec

from portico import __version__
from portico.auth.errors import AuthorizationFailed
from portico.cli import local_token
from portico.cli.connection_errors import is_url as is_url
from portico.cli.connection_errors import parse_environment, parse_headers
from portico.cli.elicitation import TerminalQuestions, can_ask
from portico.cli.logging import set_log_level
from portico.cli.output import Printer
from portico.client.client import Client
from portico.client.input_handlers import MODES
from portico.protocol.errors import Error, MissingCapability, ProtocolError, TimedOut, UsageError
from portico.protocol.notifications import MessageParams
from portico.protocol.versions import MODERN
from portico.transports import importer
from portico.transports.deadlines import closing_deadline
from portico.transports.http_client.responses import HOW_TO_AUTHENTICATE

Target = str | list[str]
Work = Callable[[Client, Printer], Awaitable[int]]

ARROWS = {"sent": "→", "received": "←"}
TERMINATED = 128 + signal.SIGTERM
# The exit status where a server cannot be reached.
UNREACHABLE = 3
TIMEOUT_MARGIN_SECONDS = 0.25


def run_with_client(arguments: argparse.Namespace, work: Work, names: Collection[str] | None = None) -> int:
    """Return the exit status of the work, or UNREACHABLE if a server of a configuration of several is missing.

    `names`: the tools and prompts that the work is about; only their servers are waited for. Errors are raised.
    """
    # A server in this process logs the tracebacks of its tools, which are of the user's own file.
    here = isinstance(arguments.target, str) and importer.is_named(arguments.target)
    set_log_level("info" if arguments.verbose else "error" if here else "critical")
    printer = Printer(arguments.output)
    # Such a server may also print, which must not mix with the output of the command.
    with redirect_stdout(sys.stderr):
        try:
            status = asyncio.run(_run(arguments, printer, work, names))
            printer.flush()
            return status
        except Error as failure:
            raise explained(failure) from None
        finally:
            printer.clear()


def explained(failure: Error) -> Error:
    """The same failure, with what can be done about it at the shell."""
    if type(failure) is AuthorizationFailed:
        return AuthorizationFailed(
            str(failure).replace(HOW_TO_AUTHENTICATE, "Pass --token, set PORTICO_CLIENT_TOKEN, or use --oauth.")
        )
    if isinstance(failure, MissingCapability) and not can_ask():
        return ProtocolError(f"{failure}. Questions can be answered where there is a terminal.", code=failure.code)
    return failure


async def _run(
    arguments: argparse.Namespace, printer: Printer, work: Work, names: Collection[str] | None = None
) -> int:
    ended = _on_sigterm()
    try:
        async with (
            time_limit(arguments) as limit,
            client_for(arguments.target, arguments, printer, limit, awaited=names) as client,
        ):
            if arguments.verbose:
                await _request_logs(client)
            missing = client.missing_servers
            _report_missing(printer, missing)
            status = await work(client, printer)
            # A server may connect, and fail when it is asked for a list.
            failed = {name: reason for name, reason in client.missing_servers.items() if name not in missing}
            _report_missing(printer, failed)
            # What was asked for by its name, and was there, is complete without the other servers.
            return status or (UNREACHABLE if (missing or failed) and names is None else 0)
    except asyncio.CancelledError:
        if not ended:
            raise
        return TERMINATED


def _report_missing(printer: Printer, missing: dict[str, str]) -> None:
    for server, reason in missing.items():
        printer.aside(f"portico: {server} is missing: {reason}")


@asynccontextmanager
async def time_limit(arguments: argparse.Namespace) -> AsyncIterator[asyncio.Timeout]:
    """Bound a whole command by --timeout, with the end of a child process that does not end by itself.

    A login in a browser takes as long as its user does, so it is not bounded.
    """
    seconds = None if arguments.oauth else arguments.timeout
    if seconds is not None:
        closing_deadline.set(asyncio.get_running_loop().time() + seconds)
    try:
        # A request that is not answered in time has a message that says more, so it goes first.
        async with asyncio.timeout(None if seconds is None else seconds + TIMEOUT_MARGIN_SECONDS) as limit:
            yield limit
    except TimeoutError:
        raise TimedOut(f"the command did not finish within {seconds:g} s (--timeout)") from None


def _on_sigterm() -> list[int]:
    """Cancel this task on SIGTERM, so that a child is ended as it is on SIGINT. The list is not empty afterwards."""
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


async def _request_logs(client: Client) -> None:
    """Ask for all log messages. A handshake server without the logging capability would refuse, so it is not asked."""
    if client.revision >= MODERN or client.server_capabilities.logging is not None:
        await client.set_log_level("debug")


# The client


def client_for(
    target: Target,
    options: argparse.Namespace,
    printer: Printer,
    limit: asyncio.Timeout | None = None,
    *,
    awaited: Collection[str] | None = None,
) -> Client:
    """Return a Client for a TARGET, or for the words behind `--`; not open yet.

    The time limit is suspended while a user answers questions. The client waits for the servers of the tools and
    prompts in `awaited`, or for all if that is None.
    """
    if options.cwd is not None and not os.path.isdir(options.cwd):
        raise UsageError(f"there is no folder {options.cwd}")
    questions = TerminalQuestions(printer, limit) if can_ask() else None
    given: dict[str, Any] = {}
    if options.timeout is not None:
        given["timeout"] = options.timeout
    if options.trace:
        given["trace"] = lambda way, message: printer.aside(f"{ARROWS.get(way, way)} {_decoded(message)}")
    if options.verbose:
        given["log_handler"] = lambda message: printer.aside(_logged(message))
    if questions is not None:
        given["elicitation_handler"] = questions.answer
        given["elicitation_modes"] = MODES
    client = Client(
        target,
        name="portico",
        version=__version__,
        revision=options.revision,
        # Who types a command has decided what to ask for.
        undeclared=True,
        **connection_options(target, options),
        browser=None if questions is not None else _no_browser,
        **given,
    )
    client.awaited = awaited
    if questions is not None:
        questions.client = client
    return client


def connection_options(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """How a server is reached, as the line says it."""
    return {
        "headers": parse_headers(options.header),
        "env": parse_environment(options.env),
        "cwd": options.cwd,
        "auth": _auth(target, options),
    }


def _auth(target: Target, options: argparse.Namespace) -> str | None:
    """Return "oauth", a bearer token, or None. A token of the environment is for URLs only: a child inherits it."""
    if options.oauth:
        return "oauth"
    if options.token is not None:
        return str(options.token)
    if not isinstance(target, str) or not is_url(target):
        return None
    return local_token.for_request(target, getattr(options, "data", None))


async def _no_browser(url: str, redirect_uri: str) -> str:
    raise AuthorizationFailed("Logging in needs a terminal. Run this command once at one.")


def _decoded(message: bytes) -> str:
    return message.decode(errors="replace").rstrip("\n")


def _logged(message: MessageParams) -> str:
    text = message.data if isinstance(message.data, str) else msgspec.json.encode(message.data).decode()
    return f"{message.level}{f' {message.logger}' if message.logger else ''}: {text}"
