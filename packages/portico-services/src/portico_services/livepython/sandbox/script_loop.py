"""How a script in the jail asks for things: its only way out, and a loop that waits for nothing else."""

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
from portico_services.livepython.sandbox.display import told
from portico_services.livepython.sandbox.limits import MIB

# Where the server is: the same as in the fork server.
CHANNEL = 3
LONGEST_FRAME = 4 * MIB
# What the server says is believed, and bounded by it: of a journal that is gone on with, all results may come at once.
LONGEST_ANSWERS = 2**32 - 1
CHUNK = 32 * 1024
MOST_TIMERS = 5_000
# How much deeper than Python's usual limit an answer may be: its value, and what that stands in.
DEEPEST_ANSWER = framing.DEEPEST_JSON + 100


class ToolChannel:
    """What the script has asked for and not been told yet."""

    def __init__(self, id: int, clock: ScriptClock) -> None:
        self.clock = clock
        self._id = id
        self._last = self._timers = 0
        self._unsent: list[bytes] = []
        self._answers: deque[dict[str, Any]] = deque()
        self._waiting: dict[int, asyncio.Future[Any] | asyncio.TimerHandle] = {}
        self._frames = framing.Frames(LONGEST_ANSWERS)

    def call(self, tool: bytes, arguments: bytes) -> asyncio.Future[Any]:
        """The tool by its name, in JSON as its arguments are."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        # Where the answer to this is all that can happen next, the loop need not look for something else.
        alone = not self._waiting and isinstance(loop, ScriptLoop) and loop.has_nothing_to_do()
        number = self._number(future)
        self._unsent.append(b'{"n":%d,"tool":%s,"arguments":%s}' % (number, tool, arguments))
        if alone:
            self.idle()
        return future

    def call_at(self, seconds: float, timer: asyncio.TimerHandle) -> None:
        self._timers += 1
        if self._timers > MOST_TIMERS:
            raise RuntimeError(f"a script waits at most {MOST_TIMERS:,} times")
        seconds = min(max(seconds, 0.0), 1e9) if math.isfinite(seconds) else 1e9
        self._unsent.append(b'{"n":%d,"seconds":%s}' % (self._number(timer), repr(seconds).encode()))

    def _number(self, waiting: asyncio.Future[Any] | asyncio.TimerHandle) -> int:
        self._last += 1
        self._waiting[self._last] = waiting
        return self._last

    def idle(self) -> None:
        """Nothing is left to do: say what is wanted, and take the next answer."""
        self._send()
        while not self._answers:
            if all(one.cancelled() for one in self._waiting.values()):
                raise RuntimeError("the script waits for something that nothing will bring about")
            said = os.read(CHANNEL, CHUNK)
            if not said:
                raise SystemExit("the server has hung up")
            for frame in self._frames.feed(said):
                self._answers.extend(_read(frame)["answers"])
        self._take(self._answers.popleft())

    def _send(self) -> None:
        """In frames that are not too long."""
        unsent, self._unsent = self._unsent, []
        frame: list[bytes] = []
        size = 0
        for one in unsent:
            if frame and size + len(one) >= LONGEST_FRAME:
                self._write(frame)
                frame, size = [], 0
            frame.append(one)
            size += len(one) + 1
        if frame:
            self._write(frame)

    def _write(self, calls: list[bytes]) -> None:
        framing.write(CHANNEL, b'{"id":%d,"calls":[%s]}' % (self._id, b",".join(calls)))

    def _take(self, answer: dict[str, Any]) -> None:
        self.clock.set(answer["at"])
        waiting = self._waiting.pop(answer["n"], None)
        if waiting is None or waiting.cancelled():
            return
        if isinstance(waiting, asyncio.TimerHandle):
            waiting._run()
        elif "error" in answer:
            waiting.set_exception(ToolRefusal(answer["error"]))
        else:
            waiting.set_result(answer.get("value"))

    def close(self) -> None:
        """What was not sent is not wanted any more."""
        self._unsent.clear()


def _read(frame: bytes) -> Any:
    """What the server can read can be read here, too, however deep in its own calls the script is."""
    text = frame.decode()
    try:
        return _decode(text)[0]
    except RecursionError:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(usual + DEEPEST_ANSWER)
        try:
            return _decode(text)[0]
        finally:
            sys.setrecursionlimit(usual)


class ToolRefusal(Exception):
    """What a call was refused with, on its way to the function that made it."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(said.get("text"))
        self.said = said


# Without the search for blanks around it and for the encoding: the server writes neither.
_decode = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encoded(value: Any) -> bytes:
    return _encode(value).encode()


class _ChannelSelector(selectors.SelectSelector):
    """Waits for nothing but the channel: a loop asks it for more when it has nothing else to do."""

    def __init__(self, channel: ToolChannel) -> None:
        super().__init__()
        self._channel = channel

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._channel.idle()
        return []


class ScriptLoop(asyncio.SelectorEventLoop):
    """A loop whose time is the server's: a timer is something that is asked for, as a call is."""

    def __init__(self, channel: ToolChannel) -> None:
        self._channel = channel
        super().__init__(_ChannelSelector(channel))

    def has_nothing_to_do(self) -> bool:
        """Whether it would only wait, once what runs now does."""
        return not self._ready and not self._stopping  # type: ignore[attr-defined]

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """What no part of the script has caught, in a few words: asyncio's own would tell of our files."""
        failure = context.get("exception")
        message = str(context.get("message") or "Unhandled exception").partition("\n")[0].partition(" in callback")[0]
        print(message if failure is None else f"{message}: {told(failure)}", file=sys.stderr)

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
