"""Two Channels in one process, for tests and for talking to a Handler without a network.

The messages are real bytes and go through the same door as anywhere else; only the wire is missing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from portico.legacy.session import Lifecycle, Session
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.door import Sender
from portico.transport.link import Duplex, Trace


class MemoryLink(Duplex):
    """A client's Channel, connected to a Handler as over stdio."""

    def __init__(
        self,
        server: Handler,
        client: Handler,
        *,
        principal: Any = None,
        lifecycle: Lifecycle = "auto",
        trace: Trace | None = None,
    ) -> None:
        super().__init__(trace)
        self.session = Session(server, lifecycle=lifecycle)
        sender = Sender(principal=principal)
        self._there = Channel(server, self._to_client, session=self.session, sender=sender)
        self.channel = Channel(client, self._to_server)
        self.session.stream = self._there

    def _to_server(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        asyncio.get_running_loop().call_soon(self._deliver, message)

    def _deliver(self, message: bytes) -> None:
        reply = self._there.receive(message)
        if reply is not None:
            self._to_client(reply)

    def _to_client(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.take, message)

    async def close(self) -> None:
        self.channel.close()
        await self._there.end(0)
        self.session.close()
