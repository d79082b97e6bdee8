"""The program inside the jail: it answers what it is asked, one question at a time, until it is ended."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Mapping
from json import loads
from types import FrameType
from typing import Any

from portico.services.live import protocol
from portico.services.live.image import LONGEST_INTEGER, Interpreter
from portico.services.live.limits import Limits
from portico.services.live.names import InspectionError

# Where things are in a worker: standard input is empty, the two outputs are one pipe, and this is the server.
CHANNEL = 3


def take_descriptors(channel: int, output: int) -> None:
    """Keep these two and close everything else, whatever it was."""
    null = os.open(os.devnull, os.O_RDWR)
    for source, place in ((null, 0), (output, 1), (output, 2), (channel, CHANNEL)):
        os.dup2(source, place, inheritable=False)
    os.closerange(CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    for name, place, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb"), ("stderr", 2, "wb")):
        stream = _text(place, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _text(descriptor: int, mode: str) -> io.TextIOWrapper:
    """Line by line, so that of code that is stopped we have at least what it had said."""
    file: Any = open(descriptor, mode, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def settle(environment: Mapping[str, str], readable: list[str]) -> None:
    """The surroundings that code in the jail sees."""
    os.environ.clear()
    os.environ.update(environment)
    inside = tuple(path.rstrip(os.sep) + os.sep for path in readable)
    sys.path[:] = [path for path in sys.path if f"{path}{os.sep}".startswith(inside)]
    sys.argv[:] = [""]
    sys.dont_write_bytecode = True
    sys.set_int_max_str_digits(LONGEST_INTEGER)


def serve(image: Interpreter, greeting: Mapping[str, Any]) -> None:
    """Say that all is ready, then answer until the server hangs up."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        # The server sends this when time is up. Between two questions there is nothing to interrupt.
        if image.busy:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    say(protocol.READY, "result", dict(greeting))
    while True:
        # Whatever code has done to it.
        os.set_blocking(CHANNEL, True)
        asked = protocol.read(CHANNEL)
        if asked is None:
            return
        request = loads(asked)
        try:
            outcome: tuple[str, Any] = ("result", image.answer(request["op"], request["arguments"]))
        except InspectionError as refusal:
            outcome = ("refusal", str(refusal))
        except KeyboardInterrupt:
            # Time was up while it was being told what had gone wrong.
            outcome = ("refusal", "KeyboardInterrupt")
        flush()
        say(request["id"], *outcome)


def say(id: int, member: str, value: Any) -> None:
    protocol.write(CHANNEL, protocol.encode({"id": id, member: value}))


def flush() -> None:
    """Before the answer, all that was printed: the server does not wait for more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # it was closed, or something else was put in its place


def main(limits: Limits, greeting: Mapping[str, Any]) -> None:
    serve(Interpreter(limits=limits), greeting)
