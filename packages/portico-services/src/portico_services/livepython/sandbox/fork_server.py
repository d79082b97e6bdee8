"""The process that workers come from. It has loaded Python once, and each worker is a copy of it.

It runs no code of clients and talks to the server alone: one line of JSON and two descriptors for each worker that is
wanted; back come its process as a descriptor, and in the end what became of it. When the server goes away, however it
goes, the fork server ends, and with it every worker.

    → {"limits": {…}, "readable": […], "projects": […], "preload": […], "jailed": true}
    ← {"up": "3.12.1", "directory": "/…", "packages": […]}
    → {"worker": 1}                             + the worker's end of its channel, and of its output
    ← {"worker": 1, "pid": 4711}                + its pidfd
    ← {"gone": 1, "status": -9}
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import platform
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from json import loads
from types import FrameType
from typing import Any, NoReturn

from portico_services.livepython.sandbox import framing, landlock, project_imports, rescue, scratch_dir
from portico_services.livepython.sandbox.interpreter import LONGEST_INTEGER, Interpreter
from portico_services.livepython.sandbox.limits import LARGEST, PART, Limits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable

# What runs in a worker: it answers what it is asked, one question at a time, until it is ended.

# Where things are in a worker: standard input is empty, the two outputs are one pipe, and this is the server.
CHANNEL = 3
# In its last moment; the server waits for all of them a little longer.
SECONDS_FOR_A_NAME = 1.0


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
        # The server sends this when time is up. Outside of an answer there is nothing to interrupt.
        if image.is_answering(frame):
            raise KeyboardInterrupt

    say(framing.READY, "result", dict(greeting))
    while True:
        # Whatever code has done to them. An interrupt that it held back comes now, and interrupts nothing.
        signal.signal(signal.SIGINT, interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        rescue.prepare(lambda: hand_over(image))
        # Whatever code has done to it.
        os.set_blocking(CHANNEL, True)
        asked = framing.read(CHANNEL)
        if asked is None:
            return
        request = loads(asked)
        image.asked = request["id"]
        try:
            outcome: tuple[str, Any] = ("result", image.answer(request["op"], request["arguments"]))
        except InspectionError as refusal:
            outcome = (refusal.member, str(refusal))
        except KeyboardInterrupt:
            # Time was up while it was being told what had gone wrong.
            outcome = ("refusal", "KeyboardInterrupt")
        flush()
        say(request["id"], *outcome)


def hand_over(image: Interpreter) -> None:
    """The names of a session in parts, and then what is to be said of them; an empty part if there is nothing to give.
    An answer that is on its way is not cut in two."""
    if not image.is_answering(sys._getframe(), rescue=True):
        return
    try:
        about = image.save(LARGEST, SECONDS_FOR_A_NAME)
    except InspectionError:
        # They are too large.
        say(image.asked, "rescued", "")
        return
    for at in range(0, about["size"], PART):
        say(image.asked, "rescued", image.saved_part(at, PART)["data"])
    say(image.asked, "result", about)


def say(id: int, member: str, value: Any) -> None:
    framing.write(CHANNEL, framing.encode({"id": id, member: value}))


def flush() -> None:
    """Before the answer, all that was printed: the server does not wait for more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # it was closed, or something else was put in its place


LONGEST_LINE = 1 << 16

# What most code begins with: loaded here, it costs a worker neither time nor memory of its own.
_STAPLES = """
collections dataclasses datetime decimal enum fractions functools itertools json math operator os pathlib pprint
random re statistics string textwrap time typing
"""


class ForkServer:
    """Makes workers, and tells of their end."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.poll = select.epoll()
        self.poll.register(control, select.EPOLLIN)
        # By their pidfd: the number that the server gave them, and their process.
        self.workers: dict[int, tuple[int, int]] = {}
        # The processes that clean up after a worker, also by their pidfd.
        self.cleaners: dict[int, int] = {}
        setup = json.loads(control.recv(LONGEST_LINE))
        self.limits = Limits(**setup["limits"])
        self.jailed: bool = setup["jailed"]
        self.projects: list[str] = setup["projects"]
        packages = project_imports.find(self.projects, sys.path)
        if packages:
            sys.meta_path.insert(0, project_imports.ProjectFinder(packages))
        self.readable = landlock.installation([*setup["readable"], *packages.values()])
        for name in (*_STAPLES.split(), *setup["preload"]):
            importlib.import_module(name)
        # What is here now is shared with every worker as long as it is not written to; the garbage collector would.
        gc.collect()
        gc.freeze()
        self.directory = tempfile.mkdtemp(prefix="portico-live-")
        # Found for us; a worker has one of its own.
        tempfile.tempdir = None
        self._say({"up": platform.python_version(), "directory": self.directory, "packages": sorted(packages)})

    def run(self) -> None:
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor in self.workers:
                    self._bury(descriptor)
                elif descriptor in self.cleaners:
                    os.waitpid(self.cleaners.pop(descriptor), 0)
                    self._forget(descriptor)
                elif not self._order():
                    return

    def _order(self) -> bool:
        """One worker. False when the server has gone."""
        line, descriptors, _, _ = socket.recv_fds(self.control, LONGEST_LINE, 2)
        if not line:
            return False
        number = json.loads(line)["worker"]
        channel, output = descriptors
        home = self._home(number)
        os.mkdir(home, 0o700)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(home, channel, output, parent)
        os.close(channel)
        os.close(output)
        process = os.pidfd_open(pid)
        self.workers[process] = number, pid
        self.poll.register(process, select.EPOLLIN)
        self._say({"worker": number, "pid": pid}, [process])
        return True

    def _home(self, number: int) -> str:
        return os.path.join(self.directory, str(number))

    def _become(self, home: str, channel: int, output: int, parent: int) -> NoReturn:
        """In the copy: give up what is the fork server's, lock the door, and only then listen."""
        leave = os._exit
        try:
            self.poll.close()
            self.control.detach()
            take_descriptors(channel, output)
            try:
                landlock.settle(home, self.limits, parent)
                report = landlock.lock(home, self.readable, self.limits) if self.jailed else {}
            except (SandboxUnavailable, OSError) as reason:
                say(framing.READY, "refusal", str(reason))
                leave(1)
            settle({**os.environ, "HOME": home, "TMPDIR": home, "MPLCONFIGDIR": home}, self.readable)
            serve(self._image(), report)
            leave(0)
        finally:
            # Whatever was raised is not printed: the server sees that the channel has ended.
            leave(2)

    def _image(self) -> Interpreter:
        """It runs scripts where that was loaded: half of it is asyncio, which most have no use for."""
        image = Interpreter(limits=self.limits, projects=self.projects)
        script = sys.modules.get(framing.SCRIPT)
        if script is not None:
            image.add_operation("run_script", script.run)
            script.warm_up()
        return image

    def _bury(self, process: int) -> None:
        number, pid = self.workers.pop(process)
        # Its number is still its own, so that this cannot meet another group.
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        _, status = os.waitpid(pid, 0)
        self._forget(process)
        self._say({"gone": number, "status": os.waitstatus_to_exitcode(status)})
        self._clean(self._home(number))

    def _forget(self, process: int) -> None:
        self.poll.unregister(process)
        os.close(process)

    def _clean(self, home: str) -> None:
        """Most leave nothing behind. What others leave can take long to remove, and a client may want a worker."""
        try:
            os.rmdir(home)
        except OSError:
            pid = os.fork()
            if pid == 0:
                scratch_dir.remove(home)
                os._exit(0)
            cleaner = os.pidfd_open(pid)
            self.cleaners[cleaner] = pid
            self.poll.register(cleaner, select.EPOLLIN)

    def close(self) -> None:
        """The end of every worker, and of what they have written. The disk is not waited for."""
        everybody = {process: pid for process, (_, pid) in self.workers.items()} | self.cleaners
        for process, pid in everybody.items():
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.waitpid(pid, 0)
        for name in os.listdir(self.directory):
            try:
                os.rmdir(os.path.join(self.directory, name))
            except OSError:
                if os.fork() == 0:
                    scratch_dir.remove(self.directory)
                os._exit(0)
        os.rmdir(self.directory)

    def _say(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.control, [line], descriptors)
        else:
            self.control.sendall(line)


def main(descriptor: int) -> None:
    # The terminal's ^C is for the server, which will tell us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ForkServer(socket.socket(fileno=descriptor))
    try:
        server.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has gone
    finally:
        # Not in a copy, which ends in `_become`.
        server.close()
