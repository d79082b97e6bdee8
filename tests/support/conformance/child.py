"""Run a process that ends with its children when the test ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

GRACE = 5.0
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Child:
    """A command in a separate process group, with its output in a file. The group ends with the context."""

    def __init__(self, command: list[str], log: Path, *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, what: BaseException | None, where: TracebackType | None
    ) -> None:
        self.end()

    @property
    def code(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for its exit status. Return None after the timeout."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        if self.code is None:
            self._signal(signal.SIGTERM)
            self.wait(GRACE)
        self._signal(signal.SIGKILL)
        if self.wait(GRACE) is None:
            raise RuntimeError(f"process {self._process.pid} could not be killed")

    def output_tail(self, lines: int = 60) -> str:
        """Return the end of its output."""
        text = COLOUR.sub("", self.log.read_text(encoding="utf-8", errors="replace"))
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass  # the group is empty
        except PermissionError:
            # macOS reports this for a group of zombies.
            if self.code is None:
                raise
