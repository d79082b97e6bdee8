"""Connections that one worker hands to another."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from portico.transports.http_server.workers import fd_passing


async def test_a_connection_that_was_taken_is_gone_on_with_when_no_more_are(tmp_path: Path) -> None:
    """The worker that gave it away does not answer it any more."""
    path, taking, may_go_on, gone_on = str(tmp_path / "w"), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def take(given: socket.socket, _: Any) -> None:
        with given:
            taking.set()
            await may_go_on.wait()
            gone_on.set()

    sockets = fd_passing.HandedSockets(path, lambda session: True, take)
    ours, theirs = socket.socketpair()
    with ours:
        assert await fd_passing.hand(path, theirs, fd_passing.Handed())
        async with asyncio.timeout(10):
            await taking.wait()
            sockets.close()
            may_go_on.set()
            await gone_on.wait()
