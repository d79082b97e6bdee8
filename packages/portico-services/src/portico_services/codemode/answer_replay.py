"""Delivery of answers to a script: recorded answers of earlier runs first, in their order, then new ones.

Each answer is recorded in the journal before the script receives it; the outcome of a write is on disk by then.
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
from portico_services.codemode.journal import MAX_JOURNAL_BYTES, RunJournal, utf8_size
from portico_services.livepython.sandbox.framing import MAX_ARGUMENTS_BYTES, MAX_JSON_DEPTH, is_too_deep
from portico_services.livepython.sandbox.worker import PythonWorker

log = logging.getLogger("portico")

# Concurrent calls can together exceed the size of a journal. Shorter outcomes (sleeps and errors) are always delivered.
MIN_DROPPABLE_BYTES = 1024
_DROPPED_RESULT_MESSAGE = (
    "The call was made, but its result was dropped: the results of this run exceed the size limit."
)


class ScriptRequest(Struct):
    """A request of the script: a tool call or a sleep."""

    n: int
    tool: str | None = None
    arguments: Raw = Raw(b"{}")
    seconds: float | None = None

    @property
    def digest(self) -> str:
        """Return the digest of the arguments. A script that is run again encodes them identically."""
        return "" if self.tool is None else sha256(self.arguments).hexdigest()


def check_arguments(arguments: Raw) -> None:
    """Raise ValueError, with the reason, for arguments that could be read in two ways or not at all.

    A script can write to its channel by hand, so its arguments may be any JSON. The user who is asked, the rules and
    the tool have to read the same values, and parsers disagree about a name that occurs twice in an object.
    """
    # The first byte decides: msgspec has already checked that the rest is one JSON value.
    text = bytes(arguments)
    if not text.startswith(b"{"):
        raise ValueError("arguments must be a JSON object")
    if len(text) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"arguments must be at most {MAX_ARGUMENTS_BYTES:,} bytes, got {len(text):,}")
    if is_too_deep(text):
        raise ValueError(f"arguments must be nested at most {MAX_JSON_DEPTH} levels deep")
    if text.count(b":") > 1:
        # Python refuses to parse very long numbers, and their values do not matter here.
        json.loads(text, object_pairs_hook=_check_names, parse_int=str, parse_float=str)


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    # Parsers disagree here: with {"path": "a", "path": "b"} the user could be shown `a` and the tool be
    # given `b`.
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the name {name[:100]!r} occurs more than once in one object")
        seen.add(name)


class AnswerReplay:
    """Delivers answers to the worker of a script.

    `writes` are the numbers of the writes in progress; each is removed once its outcome is stored.
    """

    def __init__(self, worker: PythonWorker, journal: RunJournal, writes: set[int]) -> None:
        self._worker, self._journal, self._writes = worker, journal, writes
        self._replayed = 0
        self._outbox: deque[tuple[ScriptRequest, str]] = deque()
        # The numbers of the writes among these.
        self._stored: list[int] = []
        # Whether finished answers are collected, to be sent in one message.
        self._paused = False
        # The task that is storing answers, if any.
        self.storing: asyncio.Task[None] | None = None

    def replay(self, last: int) -> None:
        """Send the recorded answers, in order, up to request number `last`, which the script has repeated."""
        sequences = self._journal.sequences
        answers: list[str] = []
        # The script must receive answers in the recorded order, or its control flow could differ from the first run.
        while self._replayed < len(sequences) and sequences[self._replayed].n <= last:
            entry = sequences[self._replayed]
            answers.append(_format_answer(entry.n, entry.at, entry.outcome))
            self._replayed += 1
        if answers:
            self._send(answers)
            self._send_answers()

    def pause(self) -> None:
        """Hold back finished answers until `resume`, so that concurrent calls are answered in one message."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._send_answers()

    def finish(self, item: ScriptRequest, outcome: str, *, wrote: bool = False) -> None:
        self._outbox.append((item, outcome))
        if wrote:
            self._stored.append(item.n)
            self._send_answers()
        elif not self._paused:
            # Batch it with the answers that finish in the same iteration of the event loop.
            self.pause()
            asyncio.get_running_loop().call_soon(self.resume)

    def _send_answers(self) -> None:
        """Send new answers to the script, unless a replay or a write to the journal is in progress."""
        # New answers wait for the replay: the script must not receive them before the answers of its earlier run.
        if self.storing is not None or self._replayed < len(self._journal.sequences):
            return
        if self._stored:
            self.storing = asyncio.get_running_loop().create_task(self._store())
        elif self._outbox:
            self._send(self._record())

    async def _store(self) -> None:
        wrote, self._stored = self._stored, []
        answers = self._record()
        try:
            await self._journal.save()
        # The write has happened, so the script gets its outcome even though the journal could not be stored.
        except ToolError as failure:
            log.error(
                "a script made a write whose outcome could not be stored in its journal: %s",
                failure.__cause__ or failure,
            )
        # Only now: a pause waits for `_writes` to be empty, and must find the outcome on disk.
        self._writes.difference_update(wrote)
        self.storing = None
        self._send(answers)
        self._send_answers()

    def _record(self) -> list[str]:
        """Record all pending answers in the journal and return them encoded."""
        answers: list[str] = []
        now = time.time()
        while self._outbox:
            request, outcome = self._outbox.popleft()
            if len(outcome) > MIN_DROPPABLE_BYTES and self._journal.size + utf8_size(outcome) > MAX_JOURNAL_BYTES:
                outcome = results.error_outcome(_DROPPED_RESULT_MESSAGE, "TooLarge")
            self._journal.record(request.n, request.tool or "", request.digest, now, outcome)
            answers.append(_format_answer(request.n, now, outcome))
        return answers

    def _send(self, answers: list[str]) -> None:
        self._worker.send(f'{{"answers":[{",".join(answers)}]}}'.encode())


def _format_answer(n: int, at: float, outcome: str) -> str:
    # The outcome is spliced into the message as text, without decoding what may be several MiB of JSON.
    inside = outcome[1:-1]
    return f'{{"n":{n},"at":{at!r}{"," if inside else ""}{inside}}}'
