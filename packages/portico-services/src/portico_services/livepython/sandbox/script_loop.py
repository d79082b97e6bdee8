"""Event loop and channel of a sandboxed script. The channel is its only connection to the outside."""

from __future__ import annotations

import asyncio
import json
import math
import os
import selectors
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from portico_services.livepython.sandbox import framing
from portico_services.livepython.sandbox.deterministic import ScriptClock
from portico_services.livepython.sandbox.display import format_exception
from portico_services.livepython.sandbox.limits import MIB

# Descriptor of the server, the same as in the fork server.
CHANNEL_FD = 3
MAX_FRAME_BYTES = 4 * MIB
# The server is trusted and limits its messages itself: a resumed run may receive all recorded results at once.
MAX_REPLAY_BYTES = 2**32 - 1
CHUNK_BYTES = 32 * 1024
MAX_TIMERS = 5_000
# Extra recursion depth for decoding an answer: its value and the enclosing message.
MAX_RESPONSE_DEPTH = framing.MAX_JSON_DEPTH + 100


class ToolChannel:
    """Requests of the script that are not answered yet."""

    def __init__(self, id: int, clock: ScriptClock) -> None:
        self.clock = clock
        self._id = id
        self._last = self._timers = 0
        self._unsent: list[bytes] = []
        self._answers: deque[dict[str, Any]] = deque()
        self._pending_futures: dict[int, asyncio.Future[Any] | asyncio.TimerHandle] = {}
        self._frames = framing.FrameDecoder(MAX_REPLAY_BYTES)

    def call(self, tool: bytes, arguments: bytes) -> asyncio.Future[Any]:
        """Request a tool call. Both the name and the arguments are encoded as JSON."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        # If nothing else can run, wait for the answer right here and save an iteration of the event loop.
        alone = not self._pending_futures and isinstance(loop, ScriptLoop) and loop.is_idle()
        number = self._next_id(future)
        self._unsent.append(b'{"n":%d,"tool":%s,"arguments":%s}' % (number, tool, arguments))
        if alone:
            self.idle()
        return future

    def call_at(self, seconds: float, timer: asyncio.TimerHandle) -> None:
        self._timers += 1
        if self._timers > MAX_TIMERS:
            raise RuntimeError(f"a script may have at most {MAX_TIMERS:,} timers")
        seconds = min(max(seconds, 0.0), 1e9) if math.isfinite(seconds) else 1e9
        self._unsent.append(b'{"n":%d,"seconds":%s}' % (self._next_id(timer), repr(seconds).encode()))

    def _next_id(self, waiting: asyncio.Future[Any] | asyncio.TimerHandle) -> int:
        self._last += 1
        self._pending_futures[self._last] = waiting
        return self._last

    def idle(self) -> None:
        """Send the pending requests and deliver the next answer. Called when the script has nothing else to do."""
        self._send()
        while not self._answers:
            # Without a pending request no answer will ever come: report the deadlock instead of blocking.
            if all(value.cancelled() for value in self._pending_futures.values()):
                raise RuntimeError("the script waits for an event that can never occur")
            data = os.read(CHANNEL_FD, CHUNK_BYTES)
            if not data:
                raise SystemExit("the server closed the channel")
            for frame in self._frames.feed(data):
                self._answers.extend(_read(frame)["answers"])
        self._deliver(self._answers.popleft())

    def _send(self) -> None:
        """Send the pending requests, in frames of limited size."""
        unsent, self._unsent = self._unsent, []
        frame: list[bytes] = []
        size = 0
        for item in unsent:
            if frame and size + len(item) >= MAX_FRAME_BYTES:
                self._write(frame)
                frame, size = [], 0
            frame.append(item)
            size += len(item) + 1
        if frame:
            self._write(frame)

    def _write(self, calls: list[bytes]) -> None:
        framing.write_frame(CHANNEL_FD, b'{"id":%d,"calls":[%s]}' % (self._id, b",".join(calls)))

    def _deliver(self, answer: dict[str, Any]) -> None:
        self.clock.advance_to(answer["at"])
        waiting = self._pending_futures.pop(answer["n"], None)
        if waiting is None or waiting.cancelled():
            return
        if isinstance(waiting, asyncio.TimerHandle):
            waiting._run()
        elif "error" in answer:
            waiting.set_exception(ToolCallRejected(answer["error"]))
        else:
            waiting.set_result(answer.get("value"))

    def close(self) -> None:
        """Drop the requests that were not sent."""
        self._unsent.clear()


def _read(frame: bytes) -> Any:
    """Decode a frame, even if the script is close to the recursion limit."""
    text = frame.decode()
    try:
        return _decode(text)[0]
    except RecursionError:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(usual + MAX_RESPONSE_DEPTH)
        try:
            return _decode(text)[0]
        finally:
            sys.setrecursionlimit(usual)


class ToolCallRejected(Exception):
    """The error of a call, on its way to the function that made it."""

    def __init__(self, details: dict[str, Any]) -> None:
        super().__init__(details.get("text"))
        self.details = details


# `raw_decode` skips the handling of whitespace and encodings, which the server does not send.
_decode = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_json(value: Any) -> bytes:
    return _encode(value).encode()


class _ChannelSelector(selectors.SelectSelector):
    """Selector that waits only for the channel, whenever the event loop is idle."""

    def __init__(self, channel: ToolChannel) -> None:
        super().__init__()
        self._channel = channel

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._channel.idle()
        return []


class ScriptLoop(asyncio.SelectorEventLoop):
    """Event loop that uses the server's time: timers are requests, like tool calls."""

    def __init__(self, channel: ToolChannel) -> None:
        self._channel = channel
        super().__init__(_ChannelSelector(channel))

    def is_idle(self) -> bool:
        """Return whether the loop has nothing to run after the current step."""
        return not self._ready and not self._stopping  # type: ignore[attr-defined]

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Print an uncaught exception briefly: asyncio's own message would reveal paths of the server."""
        failure = context.get("exception")
        message = str(context.get("message") or "Unhandled exception").partition("\n")[0].partition(" in callback")[0]
        print(message if failure is None else f"{message}: {format_exception(failure)}", file=sys.stderr)

    def time(self) -> float:
        return self._channel.clock.monotonic()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._channel.call_at(when - self.time(), timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)
