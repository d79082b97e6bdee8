"""Assignment that a supervisor sends to a worker at its start, over a socket that only the two share.

A worker is started with the command line of its supervisor. An environment variable tells it that it is a worker: the
number of the socket, and the process that must be its parent. Children of a worker therefore never take themselves for
workers, and secrets appear neither in the environment nor on a command line.
"""

from __future__ import annotations

import os
import socket
import stat
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import to_line

WORKER_VARIABLE = "PORTICO_WORKER"
MAX_LINE_BYTES = 1024 * 1024


class WorkerAssignment(Struct, kw_only=True):
    """Slot and settings of one worker."""

    # Unique id of the process, never reused.
    id: str
    # Descriptors of the sockets to listen on.
    sockets: list[int]
    # Descriptors of the other slots, whose connections this worker may have to cover for a while.
    others: dict[int, list[int]] = {}
    # Sockets for requests of workers on other machines. All workers share them.
    internal: list[int] = []
    # Key with which all workers of one supervisor encrypt and sign.
    key: bytes
    # Folder of the sockets through which workers reach each other.
    folder: str
    # Options that the supervisor has determined for all workers.
    options: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(WorkerAssignment)


def encode_line(message: Any) -> bytes:
    """Encode one message between a supervisor and a worker, terminated by a line break."""
    return to_line(msgspec.json.encode(message)) + b"\n"


class ControlSocket:
    """A worker's end of the socket to its supervisor."""

    def __init__(self, line: socket.socket, assignment: WorkerAssignment) -> None:
        self.socket = line
        self.assignment = assignment

    @property
    def sockets(self) -> list[socket.socket]:
        return [socket.socket(fileno=number) for number in self.assignment.sockets]

    @property
    def internal(self) -> list[socket.socket]:
        return [socket.socket(fileno=number) for number in self.assignment.internal]

    def duplicate_sockets(self, slot: int) -> list[socket.socket]:
        """Return copies of the sockets of another slot."""
        return [socket.socket(fileno=os.dup(number)) for number in self.assignment.others.get(slot, [])]

    def send(self, **fields: Any) -> None:
        """Send a message to the supervisor. Does nothing if the supervisor is gone."""
        try:
            self.socket.sendall(encode_line(fields))
        except OSError:
            pass


def worker_environment(line: socket.socket) -> dict[str, str]:
    """Return the additional environment variables of a worker."""
    return {WORKER_VARIABLE: f"{line.fileno()}:{os.getpid()}"}


def receive_assignment() -> ControlSocket | None:
    """Return the control socket if this process was started as a worker, else None.

    Removes the variable, so that children of this process are not taken for workers.
    """
    fields = os.environ.pop(WORKER_VARIABLE, "").split(":")
    if len(fields) != 2 or not all(item.isdecimal() for item in fields):
        return None
    line = _open_control_socket(int(fields[0]))
    if line is None:
        # The variable was inherited without the socket: this process was started by a worker, and is not one itself.
        return None
    if int(fields[1]) != os.getppid():
        line.close()
        raise UsageError("the supervisor of this worker has exited")
    line.setblocking(True)
    os.set_inheritable(line.fileno(), False)
    read = b""
    while not read.endswith(b"\n"):
        part = line.recv(65536)
        read += part
        if not part or len(read) > MAX_LINE_BYTES:
            raise UsageError("the supervisor of this worker has exited")
    post = ControlSocket(line, _decoder.decode(read))
    assignment = post.assignment
    for number in (*assignment.sockets, *assignment.internal, *chain.from_iterable(assignment.others.values())):
        os.set_inheritable(number, False)
    return post


def _open_control_socket(number: int) -> socket.socket | None:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        line = socket.socket(fileno=number)
    except OSError:
        return None
    if line.family == socket.AF_UNIX:
        return line
    line.detach()
    return None
