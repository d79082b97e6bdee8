"""`portico hub`: start, stop and observe the hub."""

from __future__ import annotations

import argparse
import os
import sys
import time
from _socket import socket
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec

from portico.cli.output import Printer, format_plain_table
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_control, to_single_line
from portico.protocol.errors import ConnectError, UsageError
from portico_gateway.hub import location
from portico_gateway.hub.bridge import PROTOCOL
from portico_gateway.hub.location import HubError

# An upgrade waits for the handshake of each new process; `npx` may download a package first.
CONTROL_TIMEOUT_SECONDS = 300.0
STOP_TIMEOUT_SECONDS = 30.0
MAX_RESPONSE_BYTES = 16 * 1024 * 1024


def run(words: list[str]) -> int:
    arguments = parser_for("hub").parse(words)
    if arguments.names and arguments.action not in ("restart", "upgrade", "logs"):
        raise UsageError(f"portico hub {arguments.action} takes no names")
    try:
        with _directory() as directory:
            return _ACTIONS[arguments.action](directory, arguments)
    except HubError as failure:
        raise ConnectError(str(failure)) from None


@contextmanager
def _directory() -> Iterator[int]:
    directory = location.open_directory()
    try:
        yield directory
    finally:
        os.close(directory)


def send_command(directory: int, control: str, names: list[str]) -> Any:
    """Send a command to the running hub and return its result, or None if no hub runs. Raises HubError."""
    connection = location.connect(directory)
    if connection is None:
        return None
    with closing(connection):
        connection.settimeout(CONTROL_TIMEOUT_SECONDS)
        request = {"protocol": PROTOCOL, "control": control, "names": names}
        connection.sendall(msgspec.json.encode(request) + b"\n")
        response = _read_all(connection)
    status, _, body = response.partition(b"\n")
    if status != b"ok":
        raise HubError(status.decode(errors="replace") or "the hub closed the connection")
    return msgspec.json.decode(body)


def _read_all(connection: socket) -> bytes:
    response = bytearray()
    try:
        while data := connection.recv(64 * 1024):
            response += data
            if len(response) > MAX_RESPONSE_BYTES:
                raise HubError(f"the hub sent more than {MAX_RESPONSE_BYTES} bytes")
    except TimeoutError:
        raise HubError(f"the hub did not answer within {CONTROL_TIMEOUT_SECONDS:g} s") from None
    return bytes(response)


def _start(directory: int, arguments: argparse.Namespace) -> int:
    location.connect_or_start(directory).close()
    print("The hub is running.")
    return 0


def _stop(directory: int, arguments: argparse.Namespace) -> int:
    if send_command(directory, "stop", []) is None:
        print("The hub is not running.")
        return 0
    _wait_until_stopped(directory)
    print("The hub has stopped.")
    return 0


def _wait_until_stopped(directory: int) -> None:
    end = time.monotonic() + STOP_TIMEOUT_SECONDS
    while location.is_running(directory):
        if time.monotonic() > end:
            raise HubError(f"the hub did not stop within {STOP_TIMEOUT_SECONDS:g} s")
        time.sleep(0.02)


def _restart(directory: int, arguments: argparse.Namespace) -> int:
    if arguments.names:
        return _replace(directory, arguments)
    # Bridges may have started the next hub before this command sees the end of the old one.
    if send_command(directory, "restart", []) is None:
        print("The hub was not running.")
    return _start(directory, arguments)


def _replace(directory: int, arguments: argparse.Namespace) -> int:
    result = send_command(directory, arguments.action, arguments.names)
    if result is None:
        # A name that no running server has is an error, with and without a hub.
        _check_names(arguments.names, set())
        print("The hub is not running.")
        return 0
    for name in sorted(set(result["replaced"])):
        count = result["replaced"].count(name)
        print(f"{to_single_line(name)}: {count} {'process' if count == 1 else 'processes'}")
    for problem in result["problems"]:
        print(f"portico: {escape_control(problem)}; the old process is still used", file=sys.stderr)
    if not result["replaced"] and not result["problems"]:
        print("No process was running.")
    return 1 if result["problems"] else 0


def _status(directory: int, arguments: argparse.Namespace) -> int:
    status = send_command(directory, "status", [])
    printer = Printer(arguments.format)
    if printer.is_json:
        printer.print_json({"running": False} if status is None else {"running": True, **status})
        printer.flush()
        return 0 if status is not None else 3
    if status is None:
        print("The hub is not running.")
        return 3
    print(f"hub {status['version']}, process {status['pid']}, {status['sessions']} hosts, {status['directory']}")
    rows = [
        (
            to_single_line(server["name"]),
            "shared" if server["shared"] else "per host",
            ", ".join(sorted(to_single_line(host["name"] or str(host["pid"])) for host in server["hosts"])) or "-",
            ", ".join(map(str, server["processes"])) or "-",
            str(server["calls"]),
            str(server["errors"]),
            to_single_line(server["error"] or server["state"]),
        )
        for server in status["servers"]
    ]
    if rows:
        sys.stdout.write(format_plain_table(("SERVER", "USE", "HOSTS", "PROCESSES", "CALLS", "ERRORS", "STATE"), rows))
    return 0


def _logs(directory: int, arguments: argparse.Namespace) -> int:
    """Print the end of the hub's log, or of the standard error of servers."""
    if arguments.names:
        status = send_command(directory, "status", []) or {"servers": []}
        _check_names(arguments.names, {server["name"] for server in status["servers"]})
        for server in status["servers"]:
            if server["name"] in arguments.names:
                for line in server["stderr"][-arguments.lines :]:
                    print(f"{to_single_line(server['name'])}: {escape_control(line)}")
        return 0
    try:
        with open(os.path.join(location.hub_directory(), location.LOG_NAME), encoding="utf-8", errors="replace") as log:
            for line in deque(log, maxlen=arguments.lines):
                print(escape_control(line.rstrip("\n")))
    except FileNotFoundError:
        print("The hub has written no log.")
    return 0


def _check_names(names: list[str], server_names: set[str]) -> None:
    for name in names:
        if name not in server_names:
            raise UsageError(f"no host uses the server {name!r} (known: {', '.join(sorted(server_names)) or 'none'})")


_ACTIONS = {
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "upgrade": _replace,
    "status": _status,
    "logs": _logs,
}
