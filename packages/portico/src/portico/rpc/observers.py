"""Observers of incoming and outgoing requests, such as an audit log or a tracer.

Without observers, no call passes through this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.protocol.errors import ProtocolError
from portico.protocol.jsonrpc import JsonRpcMessage
from portico.rpc.call import Call

if TYPE_CHECKING:
    from portico.rpc import metrics as metrics_module
    from portico.rpc.metrics import Metrics
else:
    metrics_module = LazyModule("portico.rpc.metrics")

SendCall = Callable[[Call], Awaitable[Any]]


class Observer:
    """Base class of observers. Subclasses override the events they need. An exception raised here would become the
    client's error, so observers must not raise.
    """

    def on_request_start(self, call: Call) -> None:
        """Handle the start of a request, in the context in which its handler will run."""

    def on_request_end(self, call: Call, result: Any, failure: BaseException | None, seconds: float) -> None:
        """Handle the end of a request: answered, failed or cancelled."""

    def notify(self, call: Call) -> None:
        """Handle a notification."""

    def on_rejected_message(self, frame: JsonRpcMessage, failure: ProtocolError, address: str | None) -> None:
        """Handle a message that was rejected before it became a call."""

    def on_rejected_http_request(self, address: str, line: str, status: int, size: int) -> None:
        """Handle an HTTP request that was rejected before its message was parsed."""

    def on_session_closed(self, server: str, revision: str, over_http: bool, seconds: float) -> None:
        """Handle the end of a connection from this process to a server."""

    async def wrap_outgoing(self, call: Call, server: str, send: SendCall) -> Any:
        """Wrap a request from this process to a server. The Call passed to `send` is the one that is sent."""
        return await send(call)


# Observers of this process. A dispatcher reads them once, when it is created; outgoing requests read them each time.
OBSERVERS: list[Observer] = []


class ObserverChain:
    """Replaces the metrics of a dispatcher and forwards every event to them and to the observers."""

    def __init__(self, metrics: Metrics | None, observers: Sequence[Observer]) -> None:
        self._metrics: Metrics = metrics or metrics_module.Metrics()
        # A tuple, so that a plugin that registers later cannot see the end of a request without its start.
        self._observers = tuple(observers)
        self.scheduler = self._metrics.scheduler

    @property
    def in_flight(self) -> int:
        return self._metrics.in_flight

    def begin(self, call: Call) -> float:
        return self._metrics.begin(call)

    def run(self, start: Callable[[Call], Any], call: Call) -> Any:
        """Start a call, in its own context."""
        for observer in self._observers:
            observer.on_request_start(call)
        return start(call)

    def end(self, call: Call, result: Any, failure: BaseException | None, started_at: float) -> float:
        seconds = self._metrics.end(call, result, failure, started_at)
        for observer in self._observers:
            observer.on_request_end(call, result, failure, seconds)
        return seconds

    def record_rejected(self, frame: JsonRpcMessage, failure: ProtocolError, address: str | None) -> None:
        for observer in self._observers:
            observer.on_rejected_message(frame, failure, address)

    def notify(self, call: Call) -> None:
        for observer in self._observers:
            observer.notify(call)


def notify_rejected_http_request(address: str, line: str, status: int, size: int) -> None:
    for observer in OBSERVERS:
        observer.on_rejected_http_request(address, line, status, size)


def notify_session_closed(server: str, revision: str, over_http: bool, seconds: float) -> None:
    for observer in OBSERVERS:
        observer.on_session_closed(server, revision, over_http, seconds)


async def send_observed(call: Call, server: str, send: SendCall) -> Any:
    """Send a request wrapped by every observer, the first one outermost."""
    for observer in reversed(OBSERVERS):
        send = _wrap_send(observer, server, send)
    return await send(call)


def _wrap_send(observer: Observer, server: str, send: SendCall) -> SendCall:
    return lambda call: observer.wrap_outgoing(call, server, send)
