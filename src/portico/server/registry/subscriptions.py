"""subscriptions/listen: the clients that hear of changes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from msgspec import Raw, Struct

from portico.rpc.call import Call, Emit
from portico.wire import jsonrpc, notices
from portico.wire.content import EmptyResult
from portico.wire.errors import InternalError
from portico.wire.meta import SUBSCRIPTION_ID, ServerCapabilities
from portico.wire.subscriptions import AcknowledgedParams, Filter
from portico.wire.tasks import EXTENSION

log = logging.getLogger("portico")

MOST_LISTENERS = 100_000
MOST_URIS = 1000


class Subscriber(Struct, eq=False):
    """A client that listens: what it wants, and the way to it."""

    emit: Emit
    wants: Filter
    # 2026-07-28, basic/patterns/subscriptions: every notification carries the id of the listen request.
    tag: dict[str, Any]

    def is_for(self, method: str, uri: str | None) -> bool:
        """Whether a change is among what it wants; a resource also if it lies below one that it subscribed to."""
        if uri is not None:
            uris = self.wants.resource_subscriptions or ()
            return uri in uris or any(uri.startswith(f"{parent.rstrip('/')}/") for parent in uris)
        return (
            (method == notices.TOOLS_CHANGED and self.wants.tools_list_changed)
            or (method == notices.PROMPTS_CHANGED and self.wants.prompts_list_changed)
            or (method == notices.RESOURCES_CHANGED and self.wants.resources_list_changed)
        )

    def tell(self, method: str, params: Any) -> None:
        try:
            self.emit(method, params)
        except Exception:
            log.exception("a listener could not be told of %s", method)


def honoured(wanted: Filter, capabilities: ServerCapabilities) -> Filter:
    """The part of what is wanted that a server with these capabilities tells of."""

    def tells(feature: str, flag: str = "listChanged") -> bool:
        return bool((getattr(capabilities, feature) or {}).get(flag))

    return Filter(
        tools_list_changed=wanted.tools_list_changed and tells("tools"),
        prompts_list_changed=wanted.prompts_list_changed and tells("prompts"),
        resources_list_changed=wanted.resources_list_changed and tells("resources"),
        resource_subscriptions=wanted.resource_subscriptions if tells("resources", "subscribe") else None,
        task_ids=wanted.task_ids if EXTENSION in (capabilities.extensions or {}) else None,
    )


class Subscriptions:
    """The listeners of one server, and the changes they have not been told of yet."""

    def __init__(self) -> None:
        self._listeners: set[Subscriber] = set()
        self._waiting: set[tuple[str, str | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def listen(self, call: Call, wants: Filter) -> EmptyResult:
        """Tell the sender of a call what it wants to hear of, until it or the server ends the call."""
        if len(self._listeners) >= MOST_LISTENERS or len(wants.resource_subscriptions or ()) > MOST_URIS:
            raise InternalError("Refused: too many subscriptions")
        self._loop = asyncio.get_running_loop()
        subscriber = Subscriber(call.reply.emit, wants, {SUBSCRIPTION_ID: call.id})
        call.reply.emit(notices.ACKNOWLEDGED, AcknowledgedParams(meta=subscriber.tag, notifications=wants))
        self._listeners.add(subscriber)
        try:
            await self._loop.create_future()
        except asyncio.CancelledError:
            # Cancelled by the client it has no answer; otherwise it is the server that ends it, with a result.
            if call.reply.cancelled:
                raise
        finally:
            self._listeners.discard(subscriber)
        return EmptyResult(meta=Raw(jsonrpc.encode(subscriber.tag)))

    def publish(self, method: str, uri: str | None = None) -> None:
        """Tell every listener that wants it of a change, once for all changes made in one go. From any thread."""
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
            for subscriber in [one for one in self._listeners if one.is_for(method, uri)]:
                tag = subscriber.tag
                params = notices.NoticeParams(meta=tag)
                if uri is not None:
                    params = notices.ResourceUpdatedParams(meta=tag, uri=uri)
                subscriber.tell(method, params)
