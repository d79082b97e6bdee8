"""Run one action of a command with an open Client, and end a started server afterwards whatever happens."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from typing import Any

import msgspec

from portico import __version__
from portico.auth.errors import AuthorizationError
from portico.cli import local_token
from portico.cli.connection_errors import is_url as is_url, parse_environment, parse_headers
from portico.cli.elicitation import TerminalElicitation, is_interactive
from portico.cli.logging import configure_logging
from portico.cli.output import Printer
from portico.client.client import Client
from portico.client.input_handlers import ELICITATION_MODES
from portico.protocol.errors import MissingClientCapability, PorticoError, ProtocolError, RequestTimeout, UsageError
from portico.protocol.notifications import LogMessageParams
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.transports import importer
from portico.transports.deadlines import closing_deadline
from portico.transports.http_client.responses import HOW_TO_AUTHENTICATE, REJECTED_TOKEN

Target = str | list[str]
ClientAction = Callable[[Client, Printer], Awaitable[int]]

DIRECTION_MARKS = {"sent": "→", "received": "←"}
TERMINATED = 128 + signal.SIGTERM
# Exit status if a server cannot be reached.
UNREACHABLE = 3
# Added to --timeout, so that a request timeout, which has the better message, fires first.
TIMEOUT_MARGIN_SECONDS = 0.25


def run_with_client(arguments: argparse.Namespace, action: ClientAction, names: Collection[str] | None = None) -> int:
    """Run the action and return its exit status, or UNREACHABLE if a server of a multi-server configuration is missing.

    `names`: the tools and prompts that the action uses; only their servers are waited for. Errors are raised.
    """
    # A server in this process logs the tracebacks of its tools, which help the author of that file.
    in_process = isinstance(arguments.target, str) and importer.is_import_string(arguments.target)
    configure_logging("info" if arguments.verbose else "error" if in_process else "critical")
    printer = Printer(arguments.format)
    # Such a server may also print, which must not mix with the command's output.
    # The Printer took the original stream above, so that results still go to standard output.
    with redirect_stdout(sys.stderr):
        try:
            status = asyncio.run(_run(arguments, printer, action, names))
            printer.flush()
            return status
        except PorticoError as failure:
            raise add_cli_hint(failure, arguments) from None
        finally:
            printer.clear_status()


def add_cli_hint(failure: PorticoError, arguments: argparse.Namespace) -> PorticoError:
    """Return the failure with a hint about the matching command-line option."""
    # Exactly this class: rebuilding a subclass here would lose its type and its details.
    if type(failure) is AuthorizationError:
        hint = "Pass --token, set PORTICO_CLIENT_TOKEN, or run `portico login`."
        text = str(failure).replace(HOW_TO_AUTHENTICATE, hint)
        source = _token_source(arguments) if REJECTED_TOKEN in text else ""
        # A user who passed no token has to learn which one was sent, such as that of an earlier server on this port.
        return AuthorizationError(f"{text.rstrip('.')}. The token is from {source}. {hint}" if source else text)
    if isinstance(failure, MissingClientCapability) and not is_interactive():
        return ProtocolError(f"{failure}. Run the command in a terminal to answer elicitations.", code=failure.code)
    return failure


async def _run(
    arguments: argparse.Namespace, printer: Printer, action: ClientAction, names: Collection[str] | None = None
) -> int:
    signals = _on_sigterm()
    opened: list[Client] = []
    try:
        async with time_limit(arguments, opened) as limit:
            opened.append(create_client(arguments.target, arguments, printer, limit, awaited=names))
            return await _run_action(arguments, printer, opened[0], action, names)
    except asyncio.CancelledError:
        # Cancelled by Ctrl-C or by the caller, which the caller handles; only SIGTERM has its exit status here.
        if not signals:
            raise
        return TERMINATED


async def _run_action(
    arguments: argparse.Namespace,
    printer: Printer,
    unopened: Client,
    action: ClientAction,
    names: Collection[str] | None,
) -> int:
    async with unopened as client:
        if arguments.verbose:
            await _request_logs(client)
        missing = client.missing_servers
        _report_missing(printer, missing)
        status = await action(client, printer)
        # A server may connect and then fail to list its tools.
        failed = {name: reason for name, reason in client.missing_servers.items() if name not in missing}
        _report_missing(printer, failed)
        # A request by name that succeeded does not depend on the missing servers.
        return status or (UNREACHABLE if (missing or failed) and names is None else 0)


def _report_missing(printer: Printer, missing: dict[str, str]) -> None:
    for server, reason in missing.items():
        printer.print_error(f"portico: {server} is not available: {reason}")


@asynccontextmanager
async def time_limit(arguments: argparse.Namespace, clients: Sequence[Client] = ()) -> AsyncIterator[asyncio.Timeout]:
    """Limit the whole command to --timeout, including the termination of a child process.

    A browser login takes as long as its user needs, so it is not limited. `clients` may know why nothing was answered.
    """
    seconds = None if arguments.oauth else arguments.timeout
    if seconds is not None:
        # Closing a child process waits for it to exit; the same deadline limits that wait.
        closing_deadline.set(asyncio.get_running_loop().time() + seconds)
    try:
        # A request timeout has a more specific message, so it gets a margin to fire first.
        async with asyncio.timeout(None if seconds is None else seconds + TIMEOUT_MARGIN_SECONDS) as limit:
            yield limit
    except TimeoutError:
        hint = "".join(client.upstream.timeout_hint for client in clients)
        raise RequestTimeout(f"the command did not finish within {seconds:g} s (--timeout){hint}") from None


def _on_sigterm() -> list[int]:
    """Cancel this task on SIGTERM, so that a child is terminated as on SIGINT.

    Return a list that is non-empty after the signal.
    """
    signals: list[int] = []
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        signals.append(signal.SIGTERM)
        task.cancel()

    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_signal)
    except (NotImplementedError, ValueError, RuntimeError):
        pass  # signals are not supported on this platform or in this thread
    return signals


async def _request_logs(client: Client) -> None:
    """Request all log messages. A handshake server without the logging capability would reject the request."""
    if client.protocol_version >= FIRST_MODERN_VERSION or client.server_capabilities.logging is not None:
        await client.set_log_level("debug")


# The client


def create_client(
    target: Target,
    options: argparse.Namespace,
    printer: Printer,
    limit: asyncio.Timeout | None = None,
    *,
    awaited: Collection[str] | None = None,
) -> Client:
    """Return an unopened Client for a TARGET, or for the words after `--`.

    The time limit is suspended while a user answers elicitations. The client waits for the servers of the tools and
    prompts in `awaited`, or for all servers if it is None.
    """
    if options.cwd is not None and not os.path.isdir(options.cwd):
        raise UsageError(f"directory {options.cwd} not found")
    # Without a terminal the capability is not declared, so that servers do not send requests that cannot be answered.
    elicitation = TerminalElicitation(printer, limit) if is_interactive() else None
    client_options: dict[str, Any] = {}
    if options.timeout is not None:
        client_options["timeout"] = options.timeout
    if options.trace:
        client_options["on_message_bytes"] = lambda direction, message: printer.print_error(
            f"{DIRECTION_MARKS.get(direction, direction)} {_message_text(message)}"
        )
    if options.verbose:
        client_options["log_handler"] = lambda message: printer.print_error(_format_log_message(message))
    if elicitation is not None:
        client_options["elicitation_handler"] = elicitation.handle
        client_options["elicitation_modes"] = ELICITATION_MODES
    client = Client(
        target,
        client_name="portico",
        client_version=__version__,
        protocol_version=options.protocol_version,
        # The user decides what to request, even if the server does not declare it.
        ignore_capabilities=True,
        **connection_options(target, options),
        open_browser=None if elicitation is not None else _no_browser,
        **client_options,
    )
    # Without it, a call to one server of a configuration would wait for the slowest of the others.
    client.awaited = awaited
    if elicitation is not None:
        elicitation.client = client
    return client


def connection_options(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """Return the Client options for headers, environment, working directory and authentication."""
    return {
        "headers": parse_headers(options.header),
        "env": parse_environment(options.env),
        "cwd": options.cwd,
        "auth": _auth(target, options),
    }


def _auth(target: Target, options: argparse.Namespace) -> str | None:
    """Return "oauth", a bearer token, or None.

    A token from the environment is used for URLs only: child processes inherit it anyway.
    """
    # Checked first: a user who asks for a login does not want the token of the environment.
    if options.oauth:
        return "oauth"
    if options.token is not None:
        return str(options.token)
    if not isinstance(target, str) or not is_url(target):
        return None
    token = local_token.for_request(target, getattr(options, "data", None))
    if token is not None or any(header.lower().startswith("authorization:") for header in options.header):
        return token
    # Imported here: the OAuth client is not needed for local servers.
    from portico.client.auth import has_stored_token

    return "oauth" if has_stored_token(target) else None


def _token_source(options: argparse.Namespace) -> str:
    """Return the variable or file of a token that the user did not pass as an option, or "" otherwise."""
    target = options.target
    explicit = options.token is not None or any(line.lower().startswith("authorization:") for line in options.header)
    if explicit or not isinstance(target, str) or not is_url(target):
        return ""
    return local_token.with_source(target, getattr(options, "data", None))[1]


async def _no_browser(url: str, redirect_uri: str) -> str:
    raise AuthorizationError("Logging in requires a terminal. Run this command once in a terminal.")


def _message_text(message: bytes) -> str:
    return message.decode(errors="replace").rstrip("\n")


def _format_log_message(message: LogMessageParams) -> str:
    text = message.data if isinstance(message.data, str) else msgspec.json.encode(message.data).decode()
    return f"{message.level}{f' {message.logger}' if message.logger else ''}: {text}"
