"""What a script learns, and in which order: first all that it had learnt in earlier runs, then what is new.

Each answer goes into the journal before the script hears of it; that of a write is on the disk by then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from hashlib import sha256
from typing import Any

from msgspec import Raw, Struct

from portico import ToolError
from portico_services.codemode import results
from portico_services.codemode.journal import LONGEST_JOURNAL, Journal, bytes_of
from portico_services.livepython.sandbox.framing import DEEPEST_JSON, LONGEST_ARGUMENTS, is_too_deep
from portico_services.livepython.sandbox.worker import PythonWorker

log = logging.getLogger("portico")

# Calls that were begun side by side may come to more together than a journal takes. What is short is told all the same:
# waits, and refusals.
SHORT = 1024
_LEFT_OUT = "It was called, and its result is left out: all results of this run have become too many bytes."


class ScriptCall(Struct):
    """Something that the script wants: a tool called, or time to pass."""

    n: int
    tool: str | None = None
    arguments: Raw = Raw(b"{}")
    seconds: float | None = None

    @property
    def digest(self) -> str:
        """A script that is run again writes its arguments in the same way."""
        return "" if self.tool is None else sha256(self.arguments).hexdigest()


def check_arguments(arguments: Raw) -> None:
    """Raise ValueError, with the reason, for arguments that could be read in two ways or not at all.

    A script can write to its channel by hand, so its arguments may be any JSON. The user who is asked, the rules and
    the tool have to read the same values, and parsers disagree about a name that occurs twice in an object.
    """
    text = bytes(arguments)
    if not text.startswith(b"{"):
        raise ValueError("arguments must be a JSON object")
    if len(text) > LONGEST_ARGUMENTS:
        raise ValueError(f"arguments must be at most {LONGEST_ARGUMENTS:,} bytes, got {len(text):,}")
    if is_too_deep(text):
        raise ValueError(f"arguments must be nested at most {DEEPEST_JSON} levels deep")
    if text.count(b":") > 1:
        # Python refuses to parse very long numbers, and their values do not matter here.
        json.loads(text, object_pairs_hook=_check_names, parse_int=str, parse_float=str)


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the name {name[:100]!r} occurs more than once in one object")
        seen.add(name)


class ScriptAnswers:
    """`writes` are the numbers of those that are being made: each is taken out once its outcome is stored."""

    def __init__(self, worker: PythonWorker, journal: Journal, writes: set[int]) -> None:
        self._worker, self._journal, self._writes = worker, journal, writes
        self._replayed = 0
        self._outbox: deque[tuple[ScriptCall, str]] = deque()
        # The writes among these, by number.
        self._wrote: list[int] = []
        # Whether what is finished now is told together, in a moment.
        self._held = False
        # What stores answers now, if something does.
        self.storing: asyncio.Task[None] | None = None

    def replay(self, last: int) -> None:
        """What the script had learnt, in the same order, as far as it has asked for it again: up to this number."""
        places = self._journal.places
        told: list[str] = []
        while self._replayed < len(places) and places[self._replayed].n <= last:
            entry = places[self._replayed]
            told.append(_answer(entry.n, entry.at, entry.outcome))
            self._replayed += 1
        if told:
            self._tell(told)
            self._pump()

    def hold(self) -> None:
        """Let what is finished wait for `release`, so that calls side by side are answered in one message."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self._pump()

    def finish(self, one: ScriptCall, outcome: str, *, wrote: bool = False) -> None:
        self._outbox.append((one, outcome))
        if wrote:
            self._wrote.append(one.n)
            self._pump()
        elif not self._held:
            # With what else is finished in this turn of the loop.
            self.hold()
            asyncio.get_running_loop().call_soon(self.release)

    def _pump(self) -> None:
        """Tell the script what is new, as soon as that may be."""
        if self.storing is not None or self._replayed < len(self._journal.places):
            return
        if self._wrote:
            self.storing = asyncio.get_running_loop().create_task(self._store())
        elif self._outbox:
            self._tell(self._recorded())

    async def _store(self) -> None:
        wrote, self._wrote = self._wrote, []
        told = self._recorded()
        try:
            await self._journal.save()
        except ToolError as failure:
            log.error("a script has written something, and its journal cannot be: %s", failure.__cause__ or failure)
        self._writes.difference_update(wrote)
        self.storing = None
        self._tell(told)
        self._pump()

    def _recorded(self) -> list[str]:
        """All that waits to be told, put into the journal."""
        told: list[str] = []
        now = time.time()
        while self._outbox:
            one, outcome = self._outbox.popleft()
            if len(outcome) > SHORT and self._journal.size + bytes_of(outcome) > LONGEST_JOURNAL:
                outcome = results.error(_LEFT_OUT, "TooLarge")
            self._journal.record(one.n, one.tool or "", one.digest, now, outcome)
            told.append(_answer(one.n, now, outcome))
        return told

    def _tell(self, told: list[str]) -> None:
        self._worker.tell(f'{{"answers":[{",".join(told)}]}}'.encode())


def _answer(n: int, at: float, outcome: str) -> str:
    inside = outcome[1:-1]
    return f'{{"n":{n},"at":{at!r}{"," if inside else ""}{inside}}}'
