"""If we are killed, so are the servers we started, and all that they started: nothing of ours is left behind.

A process that is killed cannot clean up after itself, so another one waits for its end. It holds the reading end of a
pipe, through which it is told the process groups that are ours; when the pipe closes, we are gone, whatever the reason.
One watches for all children of a process, and it costs nothing until it is needed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys

_WATCH = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
def tell(number):
    for group in list(groups):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            groups.discard(group)
        except PermissionError:
            pass
tell(signal.SIGTERM)
for _ in range(20):
    if not groups:
        break
    time.sleep(0.1)
    tell(0)
tell(signal.SIGKILL)
"""


class Watchdog:
    """Told of process groups as they come and go."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def watch(self, group: int) -> None:
        self._groups.add(group)
        if self._process is None or self._process.poll() is not None:
            self._start()
        else:
            self._tell(b"+", group)

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(b"-", group)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH],
            bufsize=0,  # so that a fork has nothing to write, and no lock to wait for, when it closes its copy
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for group in self._groups:
            self._tell(b"+", group)

    def _tell(self, sign: bytes, group: int) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"%s%d\n" % (sign, group))

    def end(self) -> None:
        """We end in good order: what is ours is ended now, if it has not been."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def leave(self) -> None:
        """After a fork: the children are the parent's, and the pipe must close when the parent ends."""
        process, self._process, self._groups = self._process, None, set()
        if process is not None and process.stdin is not None:
            process.stdin.close()


watchdog = Watchdog()
atexit.register(watchdog.end)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=watchdog.leave)
