"""Watchdog process that ends the child servers, and their children, if this process is killed.

A killed process cannot clean up, so another process waits for its end. It reads the process groups to end from a pipe;
when the pipe closes, this process is gone, for whatever reason. One watchdog serves all children of a process, and it
is idle until then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys

# The watcher reads until its input ends, which happens when this process ends for any reason, including
# SIGKILL. It then terminates the registered groups, and kills the remaining ones after two seconds.
_WATCHER_SCRIPT = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
def signal_groups(number):
    for group in list(groups):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            groups.discard(group)
        except PermissionError:
            pass
signal_groups(signal.SIGTERM)
for _ in range(20):
    if not groups:
        break
    time.sleep(0.1)
    signal_groups(0)
signal_groups(signal.SIGKILL)
"""


class Watchdog:
    """Registers process groups with the watchdog process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add_group(self, group: int) -> None:
        self._groups.add(group)
        if self._process is None or self._process.poll() is not None:
            self._start()
        else:
            self._send(b"+", group)

    def remove_group(self, group: int) -> None:
        self._groups.discard(group)
        self._send(b"-", group)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            # Isolated and without site-packages: starts faster, and nothing in the environment can change what
            # it runs.
            [sys.executable, "-I", "-S", "-c", _WATCHER_SCRIPT],
            bufsize=0,  # unbuffered: a fork that closes its copy has nothing to flush and no lock to wait for
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl+C signals the whole foreground group. The watcher must survive it to end the groups of
            # children.
            start_new_session=True,
        )
        # A watcher that was killed is replaced, and the new one has to know all groups.
        for group in self._groups:
            self._send(b"+", group)

    def _send(self, sign: bytes, group: int) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"%s%d\n" % (sign, group))

    def close(self) -> None:
        """End the remaining process groups at a regular exit."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def detach_after_fork(self) -> None:
        """Detach in a forked child: the groups belong to the parent, and the pipe must close when the parent ends."""
        process, self._process, self._groups = self._process, None, set()
        if process is not None and process.stdin is not None:
            process.stdin.close()


watchdog = Watchdog()
atexit.register(watchdog.close)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=watchdog.detach_after_fork)
