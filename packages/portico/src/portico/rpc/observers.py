"""Who is told of each request that this process answers or asks: a log of requests, a tracer. Mostly there is none,
and then no call passes through here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol.errors import ProtocolError
from portico.protocol.jsonrpc import Frame
from portico.rpc.call import Call

if TYPE_CHECKING:
    from portico.rpc import metrics as metrics_module
    from portico.rpc.debug_log import Trace
    from portico.rpc.metrics import Metrics
else:
    metrics_module = LazyModule("portico.rpc.metrics")

Asked = Callable[[Call], Awaitable[Any]]


class Observer:
    """Overrides what it wants to know. What it raises would be the client's error, so it raises nothing."""

    def enter(self, call: Call) -> None:
        """A request is about to be answered; in the context that its body will have."""

    def end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        """It was answered, or failed, or was cancelled."""

    def refuse(self, method: str, failure: ProtocolError, address: str | None) -> None:
        """A message that never became a call."""

    def turn_away(self, address: str, line: str, status: int, size: int) -> None:
        """A request of HTTP that was refused before a message was looked for in it."""

    def close_session(self, server: str, revision: str, over_http: bool, seconds: float) -> None:
        """What this process had with a server is over."""

    async def ask(self, call: Call, server: str, ask: Asked) -> Any:
        """This process asks a server. The Call that `ask` is given is the one that is sent."""
        return await ask(call)


# Of this process. A door looks at them once, when it is made; what asks looks each time.
OBSERVERS: list[Observer] = []


class Observed:
    """Takes the place of the metrics that a door tells of each request, and passes on to them what it is told."""

    def __init__(self, metrics: Metrics | Trace | None, observers: list[Observer]) -> None:
        self._metrics: Metrics | Trace = metrics or metrics_module.Metrics()
        self._observers = tuple(observers)
        self.shares = self._metrics.shares

    @property
    def in_flight(self) -> int:
        return self._metrics.in_flight

    def begin(self, call: Call) -> float:
        return self._metrics.begin(call)

    def run(self, start: Callable[[Call], Any], call: Call) -> Any:
        """Start a call, in its own context."""
        for one in self._observers:
            one.enter(call)
        return start(call)

    def end(self, call: Call, result: Any, failure: BaseException | None, began: float) -> float:
        seconds = self._metrics.end(call, result, failure, began)
        for one in self._observers:
            one.end(call, result, failure, seconds)
        return seconds

    def refused(self, frame: Frame, failure: ProtocolError, address: str | None) -> None:
        for one in self._observers:
            one.refuse(str(frame.method), failure, address)


def turn_away(address: str, line: str, status: int, size: int) -> None:
    for one in OBSERVERS:
        one.turn_away(address, line, status, size)


def close_session(server: str, revision: str, over_http: bool, seconds: float) -> None:
    for one in OBSERVERS:
        one.close_session(server, revision, over_http, seconds)


async def ask_observed(call: Call, server: str, ask: Asked) -> Any:
    """Ask with every observer around it, the first outermost."""
    for one in reversed(OBSERVERS):
        ask = _around(one, server, ask)
    return await ask(call)


def _around(observer: Observer, server: str, ask: Asked) -> Asked:
    return lambda call: observer.ask(call, server, ask)
