"""Two Channels in one process, for tests and for talking to a Handler without a network.

The messages are real bytes and go through the same door as anywhere else; only the wire is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from portico.legacy.session import Lifecycle, Session
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.door import Sender
from portico.transport.link import Link


class Memory(Link):
    """A client's Channel, connected to a Handler as over stdio."""

    def __init__(
        self, server: Handler, client: Handler, *, principal: Any = None, lifecycle: Lifecycle = "auto"
    ) -> None:
        self.session = Session(server, lifecycle=lifecycle)
        self._there = Channel(
            server, self._to(lambda: self.channel), session=self.session, sender=Sender(principal=principal)
        )
        self.channel = Channel(client, self._to(lambda: self._there))
        self.session.stream = self._there

    @staticmethod
    def _to(other: Callable[[], Channel]) -> Callable[[bytes], None]:
        def send(message: bytes) -> None:
            asyncio.get_running_loop().call_soon(deliver, message)

        def deliver(message: bytes) -> None:
            channel = other()
            reply = channel.receive(message)
            if reply is not None:
                channel.send(reply)

        return send

    async def close(self) -> None:
        self.channel.close()
        await self._there.end(0)
        self.session.close()
