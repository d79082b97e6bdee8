"""A worker as seen from the server: one request at a time, and its replies are untrusted."""

from __future__ import annotations

import asyncio
import signal
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct, field

from portico_services.livepython.sandbox.framing import (
    EXIT_INTERPRETER_BROKEN,
    READY_ID,
    FrameDecoder,
    FrameTooLarge,
    encode_frame,
)
from portico_services.livepython.sandbox.limits import KIB, MAX_REPLY_BYTES, MAX_SESSION_BYTES, SandboxLimits

# How long interrupted code may take to stop, how often the interrupt is repeated in that time, and how long a worker
# may take to start. Code may catch the first interrupt, or need time to clean up.
INTERRUPT_GRACE_SECONDS = 2.0
INTERRUPT_INTERVAL_SECONDS = 0.5
REPLY_TIMEOUT_SECONDS = 30.0
# How long to wait for the names of a session whose code does not stop.
RESCUE_TIMEOUT_SECONDS = 5.0
# Interval at which resource usage is checked while code runs.
USAGE_CHECK_SECONDS = 0.1
# The pause between checks is at least this many times the duration of a check.
USAGE_CHECK_BACKOFF = 20

MAX_ERROR_BYTES = 64 * KIB

EMPTY_RESULT = Raw(b"")

_SIGNALS = {
    "SIGSEGV": "it crashed (segmentation fault)",
    "SIGABRT": "it aborted",
    "SIGBUS": "it crashed (bus error)",
    "SIGFPE": "it crashed (arithmetic)",
    "SIGILL": "it crashed (illegal instruction)",
    "SIGSYS": "it made a forbidden system call",
    "SIGXCPU": "it used up its CPU time",
    "SIGKILL": "the system killed it, perhaps because memory ran out",
}


class WorkerTransport(Protocol):
    """The descriptors and the process of a worker, however it was started."""

    # Whether output arrives in messages, because there is no separate pipe for it.
    output_in_messages: bool

    def listen(
        self, on_packet: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        """Register the callbacks for messages, for output and for the end of the channel."""

    def send(self, data: bytes) -> None: ...

    def drain(self, limit: int) -> bytes:
        """Return printed output that was not read yet, up to `limit` bytes."""

    def suspend(self) -> None:
        """Stop the process until `resume`."""

    def resume(self) -> None: ...

    def interrupt(self) -> bool:
        """Ask the code to stop. Return False if that is not possible."""

    def request_rescue(self) -> bool:
        """Tell the worker to save its names immediately. Return False if that is not possible."""

    def kill(self) -> None: ...

    async def status(self) -> int | None:
        """Return the exit status, or the negative number of a signal. Waits only briefly; None if it is unknown."""

    def limit_exceeded(self, limits: SandboxLimits) -> str | None:
        """Return which resource limit is exceeded, or None. Called in a thread."""

    def close(self) -> None: ...


class WorkerReply(Struct):
    """Reply of a worker, with the output printed during the request."""

    result: Raw = EMPTY_RESULT
    refusal: str | None = None
    output: str = ""
    # Bytes of output that were discarded.
    dropped: int = 0
    # The request timed out, and the code stopped without being killed.
    interrupted: bool = False
    # A note about the session for the caller, and whether its names are lost.
    note: str | None = None
    begun_anew: bool = False
    # The requested object does not exist.
    missing: bool = False


class RescuedSession(Struct):
    """Data that a worker saved before it was killed: the names of its session, and the report about them.

    Without the report, saving did not complete.
    """

    names: bytearray = field(default_factory=bytearray)
    about: Raw = EMPTY_RESULT


UNSOLICITED_REPLY = "it sent a message that was not requested"


class WorkerEnded(Exception):
    """The worker has ended, and the names of its session are lost unless they were rescued."""

    def __init__(self, reason: str, answer: WorkerReply) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        # Whether it was killed on a timeout, and a description if the session continues with its names.
        self.timed_out = False
        self.was_rescued: str | None = None


class _PendingReply(Struct):
    id: int
    result: Raw = EMPTY_RESULT
    refusal: str | None = None
    # An error, too: the requested object does not exist.
    missing: str | None = None
    output: str | None = None
    rescued: str | None = None
    calls: Raw = EMPTY_RESULT


# Handles the requests of a script. Raises ValueError for a message that a genuine script does not send.
OnToolCalls = Callable[[Raw], None]

_decode = msgspec.json.Decoder(_PendingReply).decode
_encode = msgspec.json.Encoder().encode


class PythonWorker:
    """A process that runs code.

    Between two requests it is stopped, so that nothing the code has left behind keeps running: no thread, timer or
    handler. Its messages are limited in size, and an unsolicited one ends the worker.
    """

    def __init__(self, ends: WorkerTransport, limits: SandboxLimits) -> None:
        self.ends = ends
        self.limits = limits
        self.greeting: Mapping[str, Any] = {}
        # Why it has ended, if it has.
        self.reason: str | None = None
        # Whether its names should be rescued before it is killed, and the rescued data.
        self.has_names = False
        self.rescued = RescuedSession()
        # Why it is about to be killed, while its names are awaited.
        self._dying: str | None = None
        self._loop = asyncio.get_running_loop()
        self._frames = FrameDecoder(MAX_REPLY_BYTES)
        self._asked = READY_ID
        # The first message is unsolicited, so it is awaited from the beginning.
        self._greeted: asyncio.Future[WorkerReply] = self._loop.create_future()
        self._waiting: asyncio.Future[WorkerReply] | None = self._greeted
        self._printed = bytearray()
        self._dropped = 0
        self._late = False
        # Callback for the calls of a script; without it none are accepted.
        self._hear_calls: OnToolCalls | None = None
        # The timeout of the request, and then the timer of the next interrupt.
        self._clock: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._farewell: asyncio.Task[None] | None = None
        ends.listen(self._on_data, self._on_output, self._on_channel_closed)

    @property
    def has_ended(self) -> bool:
        return self.reason is not None

    @property
    def busy(self) -> bool:
        """Return whether a request is unanswered, even if its caller no longer waits."""
        return self._waiting is not None

    async def ready(self) -> None:
        """Wait until the worker is in the sandbox. Raises WorkerEnded with the reason if that failed."""
        try:
            answer = await self._wait(self._greeted, REPLY_TIMEOUT_SECONDS, "it did not start in time")
        except asyncio.CancelledError:
            self.kill("it was cancelled")
            raise
        if answer.refusal is not None:
            self.kill(answer.refusal)
            raise WorkerEnded(answer.refusal, answer)
        self.greeting = msgspec.json.decode(answer.result)

    async def request(
        self, op: str, arguments: Mapping[str, Any], seconds: float, calls: OnToolCalls | None = None
    ) -> WorkerReply:
        """Send a request and return the reply. Raises WorkerEnded if the worker ends or has ended before.

        One at a time: the caller holds a lock, and calls `wait_idle` after a cancelled request. `calls` receives the
        requests of a script.
        """
        if self.reason is not None:
            raise WorkerEnded(self.reason, WorkerReply())
        self._asked += 1
        request = _encode({"id": self._asked, "op": op, "arguments": arguments})
        waiting = self._waiting = self._loop.create_future()
        self._printed, self._dropped, self._late = bytearray(), 0, False
        self._hear_calls = calls
        self.ends.resume()
        self.ends.send(encode_frame(request))
        self._schedule_usage_check()
        return await self._wait(waiting, seconds, f"it did not stop within {seconds:g} s")

    def send(self, message: bytes) -> None:
        """Send an answer to a script."""
        if self.reason is None:
            self.ends.send(encode_frame(message))

    async def wait_idle(self) -> None:
        """Wait until cancelled code has stopped or the worker has ended."""
        if self._waiting is not None:
            await asyncio.wait([self._waiting])

    async def _wait(self, waiting: asyncio.Future[WorkerReply], seconds: float, reason: str) -> WorkerReply:
        if not waiting.done():
            self._clock = self._loop.call_later(seconds, self._interrupt, reason)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:
                # The future was cancelled with its caller, but the worker still owes a reply: a new future awaits it.
                self._settle()
                self._waiting = self._loop.create_future()
                # marks the exception as retrieved, so that asyncio does not report it
                self._waiting.add_done_callback(asyncio.Future.exception)
                self._interrupt("it was cancelled and did not stop")
            raise

    def _interrupt(self, reason: str, waited: float = 0.0) -> None:
        """Interrupt the code. If it stops in time the session keeps its names; otherwise the worker is killed.

        No interrupt is sent after the reply has arrived, so that none can hit the next request.
        """
        self._late = True
        if waited < INTERRUPT_GRACE_SECONDS and self.ends.interrupt():
            pause = min(INTERRUPT_INTERVAL_SECONDS, INTERRUPT_GRACE_SECONDS)
            self._clock = self._loop.call_later(pause, self._interrupt, reason, waited + pause)
        elif self.has_names and self._dying is None and self.ends.request_rescue():
            self._dying = reason
            self._clock = self._loop.call_later(RESCUE_TIMEOUT_SECONDS, self.kill, reason)
        else:
            self.kill(reason)

    def _settle(self) -> asyncio.Future[WorkerReply] | None:
        """Return the future of the caller that still waits for the reply or the end, if any."""
        waiting, self._waiting = self._waiting, None
        if self._clock is not None:
            self._clock.cancel()
        return None if waiting is None or waiting.done() else waiting

    # Messages

    def _on_data(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                # msgspec does not validate the UTF-8 of members that it leaves undecoded.
                frame.decode()
                self._on_reply(_decode(frame))
            if self._frames.pending and self._waiting is None:
                raise ValueError
        except (FrameTooLarge, ValueError, RecursionError):
            self.kill(UNSOLICITED_REPLY)

    def _on_reply(self, reply: _PendingReply) -> None:
        if self._waiting is None or reply.id != self._asked:
            raise ValueError
        refusal = reply.missing if reply.refusal is None else reply.refusal
        if refusal is not None and len(refusal) > MAX_ERROR_BYTES:
            raise ValueError
        if reply.output is not None:
            if not self.ends.output_in_messages:
                raise ValueError
            self._on_output(reply.output.encode())
            return
        if reply.rescued is not None:
            self._on_rescued_chunk(reply.rescued)
            return
        if self.rescued.names and self._dying is not None:
            self.rescued.about = reply.result
            self.kill(self._dying)
            return
        if reply.calls is not EMPTY_RESULT:
            if self._hear_calls is None:
                raise ValueError
            self._hear_calls(reply.calls)
            return
        # Suspend before reading the remaining output, so that code cannot print more in the meantime.
        self.ends.suspend()
        self._on_output(self.ends.drain(self.limits.output_kill_bytes))
        if self.reason is None and (waiting := self._settle()) is not None:
            answer = self._finish_request(reply.result, refusal)
            answer.missing = reply.missing is not None
            waiting.set_result(answer)

    def _on_rescued_chunk(self, part: str) -> None:
        if self._dying is None:
            raise ValueError
        if not part:
            self.kill(self._dying)
            return
        self.rescued.names += b64decode(part, validate=True)
        if len(self.rescued.names) > MAX_SESSION_BYTES:
            raise ValueError

    def _on_output(self, data: bytes) -> None:
        room = self.limits.max_output_bytes - len(self._printed)
        self._printed += data[: max(0, room)]
        self._dropped += len(data) - min(len(data), max(0, room))
        if self._dropped > self.limits.output_kill_bytes:
            self.kill(f"it printed more than {self.limits.output_kill_bytes // 2**20} MiB")

    def _finish_request(self, result: Raw = EMPTY_RESULT, refusal: str | None = None) -> WorkerReply:
        output = self._printed.decode("utf-8", "replace")
        return WorkerReply(result, refusal, output, self._dropped, interrupted=self._late and refusal is not None)

    # Exit

    def kill(self, reason: str) -> None:
        """Kill the worker for this reason. A waiting caller gets the error immediately."""
        if self.reason is not None:
            return
        self.reason = reason
        self.ends.kill()
        if isinstance(self._looking, asyncio.TimerHandle):
            self._looking.cancel()
        if (waiting := self._settle()) is not None:
            end = WorkerEnded(reason, self._finish_request())
            end.timed_out = self._late
            waiting.set_exception(end)
        self.ends.close()

    def _on_channel_closed(self) -> None:
        """Handle the end of the channel: the process ended, or code closed the descriptor."""
        if self.reason is None and self._farewell is None:
            self._on_output(self.ends.drain(self.limits.output_kill_bytes))
            self._farewell = self._loop.create_task(self._exit_reason())

    async def _exit_reason(self) -> None:
        status = await self.ends.status()
        if status is None:
            self.kill("it closed its channel")
        elif status < 0:
            self.kill(_signal_description(-status))
        elif status == EXIT_INTERPRETER_BROKEN:
            self.kill("its interpreter crashed")
        else:
            self.kill(f"it exited with status {status}")

    # Resource usage

    def _schedule_usage_check(self, took: float = 0.0) -> None:
        if self._looking is None:
            # The longer a check takes, the less often it runs, so that checking does not load the machine.
            pause = USAGE_CHECK_BACKOFF * took
            self._looking = self._loop.call_later(max(USAGE_CHECK_SECONDS, pause), self._check_usage)

    def _check_usage(self) -> None:
        self._looking = self._loop.create_task(self._measure())

    async def _measure(self) -> None:
        """Check usage once after each request, and repeatedly during one."""
        if self.has_ended:
            return  # it ended in between, and perhaps the event loop with it
        started_at = self._loop.time()
        excess = await asyncio.to_thread(self.ends.limit_exceeded, self.limits)
        self._looking = None
        if excess is not None:
            self.kill(excess)
        elif self.reason is None and self._waiting is not None:
            self._schedule_usage_check(self._loop.time() - started_at)


def _signal_description(number: int) -> str:
    """Describe the end by this signal. Signals differ between systems, and some numbers have no name."""
    descriptions = {getattr(signal, name, None): words for name, words in _SIGNALS.items()}
    return descriptions.get(number, f"signal {number} ended it")
