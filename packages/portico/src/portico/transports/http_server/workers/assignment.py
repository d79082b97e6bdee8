"""What a supervisor tells a worker at its start, by a socket that only the two have.

A worker is started with the command line of its supervisor. By a variable it finds that it is one: the number of the
socket, and the process that it must come from. So nothing that a worker starts takes itself for another worker, and
what is secret stands neither in the environment nor on a command line.
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

VARIABLE = "PORTICO_WORKER"
LONGEST_LINE = 1024 * 1024


class Assignment(Struct, kw_only=True):
    """The place of one worker among the others."""

    # This process, and no other that ever was.
    id: str
    # The descriptors to listen on.
    sockets: list[int]
    # Those of the other places, each of which has sockets of its own: for a while without a worker there.
    others: dict[int, list[int]] = {}
    # The sockets that workers of other machines send requests to: all workers have the same.
    internal: list[int] = []
    # What all workers of one supervisor seal and sign with.
    key: bytes
    # A folder for the sockets by which workers reach each other.
    folder: str
    # Options that the supervisor has settled for all.
    options: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(Assignment)


class Post:
    """A worker's side of the socket between it and its supervisor."""

    def __init__(self, line: socket.socket, assignment: Assignment) -> None:
        self.line = line
        self.assignment = assignment

    @property
    def sockets(self) -> list[socket.socket]:
        return [socket.socket(fileno=number) for number in self.assignment.sockets]

    @property
    def internal(self) -> list[socket.socket]:
        return [socket.socket(fileno=number) for number in self.assignment.internal]

    def copies(self, place: int) -> list[socket.socket]:
        """The sockets of another place."""
        return [socket.socket(fileno=os.dup(number)) for number in self.assignment.others.get(place, [])]

    def tell(self, **what: Any) -> None:
        """Say something to the supervisor. One that is gone hears nothing."""
        try:
            self.line.sendall(msgspec.json.encode(what) + b"\n")
        except OSError:
            pass


def variable(line: socket.socket) -> dict[str, str]:
    """What a worker's environment has besides that of its supervisor."""
    return {VARIABLE: f"{line.fileno()}:{os.getpid()}"}


def take() -> Post | None:
    """What this process was told, if it was started as a worker. Once: what it starts itself is none."""
    said = os.environ.pop(VARIABLE, "").split(":")
    if len(said) != 2 or not all(one.isdecimal() for one in said):
        return None
    line = _line(int(said[0]))
    if line is None:
        # The variable was inherited, and the socket was not: we are started by a worker, and none ourselves.
        return None
    if int(said[1]) != os.getppid():
        line.close()
        raise UsageError("the supervisor of this worker is gone")
    line.setblocking(True)
    os.set_inheritable(line.fileno(), False)
    read = b""
    while not read.endswith(b"\n"):
        part = line.recv(65536)
        read += part
        if not part or len(read) > LONGEST_LINE:
            raise UsageError("the supervisor of this worker is gone")
    post = Post(line, _decoder.decode(read))
    told = post.assignment
    for number in (*told.sockets, *told.internal, *chain.from_iterable(told.others.values())):
        os.set_inheritable(number, False)
    return post


def _line(number: int) -> socket.socket | None:
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
