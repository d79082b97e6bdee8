"""A process that does not outlive us, nor do its own children."""

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
    """A command in a process group of its own, what it says in a file. The group ends with the `with`."""

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
        """Its exit status, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or None if it has not ended in that time."""
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

    def said(self, lines: int = 60) -> str:
        """The end of what it wrote, on either stream."""
        text = COLOUR.sub("", self.log.read_text(encoding="utf-8", errors="replace"))
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass  # nobody is left in the group
        except PermissionError:
            # What macOS says of a group in which only zombies are left.
            if self.code is None:
                raise
