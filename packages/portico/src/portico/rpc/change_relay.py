"""In-process subscription to the change notifications of a handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from msgspec import Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import ProtocolError, TransportError
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities
from portico.protocol.methods import METHODS
from portico.protocol.subscriptions import (
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
    SubscriptionsListenParams,
)
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call, CallbackReply, Handler, NotificationCallback, cancel_request_task, get_capabilities

# Upper limit of the exponential backoff after unexpected errors.
MAX_BACKOFF_SECONDS = 30.0

log = logging.getLogger("portico")

# Delay before the relay subscribes again after a broken connection.
RETRY_DELAY_SECONDS = 1.0


class ChangeRelay:
    """Forward the change notifications of a handler to a callback until closed.

    The relay subscribes immediately, not in a later iteration of the event loop, so no change after its creation is
    missed. If the connection breaks, it subscribes again and calls `on_gap`, because changes in between were missed.
    """

    def __init__(
        self,
        handler: Handler,
        filter: SubscriptionFilter,
        callback: NotificationCallback,
        *,
        principal: Any = None,
        address: str | None = None,
        capabilities: ClientCapabilities = NO_CAPABILITIES,
        on_gap: Callable[[], None] | None = None,
    ) -> None:
        # The notifications that the handler agreed to send, or the error with which it refused.
        self.acknowledged: SubscriptionFilter | None = None
        self.error: ProtocolError | None = None
        # Set when either is known, or when the first attempt failed.
        self.ready = asyncio.Event()
        self._callback = callback
        self._on_gap = on_gap
        self._pause = RETRY_DELAY_SECONDS
        self._handler = handler
        self._call = Call(
            method="subscriptions/listen",
            params=Raw(jsonrpc.encode(SubscriptionsListenParams(filter))),
            id=0,
            protocol_version=FIRST_MODERN_VERSION,
            reply=CallbackReply(self._on_notification),
            principal=principal,
            address=address,
            capabilities=capabilities,
        )
        # `_start` runs here and not in the task, so the subscription exists when the constructor returns.
        self._task = asyncio.get_running_loop().create_task(self._listen(self._start()))

    @property
    def closed(self) -> bool:
        return self._task.done()

    def close(self) -> None:
        self._call.reply.cancel()
        cancel_request_task(self._call.reply, self._task)

    def _on_notification(self, method: str, params: Any) -> None:
        params = METHODS[method].decode(params) if type(params) is Raw and method in METHODS else params
        if method == notifications.SUBSCRIPTIONS_ACKNOWLEDGED:
            self.acknowledged = (
                params.notifications if isinstance(params, SubscriptionsAcknowledgedParams) else SubscriptionFilter()
            )
            self.ready.set()
        else:
            self._callback(method, params)

    def _start(self) -> Any:
        """Return a coroutine that runs for the duration of the subscription, or the exception that prevented it."""
        try:
            return get_capabilities(self._handler).start(self._call)
        except Exception as failure:
            return failure

    async def _listen(self, listening: Any) -> None:
        self._call.reply.running = True
        try:
            while await self._listen_once(listening):
                await asyncio.sleep(self._pause)
                if self._on_gap is not None:
                    self._on_gap()
                listening = self._start()
        finally:
            self.ready.set()

    async def _listen_once(self, listening: Any) -> bool:
        """Run one subscription to its end. Return whether it broke and should be retried."""
        try:
            if isinstance(listening, Exception):
                raise listening
            if type(listening) is CoroutineType:
                await listening
        # The handler does not support subscriptions. Trying again would not change that.
        except ProtocolError as refusal:
            log.debug("no notifications of changes: %s", refusal.message)
            self.error = refusal
        except TransportError as failure:
            log.debug("subscribing again after a connection failure: %s", failure)
            # A lost connection is normal and has its own backoff in the transport; a bug in the handler is not
            # (see below).
            self._pause = RETRY_DELAY_SECONDS
            self.ready.set()
            return True
        except Exception:
            self._pause = min(2 * self._pause, MAX_BACKOFF_SECONDS)
            log.exception("error while listening for changes; trying again in %g s", self._pause)
            self.ready.set()
            return True
        return False
