"""Who hears of changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw, Struct

from portico.rpc.call import Call, Emit
from portico.wire import jsonrpc, notices
from portico.wire.content import EmptyResult
from portico.wire.errors import InternalError
from portico.wire.meta import SUBSCRIPTION_ID
from portico.wire.subscriptions import AcknowledgedParams, Filter, ListenParams
from portico.wire.tasks import DetailedTask, notified

log = logging.getLogger("portico")

MOST_LISTENERS = 100_000
MOST_URIS = 1000


class Listener(Struct, eq=False):
    emit: Emit
    tools: bool
    prompts: bool
    resources: bool
    uris: frozenset[str]
    tasks: frozenset[str]
    # 2026-07-28, basic/patterns/subscriptions: every notification carries the id of the listen request.
    tag: dict[str, Any]

    def wants(self, method: str, uri: str | None) -> bool:
        if uri is not None:
            return uri in self.uris or any(uri.startswith(f"{parent.rstrip('/')}/") for parent in self.uris)
        return (
            (method == notices.TOOLS_CHANGED and self.tools)
            or (method == notices.PROMPTS_CHANGED and self.prompts)
            or (method == notices.RESOURCES_CHANGED and self.resources)
        )


class Subscriptions:
    """The listeners of one server, and the changes they have not been told of yet."""

    def __init__(self, allowed: Callable[[Filter], Filter]) -> None:
        self._allowed = allowed
        self._listeners: set[Listener] = set()
        self._waiting: set[tuple[str, str | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def listen(self, call: Call, params: ListenParams, first: Sequence[Struct] = ()) -> EmptyResult:
        """`first` is how the tasks stand that are listened to, for whoever missed what came before."""
        if len(self._listeners) >= MOST_LISTENERS or len(params.notifications.resource_subscriptions or ()) > MOST_URIS:
            raise InternalError("Refused: too many subscriptions")
        honoured = self._allowed(params.notifications)
        self._loop = asyncio.get_running_loop()
        tag = {SUBSCRIPTION_ID: call.id}
        listener = Listener(
            call.reply.emit,
            honoured.tools_list_changed,
            honoured.prompts_list_changed,
            honoured.resources_list_changed,
            frozenset(honoured.resource_subscriptions or ()),
            frozenset(honoured.task_ids or ()),
            tag,
        )
        call.reply.emit(notices.ACKNOWLEDGED, AcknowledgedParams(meta=tag, notifications=honoured))
        self._listeners.add(listener)
        for said in first:
            self._emit(listener, notices.TASK, said)
        try:
            await self._loop.create_future()
        except asyncio.CancelledError:
            # Cancelled by the client, there is nobody to answer; otherwise it is us who end it, with a result.
            if call.reply.cancelled:
                raise
        finally:
            self._listeners.discard(listener)
        return EmptyResult(meta=Raw(jsonrpc.encode(tag)))

    def publish(self, method: str, uri: str | None = None) -> None:
        """Tell everybody who wants to know, once for all changes made in one go. May be called from any thread."""
        if self._loop is None or not self._listeners:
            return
        self._loop.call_soon_threadsafe(self._gather, method, uri)

    def _gather(self, method: str, uri: str | None) -> None:
        if not self._waiting and self._loop is not None:
            self._loop.call_soon(self._flush)
        self._waiting.add((method, uri))

    def _flush(self) -> None:
        changes, self._waiting = sorted(self._waiting, key=str), set()
        for method, uri in changes:
            for listener in list(self._listeners):
                if listener.wants(method, uri):
                    self._tell(listener, method, uri)

    def _tell(self, listener: Listener, method: str, uri: str | None) -> None:
        params = (
            notices.NoticeParams(meta=listener.tag)
            if uri is None
            else notices.ResourceUpdatedParams(meta=listener.tag, uri=uri)
        )
        self._emit(listener, method, params)

    def publish_task(self, id: str, said: Callable[[], Struct]) -> None:
        """The same for a task, which is told in full. Called by the loop."""
        listeners = [listener for listener in self._listeners if id in listener.tasks]
        for listener in listeners:
            self._emit(listener, notices.TASK, said())

    def _emit(self, listener: Listener, method: str, params: Any) -> None:
        if isinstance(params, DetailedTask):
            params = notified(params, listener.tag)
        try:
            listener.emit(method, params)
        except Exception:
            log.exception("a listener could not be told of %s", method)
