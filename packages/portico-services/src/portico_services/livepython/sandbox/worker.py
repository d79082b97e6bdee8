"""A worker, seen from the server: asked one thing at a time, believed nothing."""

from __future__ import annotations

import asyncio
import signal
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct, field

from portico_services.livepython.sandbox.framing import BROKEN, READY, Frames, TooLong, pack
from portico_services.livepython.sandbox.limits import KIB, LARGEST, LONGEST_REPLY, Limits

# How long code is given to stop by itself, when it is told again in that time, and how long a worker may take to come
# up. Code that catches the first interrupt, or cleans up for a while, is not lost yet.
GRACE_SECONDS = 2.0
INTERRUPT_SECONDS = 0.5
REPLY_SECONDS = 30.0
# How long it is waited for the names of a session whose code does not stop.
RESCUE_SECONDS = 5.0
# How often it is looked at what a worker uses, while it may use more.
CHECK_SECONDS = 0.1
# How much longer than a look the time to the next one is, at least.
SHARE_OF_LOOKING = 20

LONGEST_REFUSAL = 64 * KIB

NOTHING = Raw(b"")

_SIGNALS = {
    "SIGSEGV": "it crashed (segmentation fault)",
    "SIGABRT": "it aborted",
    "SIGBUS": "it crashed (bus error)",
    "SIGFPE": "it crashed (arithmetic)",
    "SIGILL": "it crashed (illegal instruction)",
    "SIGSYS": "it called the kernel in a way that is not allowed",
    "SIGXCPU": "it has used up its processor time",
    "SIGKILL": "the system has ended it, perhaps for want of memory",
}


class Ends(Protocol):
    """The descriptors and the process of a worker, however it was started."""

    # Whether its output comes among its words, for want of a pipe of its own.
    prints: bool

    def listen(self, hear: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Where its words and its output go, and who is told that there will be no more."""

    def send(self, data: bytes) -> None: ...

    def rest(self, most: int) -> bytes:
        """What it has printed and was not read yet, at most so much."""

    def freeze(self) -> None:
        """Let nothing of it run until `thaw`."""

    def thaw(self) -> None: ...

    def interrupt(self) -> bool:
        """Ask the code to stop. False where code cannot be asked."""

    def rescue(self) -> bool:
        """Tell it to save its names at once, whatever it is doing. False where that cannot be done."""

    def kill(self) -> None: ...

    async def status(self) -> int | None:
        """Its exit status, or the negative number of a signal. For a short time only; None if it is not known."""

    def excess(self, limits: Limits) -> str | None:
        """Why it must end: what it has used is more than it may. Called in a thread."""

    def close(self) -> None: ...


class WorkerReply(Struct):
    """What a worker said, and what it printed meanwhile."""

    result: Raw = NOTHING
    refusal: str | None = None
    output: str = ""
    # Bytes that were printed and not kept.
    dropped: int = 0
    # Time was up, and it stopped without being ended.
    interrupted: bool = False
    # Something about the session that the caller should know, and whether it has no names any more.
    note: str | None = None
    begun_anew: bool = False
    # The refusal says that what was asked for does not exist.
    missing: bool = False


class Rescued(Struct):
    """What a worker has saved in its last moment: the names of its session, and what it says of them. Without the
    second it did not come to the end."""

    names: bytearray = field(default_factory=bytearray)
    about: Raw = NOTHING


UNASKED = "it answered without a question"


class WorkerEnded(Exception):
    """The worker is no more, and the names of its session with it, unless they were `kept`."""

    def __init__(self, reason: str, answer: WorkerReply) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        # Whether it was ended because time was up, and what became of the names, if the session goes on with them.
        self.late = False
        self.kept: str | None = None


class _PendingReply(Struct):
    id: int
    result: Raw = NOTHING
    refusal: str | None = None
    # A refusal, too: what was asked for does not exist.
    missing: str | None = None
    output: str | None = None
    rescued: str | None = None
    calls: Raw = NOTHING


# Takes what a script wants done. Raises ValueError for what no script of ours would say, which ends it.
HearCalls = Callable[[Raw], None]

_decode = msgspec.json.Decoder(_PendingReply).decode
_encode = msgspec.json.Encoder().encode


class PythonWorker:
    """One process that runs code for us.

    Between two questions it is stopped, so that nothing the code has left behind runs on: no thread, no timer, no
    handler. What it sends is bounded, and whatever was not asked for is its end.
    """

    def __init__(self, ends: Ends, limits: Limits) -> None:
        self.ends = ends
        self.limits = limits
        self.greeting: Mapping[str, Any] = {}
        # Why it has ended, once it has.
        self.reason: str | None = None
        # Whether it has names that are wanted when it must be ended; and what it has said of them then.
        self.has_names = False
        self.rescued = Rescued()
        # Why it is to end, while it is waited for them.
        self._dying: str | None = None
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(LONGEST_REPLY)
        self._asked = READY
        # Its first message comes by itself, so it is awaited from the beginning.
        self._greeted: asyncio.Future[WorkerReply] = self._loop.create_future()
        self._waiting: asyncio.Future[WorkerReply] | None = self._greeted
        self._printed = bytearray()
        self._dropped = 0
        self._late = False
        # Who is told of the calls that a script makes; without one there are none.
        self._hear_calls: HearCalls | None = None
        # When time is up for what was asked, and then when it is told again to stop.
        self._clock: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        ends.listen(self._hear, self._print, self._end)

    @property
    def ended(self) -> bool:
        return self.reason is not None

    @property
    def busy(self) -> bool:
        """Whether it has not answered yet, also if no caller waits for that any more."""
        return self._waiting is not None

    async def ready(self) -> None:
        """Until it has said that it is locked up. Raises WorkerEnded with the reason if it could not be."""
        try:
            answer = await self._wait(self._greeted, REPLY_SECONDS, "it did not start in time")
        except asyncio.CancelledError:
            self.kill("it was cancelled")
            raise
        if answer.refusal is not None:
            self.kill(answer.refusal)
            raise WorkerEnded(answer.refusal, answer)
        self.greeting = msgspec.json.decode(answer.result)

    async def ask(
        self, op: str, arguments: Mapping[str, Any], seconds: float, calls: HearCalls | None = None
    ) -> WorkerReply:
        """Raises WorkerEnded if that was its end, or if it has ended before. One at a time: the caller holds a lock,
        and waits with `settled` after a question that was cancelled. `calls` is told of what a script wants."""
        if self.reason is not None:
            raise WorkerEnded(self.reason, WorkerReply())
        self._asked += 1
        request = _encode({"id": self._asked, "op": op, "arguments": arguments})
        waiting = self._waiting = self._loop.create_future()
        self._printed, self._dropped, self._late = bytearray(), 0, False
        self._hear_calls = calls
        self.ends.thaw()
        self.ends.send(pack(request))
        self._look_later()
        return await self._wait(waiting, seconds, f"it did not stop within {seconds:g} s")

    def tell(self, message: bytes) -> None:
        """What a script has waited for."""
        if self.reason is None:
            self.ends.send(pack(message))

    async def settled(self) -> None:
        """Until nothing runs that was cancelled: it has yielded, or it has ended."""
        if self._waiting is not None:
            await asyncio.wait([self._waiting])

    async def _wait(self, waiting: asyncio.Future[WorkerReply], seconds: float, reason: str) -> WorkerReply:
        if not waiting.done():
            self._clock = self._loop.call_later(seconds, self._interrupt, reason)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:
                # It was cancelled with its caller. The answer is wanted all the same, so another takes its place.
                self._settle()
                self._waiting = self._loop.create_future()
                self._waiting.add_done_callback(asyncio.Future.exception)  # seen, so that it is not reported
                self._interrupt("it was cancelled and did not stop")
            raise

    def _interrupt(self, reason: str, waited: float = 0.0) -> None:
        """Time is up. Code that yields keeps its names; what has not yielded in time is ended.

        No interrupt is sent once the answer is there, so that none can meet the next question.
        """
        self._late = True
        if waited < GRACE_SECONDS and self.ends.interrupt():
            pause = min(INTERRUPT_SECONDS, GRACE_SECONDS)
            self._clock = self._loop.call_later(pause, self._interrupt, reason, waited + pause)
        elif self.has_names and self._dying is None and self.ends.rescue():
            self._dying = reason
            self._clock = self._loop.call_later(RESCUE_SECONDS, self.kill, reason)
        else:
            self.kill(reason)

    def _settle(self) -> asyncio.Future[WorkerReply] | None:
        """The caller that is to be told of the answer or the end, if there is one that was not told yet."""
        waiting, self._waiting = self._waiting, None
        if self._clock is not None:
            self._clock.cancel()
        return None if waiting is None or waiting.done() else waiting

    # What it says

    def _hear(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                # msgspec does not check the UTF-8 of members that it leaves undecoded.
                frame.decode()
                self._take(_decode(frame))
            if self._frames.pending and self._waiting is None:
                raise ValueError
        except (TooLong, ValueError, RecursionError):
            self.kill(UNASKED)

    def _take(self, reply: _PendingReply) -> None:
        if self._waiting is None or reply.id != self._asked:
            raise ValueError
        refusal = reply.missing if reply.refusal is None else reply.refusal
        if refusal is not None and len(refusal) > LONGEST_REFUSAL:
            raise ValueError
        if reply.output is not None:
            if not self.ends.prints:
                raise ValueError
            self._print(reply.output.encode())
            return
        if reply.rescued is not None:
            self._take_names(reply.rescued)
            return
        if self.rescued.names and self._dying is not None:
            self.rescued.about = reply.result
            self.kill(self._dying)
            return
        if reply.calls is not NOTHING:
            if self._hear_calls is None:
                raise ValueError
            self._hear_calls(reply.calls)
            return
        self.ends.freeze()
        self._print(self.ends.rest(self.limits.flood))
        if self.reason is None and (waiting := self._settle()) is not None:
            answer = self._answer(reply.result, refusal)
            answer.missing = reply.missing is not None
            waiting.set_result(answer)

    def _take_names(self, part: str) -> None:
        if self._dying is None:
            raise ValueError
        if not part:
            self.kill(self._dying)
            return
        self.rescued.names += b64decode(part, validate=True)
        if len(self.rescued.names) > LARGEST:
            raise ValueError

    def _print(self, data: bytes) -> None:
        room = self.limits.output - len(self._printed)
        self._printed += data[: max(0, room)]
        self._dropped += len(data) - min(len(data), max(0, room))
        if self._dropped > self.limits.flood:
            self.kill(f"it printed more than {self.limits.flood // 2**20} MiB")

    def _answer(self, result: Raw = NOTHING, refusal: str | None = None) -> WorkerReply:
        output = self._printed.decode("utf-8", "replace")
        return WorkerReply(result, refusal, output, self._dropped, interrupted=self._late and refusal is not None)

    # Its end

    def kill(self, reason: str) -> None:
        """End it, for this reason. A waiting caller is told at once."""
        if self.reason is not None:
            return
        self.reason = reason
        self.ends.kill()
        if isinstance(self._looking, asyncio.TimerHandle):
            self._looking.cancel()
        if (waiting := self._settle()) is not None:
            end = WorkerEnded(reason, self._answer())
            end.late = self._late
            waiting.set_exception(end)
        self.ends.close()

    def _end(self) -> None:
        """It has hung up: by ending, or by closing what it should not."""
        if self.reason is None and self._farewell is None:
            self._print(self.ends.rest(self.limits.flood))
            self._farewell = self._loop.create_task(self._explain())

    async def _explain(self) -> None:
        status = await self.ends.status()
        if status is None:
            self.kill("it hung up")
        elif status < 0:
            self.kill(_signal(-status))
        elif status == BROKEN:
            self.kill("its interpreter broke down")
        else:
            self.kill(f"it ended itself with status {status}")

    # What it uses

    def _look_later(self, took: float = 0.0) -> None:
        if self._looking is None:
            # The more there is to look at, the less often: looking must not be what keeps the machine busy.
            pause = SHARE_OF_LOOKING * took
            self._looking = self._loop.call_later(max(CHECK_SECONDS, pause), self._look)

    def _look(self) -> None:
        self._looking = self._loop.create_task(self._measure())

    async def _measure(self) -> None:
        """Once after each evaluation, and again and again during one."""
        if self.ended:
            return  # meanwhile, and perhaps the loop with it
        began = self._loop.time()
        excess = await asyncio.to_thread(self.ends.excess, self.limits)
        self._looking = None
        if excess is not None:
            self.kill(excess)
        elif self.reason is None and self._waiting is not None:
            self._look_later(self._loop.time() - began)


def _signal(number: int) -> str:
    """What it means to have ended by this signal. Not every system has them all, and some numbers have no name."""
    known = {getattr(signal, name, None): words for name, words in _SIGNALS.items()}
    return known.get(number, f"signal {number} ended it")
