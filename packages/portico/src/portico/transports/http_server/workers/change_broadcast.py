"""Broadcast of changes between workers, over the store's message bus.

Internal changes are also stored for workers that start later, as long as any worker is running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from portico.rpc.supervision import BackgroundTasks
from portico.store.errors import StoreError
from portico.store.transaction import MAX_PAYLOAD_CHARS
from portico.transports.http_server.workers.store import WorkerStore

log = logging.getLogger("portico")

_INTERNAL_PREFIX = "portico/"
_ChangeMessage = tuple[str, str, str, str | None]


class ChangeBroadcast:
    """Publishes local changes, and calls `on_change` with the method and URI of changes in other workers."""

    def __init__(
        self,
        store: WorkerStore,
        server: str,
        worker: str,
        background_tasks: BackgroundTasks,
        on_change: Callable[[str, str | None], None],
    ) -> None:
        self._store = store
        self._server = server
        self._worker = worker
        self._background_tasks = background_tasks
        self._on_change = on_change
        self._changes: dict[str, None] = {}

    def publish(self, method: str, uri: str | None) -> None:
        message = msgspec.json.encode([self._server, self._worker, method, uri]).decode()
        if len(message) > MAX_PAYLOAD_CHARS:
            log.debug("not broadcasting a change: the payload of %s is too long", method)
            return
        if not self._changes:
            self._background_tasks.start(self._publish_pending())
        self._changes[message] = None

    async def _publish_pending(self) -> None:
        # Changes of the same iteration of the event loop are published together.
        await asyncio.sleep(0)
        messages, self._changes = list(self._changes), {}
        lasting = [item for item in map(_decode, messages) if item is not None and item[2].startswith(_INTERNAL_PREFIX)]
        try:
            await self._store.publish_changes(messages, [(method, name or "") for _, _, method, name in lasting])
        except StoreError as failure:
            log.warning("could not broadcast changes to other workers: %s", failure)

    async def listen(self) -> None:
        """Receive changes until cancelled."""
        async with self._store.subscribe_changes() as events:
            async for event in events:
                change = _decode(event.payload)
                if change is not None and change[0] == self._server and change[1] != self._worker:
                    self._on_change(change[2], change[3])

    async def replay_retained(self) -> None:
        """Apply the changes that were published before this worker started."""
        for method, name in await self._store.load_retained_changes():
            self._on_change(method, name)


def _decode(payload: str) -> _ChangeMessage | None:
    try:
        change: _ChangeMessage = msgspec.json.decode(payload, type=_ChangeMessage)
    except msgspec.DecodeError:
        return None
    return change
