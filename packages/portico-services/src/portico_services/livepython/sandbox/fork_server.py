"""Process that workers are forked from. It has Python loaded once, and each worker is a copy of it.

It runs no client code and communicates only with the server: one line of JSON and two descriptors for each requested
worker; it returns the worker's pidfd and eventually its exit status. When the server goes away for any reason, the fork
server ends, and with it every worker.

    → {"limits": {…}, "readable": […], "projects": […], "preload": […], "sandboxed": true}
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
from portico_services.livepython.sandbox.interpreter import MAX_INTEGER_DIGITS, Interpreter
from portico_services.livepython.sandbox.limits import MAX_SESSION_BYTES, SESSION_CHUNK_BYTES, SandboxLimits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable

# Code that runs in a worker: it handles one request at a time until it is ended.

# Descriptors of a worker: standard input is empty, both outputs share a pipe, and this one is the server.
CHANNEL_FD = 3
# Time per name when a session is rescued; the server's total timeout is a little longer.
RESCUE_SECONDS_PER_NAME = 1.0


def keep_descriptors(channel: int, output: int) -> None:
    """Keep these two descriptors and close all others."""
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (output, 1), (output, 2), (channel, CHANNEL_FD)):
        os.dup2(source, target, inheritable=False)
    os.closerange(CHANNEL_FD + 1, os.sysconf("SC_OPEN_MAX"))
    for name, target, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb"), ("stderr", 2, "wb")):
        stream = _text(target, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _text(descriptor: int, mode: str) -> io.TextIOWrapper:
    """Open a descriptor as a line-buffered text stream, so that output of interrupted code is not lost."""
    file: Any = open(descriptor, mode, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def set_up_environment(environment: Mapping[str, str], readable: list[str]) -> None:
    """Set the environment variables and `sys.path` that code in the sandbox sees."""
    os.environ.clear()
    os.environ.update(environment)
    inside = tuple(path.rstrip(os.sep) + os.sep for path in readable)
    sys.path[:] = [path for path in sys.path if f"{path}{os.sep}".startswith(inside)]
    sys.argv[:] = [""]
    sys.dont_write_bytecode = True
    sys.set_int_max_str_digits(MAX_INTEGER_DIGITS)


def serve(image: Interpreter, greeting: Mapping[str, Any]) -> None:
    """Announce that the worker is ready, then handle requests until the server hangs up."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        # Sent by the server on a timeout. Outside of a request there is nothing to interrupt.
        if image.is_handling(frame):
            raise KeyboardInterrupt

    send_message(framing.READY_ID, "result", dict(greeting))
    while True:
        # Reinstall the handlers, since code may have changed them. A blocked interrupt arrives now and has no effect.
        signal.signal(signal.SIGINT, on_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        rescue.install_handler(lambda: send_session_names(image))
        # Code may have changed this, too.
        os.set_blocking(CHANNEL_FD, True)
        command = framing.read_frame(CHANNEL_FD)
        if command is None:
            return
        request = loads(command)
        image.pending_requests = request["id"]
        try:
            outcome: tuple[str, Any] = ("result", image.handle(request["op"], request["arguments"]))
        except InspectionError as refusal:
            outcome = (refusal.member, str(refusal))
        except KeyboardInterrupt:
            # The timeout struck while an exception was being formatted.
            outcome = ("refusal", "KeyboardInterrupt")
        flush_output()
        send_message(request["id"], *outcome)


def send_session_names(image: Interpreter) -> None:
    """Send the names of a session in chunks, then the report about them; an empty chunk if there is nothing to send.

    A reply that is being written is not interrupted.
    """
    if not image.is_handling(sys._getframe(), rescue=True):
        return
    try:
        about = image.save(MAX_SESSION_BYTES, RESCUE_SECONDS_PER_NAME)
    except InspectionError:
        # The names are too large.
        send_message(image.pending_requests, "rescued", "")
        return
    for at in range(0, about["size"], SESSION_CHUNK_BYTES):
        send_message(image.pending_requests, "rescued", image.saved_part(at, SESSION_CHUNK_BYTES)["data"])
    send_message(image.pending_requests, "result", about)


def send_message(id: int, member: str, value: Any) -> None:
    framing.write_frame(CHANNEL_FD, framing.encode_json({"id": id, member: value}))


def flush_output() -> None:
    """Flush all printed output before the reply: the server does not wait for more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # it was closed, or replaced by another object


MAX_LINE_BYTES = 1 << 16

# Commonly used modules: loaded here, their import time and memory are shared by all workers.
_PRELOADED_MODULES = """
collections dataclasses datetime decimal enum fractions functools itertools json math operator os pathlib pprint
random re statistics string textwrap time typing
"""


class ForkServer:
    """Forks workers and reports their exit."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.poll = select.epoll()
        self.poll.register(control, select.EPOLLIN)
        # Worker number and pid, by pidfd.
        self.workers: dict[int, tuple[int, int]] = {}
        # The processes that clean up after a worker, by pidfd.
        self.cleaners: dict[int, int] = {}
        setup = json.loads(control.recv(MAX_LINE_BYTES))
        self.limits = SandboxLimits(**setup["limits"])
        self.sandboxed: bool = setup["sandboxed"]
        self.projects: list[str] = setup["projects"]
        packages = project_imports.find_packages(self.projects, sys.path)
        if packages:
            sys.meta_path.insert(0, project_imports.ProjectFinder(packages))
        self.readable = landlock.python_directories([*setup["readable"], *packages.values()])
        for name in (*_PRELOADED_MODULES.split(), *setup["preload"]):
            importlib.import_module(name)
        # Memory is shared with the workers until it is written to, which the garbage collector would do to all objects.
        gc.collect()
        gc.freeze()
        self.directory = tempfile.mkdtemp(prefix="portico-live-")
        # Cached for this process; a worker has its own directory.
        tempfile.tempdir = None
        self._send({"up": platform.python_version(), "directory": self.directory, "packages": sorted(packages)})

    def run(self) -> None:
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor in self.workers:
                    self._reap(descriptor)
                elif descriptor in self.cleaners:
                    os.waitpid(self.cleaners.pop(descriptor), 0)
                    self._remove_worker(descriptor)
                elif not self._handle_command():
                    return

    def _handle_command(self) -> bool:
        """Start one worker. Return False when the server has gone."""
        line, descriptors, _, _ = socket.recv_fds(self.control, MAX_LINE_BYTES, 2)
        if not line:
            return False
        number = json.loads(line)["worker"]
        channel, output = descriptors
        home = self._create_scratch_dir(number)
        os.mkdir(home, 0o700)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run_worker(home, channel, output, parent)
        os.close(channel)
        os.close(output)
        process = os.pidfd_open(pid)
        self.workers[process] = number, pid
        self.poll.register(process, select.EPOLLIN)
        self._send({"worker": number, "pid": pid}, [process])
        return True

    def _create_scratch_dir(self, number: int) -> str:
        return os.path.join(self.directory, str(number))

    def _run_worker(self, home: str, channel: int, output: int, parent: int) -> NoReturn:
        """Run the worker in the forked child: drop inherited descriptors, enter the sandbox, then serve requests."""
        # Saved now: code in the worker could replace `os._exit`.
        leave = os._exit
        try:
            self.poll.close()
            self.control.detach()
            keep_descriptors(channel, output)
            try:
                landlock.prepare_process(home, self.limits, parent)
                report = landlock.lock_down(home, self.readable, self.limits) if self.sandboxed else {}
            except (SandboxUnavailable, OSError) as reason:
                send_message(framing.READY_ID, "refusal", str(reason))
                leave(1)
            set_up_environment({**os.environ, "HOME": home, "TMPDIR": home, "MPLCONFIGDIR": home}, self.readable)
            serve(self._image(), report)
            leave(0)
        finally:
            # Exceptions are not printed: the server notices the end of the channel.
            leave(2)

    def _image(self) -> Interpreter:
        """Create the interpreter, with support for scripts if that module was preloaded.

        It is optional because it imports asyncio, which most sessions do not need.
        """
        image = Interpreter(limits=self.limits, projects=self.projects)
        script = sys.modules.get(framing.SCRIPT_MODULE)
        if script is not None:
            image.add_operation("run_script", script.run_script)
            script.warm_up()
        return image

    def _reap(self, process: int) -> None:
        number, pid = self.workers.pop(process)
        # The pid is not reaped yet, so this cannot hit another process group.
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        _, status = os.waitpid(pid, 0)
        self._remove_worker(process)
        self._send({"gone": number, "status": os.waitstatus_to_exitcode(status)})
        self._clean_scratch(self._create_scratch_dir(number))

    def _remove_worker(self, process: int) -> None:
        self.poll.unregister(process)
        os.close(process)

    def _clean_scratch(self, home: str) -> None:
        """Remove the scratch directory. If it is not empty, a child process does so, since that can take long."""
        try:
            os.rmdir(home)
        except OSError:
            pid = os.fork()
            if pid == 0:
                scratch_dir.remove_tree(home)
                os._exit(0)
            cleaner = os.pidfd_open(pid)
            self.cleaners[cleaner] = pid
            self.poll.register(cleaner, select.EPOLLIN)

    def close(self) -> None:
        """Kill every worker and remove their files, without waiting for the disk."""
        everybody = {process: pid for process, (_, pid) in self.workers.items()} | self.cleaners
        for process, pid in everybody.items():
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.waitpid(pid, 0)
        for name in os.listdir(self.directory):
            try:
                os.rmdir(os.path.join(self.directory, name))
            except OSError:
                if os.fork() == 0:
                    scratch_dir.remove_tree(self.directory)
                os._exit(0)
        os.rmdir(self.directory)

    def _send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.control, [line], descriptors)
        else:
            self.control.sendall(line)


def main(descriptor: int) -> None:
    # Ctrl-C in the terminal is handled by the server, which then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ForkServer(socket.socket(fileno=descriptor))
    try:
        server.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has gone
    finally:
        # Never reached in a forked worker, which exits in `_run_worker`.
        server.close()
