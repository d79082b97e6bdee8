"""What stands between a client and a server and lets everything through, in both directions, as it is."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from portico.protocol.errors import BadStatus, InternalError, ProtocolError, TransportError
from portico.protocol.lifecycle import InitializeResult
from portico.protocol.meta import SUBSCRIPTION_ID
from portico.protocol.tools import ListToolsResult
from portico.protocol.versions import MODERN, V2025_03_26
from portico.rpc.call import Call, members
from portico.rpc.channel import MOST_IN_FLIGHT, Channel
from portico.testing.recording.file import TapeWriter
from portico.transports import stdio
from portico.transports.base import Link, MemoryLink
from portico.transports.event_loop import HeldLifespan
from portico.transports.http_client.sse import HttpSse
from portico.transports.http_client.streamable_http import StreamableHttp
from portico.transports.process import ProcessLink
from portico.transports.targets import Command, Here, Target, Url

# Where the ids begin of requests whose own are texts: the other clients count from 1.
OTHER_IDS = 1 << 40
# 2025-03-26, basic/transports: what says that a server may be of the transport before.
_OLDER = (400, 404, 405)


class _ProxyStdio(stdio.Stdio):
    """Standard input and output without a session: the handshake is the server's too."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy, longest=stdio.LONGEST_MESSAGE, most_in_flight=MOST_IN_FLIGHT, lifecycle="auto")
        self.channel = Channel(proxy, self.send, drain=self.drain)


class Proxy:
    """The Handler of what a client sends: it goes to the server, whose answers and questions come back."""

    def __init__(self, target: Target, tape: TapeWriter) -> None:
        self._target = target
        self._tape = tape
        self._link: Link | None = None
        self._host: HeldLifespan | None = None
        self._ids = count(OTHER_IDS).__next__
        # The ids of the client that are texts, by what they are towards the server.
        self._named: dict[int, str] = {}
        self.client: Channel | None = None

    # Opening and closing

    async def serve(self, stdin: int, stdout: int) -> None:
        """Let one client through until it goes away, or the server does."""
        try:
            passage = _ProxyStdio(self)
            self.client = passage.channel
            await self._connect(passage)
            await stdio.converse(passage, stdin, stdout)
        finally:
            await self._close()

    async def _connect(self, passage: _ProxyStdio, kind: type[StreamableHttp | HttpSse] = StreamableHttp) -> None:
        target, incoming = self._target, _FromServer(self)
        link: Link
        if isinstance(target, Here):
            self._host = HeldLifespan(members(target.handler).lifespan)
            await self._host.entered
            link = MemoryLink(target.handler, incoming, principal=None, trace=self._tape.note)
        elif isinstance(target, Command):
            link = ProcessLink(target.words, incoming, env=target.env, cwd=target.cwd, trace=self._tape.note)
            link.on_gap = passage.ended.set
        else:
            kind = HttpSse if target.sse else kind
            link = kind(target.url, incoming, trace=self._tape.note, headers=target.headers)
        self._link = link
        await link.start()

    async def _close(self) -> None:
        if self._link is not None:
            await self._link.close()
        if self._host is not None:
            await self._host.leave()

    # From the client to the server

    async def __call__(self, call: Call) -> Any:
        link = self._link
        assert link is not None
        modern = call.revision is not None and call.revision >= MODERN
        if modern:
            link.set_revision(MODERN)
        try:
            if call.id is None:
                return await link(Call(method=call.method, params=call.params))
            return await self._ask(link, call, modern)
        except TransportError as failure:
            raise InternalError(f"the server cannot be reached: {failure}") from None

    async def _ask(self, link: Link, call: Call, modern: bool) -> Any:
        id = call.id
        if not isinstance(id, int):
            id = self._ids()
            self._named[id] = str(call.id)
        sent = Call(method=call.method, params=call.params, id=id, revision=call.revision if modern else None)
        try:
            result = await link(sent)
        except (ProtocolError, BadStatus) as failure:
            if call.method != "initialize" or not self._may_be_older(link, failure):
                raise
            result = await self._ask_older(sent)
        finally:
            self._named.pop(id, None)
        self._learn(call, result)
        return result

    def _may_be_older(self, link: Link, failure: ProtocolError | BadStatus) -> bool:
        return isinstance(self._target, Url) and isinstance(link, StreamableHttp) and failure.status in _OLDER

    async def _ask_older(self, call: Call) -> Any:
        """Shake hands over the transport of 2024-11-05."""
        assert isinstance(self._target, Url)
        assert self._link is not None
        await self._link.close()
        self._link = HttpSse(self._target.url, _FromServer(self), trace=self._tape.note, headers=self._target.headers)
        await self._link.start()
        return await self._link(call)

    def _learn(self, call: Call, result: Any) -> None:
        """What the two of them agree on matters to the transports between them."""
        link = self._link
        assert link is not None
        try:
            if call.method == "initialize":
                revision = msgspec.json.decode(result, type=InitializeResult).protocol_version
                link.set_revision(revision)
                assert self.client is not None
                self.client.batches = revision == V2025_03_26
            elif call.method == "tools/list" and isinstance(link, StreamableHttp):
                # Arguments of some tools stand in headers too.
                link.usable_tools(msgspec.json.decode(result, type=ListToolsResult).tools)
        except msgspec.DecodeError:
            pass  # the client says what it thinks of it

    # From the server to the client

    def receive(self, call: Call) -> Any:
        client = self.client
        assert client is not None
        if call.id is not None:
            return client.request(call.method, call.params or None)
        client.emit(call.method, self._as_asked(call.params) if self._named else call.params or None)
        return None

    def _as_asked(self, params: Raw) -> Any:
        """The params with the id by which the client knows a subscription."""
        said = msgspec.json.decode(params) if params else None
        meta = said.get("_meta") if isinstance(said, dict) else None
        if isinstance(meta, dict) and meta.get(SUBSCRIPTION_ID) in self._named:
            meta[SUBSCRIPTION_ID] = self._named[meta[SUBSCRIPTION_ID]]
        return said


class _FromServer:
    """The Handler of what a server sends besides results. Notifications are taken at once, in their order."""

    def __init__(self, proxy: Proxy) -> None:
        self.start = proxy.receive

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if asyncio.iscoroutine(result) else result
