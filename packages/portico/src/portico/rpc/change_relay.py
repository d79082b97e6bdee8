"""Listening to a handler from inside this process: a `subscriptions/listen` of our own."""

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
from portico.protocol.subscriptions import AcknowledgedParams, Filter, ListenParams
from portico.protocol.versions import MODERN
from portico.rpc.call import Call, Emit, Handler, Listening, members, stop

# The longest pause before a failed relay is tried again.
MAX_BACKOFF_SECONDS = 30.0

log = logging.getLogger("portico")

# Before a handler is listened to again whose connection broke.
PAUSE_SECONDS = 1.0


class ChangeRelay:
    """Gives `tell` what a handler tells of, until it is ended.

    The handler is asked at once, not in a later turn of the loop: what changes from here on is heard. When its
    connection breaks it is asked again, and `missed` is called, because what changed meanwhile was not heard.
    """

    def __init__(
        self,
        handler: Handler,
        wanted: Filter,
        tell: Emit,
        *,
        principal: Any = None,
        address: str | None = None,
        capabilities: ClientCapabilities = NO_CAPABILITIES,
        missed: Callable[[], None] | None = None,
    ) -> None:
        # What the handler has agreed to tell of, or why it tells of nothing.
        self.acknowledged: Filter | None = None
        self.refusal: ProtocolError | None = None
        # Set as soon as one of the two is known, or the first attempt has failed.
        self.settled = asyncio.Event()
        self._tell = tell
        self._missed = missed
        self._pause = PAUSE_SECONDS
        self._handler = handler
        self._call = Call(
            method="subscriptions/listen",
            params=Raw(jsonrpc.encode(ListenParams(wanted))),
            id=0,
            revision=MODERN,
            reply=Listening(self._hear),
            principal=principal,
            address=address,
            capabilities=capabilities,
        )
        self._task = asyncio.get_running_loop().create_task(self._listen(self._start()))

    @property
    def ended(self) -> bool:
        return self._task.done()

    def end(self) -> None:
        self._call.reply.cancel()
        stop(self._call.reply, self._task)

    def _hear(self, method: str, params: Any) -> None:
        params = METHODS[method].decode(params) if type(params) is Raw and method in METHODS else params
        if method == notifications.ACKNOWLEDGED:
            self.acknowledged = params.notifications if isinstance(params, AcknowledgedParams) else Filter()
            self.settled.set()
        else:
            self._tell(method, params)

    def _start(self) -> Any:
        """A coroutine that lasts as long as the handler listens; or the exception with which it did not begin to."""
        try:
            return members(self._handler).start(self._call)
        except Exception as failure:
            return failure

    async def _listen(self, listening: Any) -> None:
        self._call.reply.running = True
        try:
            while await self._is_broken(listening):
                await asyncio.sleep(self._pause)
                if self._missed is not None:
                    self._missed()
                listening = self._start()
        finally:
            self.settled.set()

    async def _is_broken(self, listening: Any) -> bool:
        """Listen to the end. Whether it was none that the handler chose."""
        try:
            if isinstance(listening, Exception):
                raise listening
            if type(listening) is CoroutineType:
                await listening
        except ProtocolError as refusal:
            log.debug("no notifications of changes: %s", refusal.message)
            self.refusal = refusal
        except TransportError as failure:
            log.debug("a connection is listened to again: %s", failure)
            self._pause = PAUSE_SECONDS
            self.settled.set()
            return True
        except Exception:
            self._pause = min(2 * self._pause, MAX_BACKOFF_SECONDS)
            log.exception("error while listening for changes; trying again in %g s", self._pause)
            self.settled.set()
            return True
        return False
