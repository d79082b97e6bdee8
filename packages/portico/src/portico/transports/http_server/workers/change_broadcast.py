"""What changes in one worker, told to the others by the bus of the store.

What is said in words of our own is kept there as well, for workers that are started later, as long as there are some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from portico.rpc.background_tasks import Errands
from portico.store.errors import StoreError
from portico.store.transaction import LONGEST_PAYLOAD
from portico.transports.http_server.workers.store import FleetRows

log = logging.getLogger("portico")

_OWN = "portico/"
_CHANGE = tuple[str, str, str, str | None]


class Spreading:
    """Says what has changed here, and `tell`s what has changed elsewhere: a method, and a URI."""

    def __init__(
        self, rows: FleetRows, server: str, worker: str, errands: Errands, tell: Callable[[str, str | None], None]
    ) -> None:
        self._rows = rows
        self._server = server
        self._worker = worker
        self._errands = errands
        self._tell = tell
        self._changes: dict[str, None] = {}

    def add(self, method: str, uri: str | None) -> None:
        said = msgspec.json.encode([self._server, self._worker, method, uri]).decode()
        if len(said) > LONGEST_PAYLOAD:
            log.debug("others are not told of a change: %s is too long", method)
            return
        if not self._changes:
            self._errands.do(self._say())
        self._changes[said] = None

    async def _say(self) -> None:
        # All that is said in one turn goes together.
        await asyncio.sleep(0)
        said, self._changes = list(self._changes), {}
        lasting = [one for one in map(_read, said) if one is not None and one[2].startswith(_OWN)]
        try:
            await self._rows.tell(said, [(method, name or "") for _, _, method, name in lasting])
        except StoreError as failure:
            log.warning("other workers were not told of changes: %s", failure)

    async def hear(self) -> None:
        """Until it is cancelled."""
        async with self._rows.heard() as events:
            async for event in events:
                change = _read(event.payload)
                if change is not None and change[0] == self._server and change[1] != self._worker:
                    self._tell(change[2], change[3])

    async def catch_up(self) -> None:
        """Do what was done before we came."""
        for method, name in await self._rows.kept_changes():
            self._tell(method, name)


def _read(said: str) -> _CHANGE | None:
    try:
        change: _CHANGE = msgspec.json.decode(said, type=_CHANGE)
    except msgspec.DecodeError:
        return None
    return change
