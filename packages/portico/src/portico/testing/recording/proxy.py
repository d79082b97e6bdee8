"""Transparent recording proxy between a client and a server."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from portico.protocol.errors import HttpStatusError, InternalError, ProtocolError, TransportError
from portico.protocol.lifecycle import InitializeResult
from portico.protocol.meta import SUBSCRIPTION_ID_META_KEY
from portico.protocol.tools import ListToolsResult
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_03_26
from portico.rpc.call import Call, get_capabilities
from portico.rpc.channel import MAX_IN_FLIGHT_REQUESTS, Channel
from portico.testing.recording.file import Recorder
from portico.transports import stdio
from portico.transports.base import ClientTransport, InMemoryTransport
from portico.transports.event_loop import LifespanTask
from portico.transports.http_client.sse import SseTransport
from portico.transports.http_client.streamable_http import StreamableHttpTransport
from portico.transports.process import ProcessTransport
from portico.transports.targets import CommandTarget, InProcessTarget, Target, UrlTarget

# Ids for requests whose original ids are strings. The range avoids clients that count from 1.
SERVER_REQUEST_ID_START = 1 << 40
# 2025-03-26, basic/transports: status codes which indicate a server with the older HTTP+SSE transport.
_LEGACY_STATUS_CODES = (400, 404, 405)


class _ProxyStdio(stdio.StdioConnection):
    """Standard input and output without a session: the handshake is forwarded to the server too."""

    def __init__(self, proxy: RecordingProxy) -> None:
        super().__init__(
            proxy,
            max_message_size=stdio.MAX_MESSAGE_BYTES,
            max_concurrent_requests=MAX_IN_FLIGHT_REQUESTS,
            lifecycle="auto",
        )
        self.channel = Channel(proxy, self.send, drain=self.drain)


class RecordingProxy:
    """Handler that forwards client messages to the server, and the server's messages back to the client."""

    def __init__(self, target: Target, recorder: Recorder) -> None:
        self._target = target
        self._recorder = recorder
        self._transport: ClientTransport | None = None
        self._host: LifespanTask | None = None
        self._ids = count(SERVER_REQUEST_ID_START).__next__
        # The client's string ids, by the integer ids sent to the server.
        self._client_ids: dict[int, str] = {}
        self.client: Channel | None = None

    # Opening and closing

    async def serve(self, stdin: int, stdout: int) -> None:
        """Forward one client until it or the server disconnects."""
        try:
            connection = _ProxyStdio(self)
            self.client = connection.channel
            await self._connect(connection)
            await stdio.serve_connection(connection, stdin, stdout)
        finally:
            await self._close()

    async def _connect(
        self, connection: _ProxyStdio, kind: type[StreamableHttpTransport | SseTransport] = StreamableHttpTransport
    ) -> None:
        target, incoming = self._target, _FromServer(self)
        transport: ClientTransport
        if isinstance(target, InProcessTarget):
            # A server in this process needs its lifespan, as it would have when served.
            self._host = LifespanTask(get_capabilities(target.handler).lifespan)
            await self._host.entered
            transport = InMemoryTransport(target.handler, incoming, principal=None, trace=self._recorder.record)
        elif isinstance(target, CommandTarget):
            transport = ProcessTransport(
                target.words, incoming, env=target.env, cwd=target.cwd, trace=self._recorder.record
            )
            # A server that ends takes the recording with it.
            transport.on_missed_messages = connection.ended.set
        else:
            kind = SseTransport if target.sse else kind
            transport = kind(target.url, incoming, trace=self._recorder.record, headers=target.headers)
        self._transport = transport
        await transport.start()

    async def _close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
        if self._host is not None:
            await self._host.exit()

    # From the client to the server

    async def __call__(self, call: Call) -> Any:
        transport = self._transport
        assert transport is not None
        # Without a session: since 2026-07-28 every request carries its version.
        modern = call.protocol_version is not None and call.protocol_version >= FIRST_MODERN_VERSION
        if modern:
            transport.set_protocol_version(FIRST_MODERN_VERSION)
        try:
            if call.id is None:
                return await transport(Call(method=call.method, params=call.params))
            return await self._forward_request(transport, call, modern)
        except TransportError as failure:
            raise InternalError(f"cannot reach the server: {failure}") from None

    async def _forward_request(self, transport: ClientTransport, call: Call, modern: bool) -> Any:
        id = call.id
        if not isinstance(id, int):
            # Our channels use integer ids; the string is restored where the server repeats it.
            id = self._ids()
            self._client_ids[id] = str(call.id)
        sent = Call(
            method=call.method, params=call.params, id=id, protocol_version=call.protocol_version if modern else None
        )
        try:
            result = await transport(sent)
        except (ProtocolError, HttpStatusError) as failure:
            if call.method != "initialize" or not self._may_be_older(transport, failure):
                raise
            result = await self._retry_with_sse(sent)
        finally:
            self._client_ids.pop(id, None)
        self._apply_negotiation(call, result)
        return result

    def _may_be_older(self, transport: ClientTransport, failure: ProtocolError | HttpStatusError) -> bool:
        return (
            isinstance(self._target, UrlTarget)
            and isinstance(transport, StreamableHttpTransport)
            and failure.http_status in _LEGACY_STATUS_CODES
        )

    async def _retry_with_sse(self, call: Call) -> Any:
        """Repeat the handshake over the HTTP+SSE transport of 2024-11-05."""
        assert isinstance(self._target, UrlTarget)
        assert self._transport is not None
        await self._transport.close()
        self._transport = SseTransport(
            self._target.url, _FromServer(self), trace=self._recorder.record, headers=self._target.headers
        )
        await self._transport.start()
        return await self._transport(call)

    def _apply_negotiation(self, call: Call, result: Any) -> None:
        """Apply the negotiated protocol version and tool list to the transports, which depend on them."""
        transport = self._transport
        assert transport is not None
        try:
            if call.method == "initialize":
                version = msgspec.json.decode(result, type=InitializeResult).protocol_version
                transport.set_protocol_version(version)
                assert self.client is not None
                # Only 2025-03-26 has JSON-RPC batches.
                self.client.batching_enabled = version == V2025_03_26
            elif call.method == "tools/list" and isinstance(transport, StreamableHttpTransport):
                # Some tools have arguments that are also sent as HTTP headers.
                transport.filter_callable_tools(msgspec.json.decode(result, type=ListToolsResult).tools)
        except msgspec.DecodeError:
            pass  # the client reports an invalid response itself

    # From the server to the client

    def receive(self, call: Call) -> Any:
        """Forward a message of the server to the client."""
        client = self.client
        assert client is not None
        if call.id is not None:
            return client.request(call.method, call.params or None)
        client.notify(call.method, self._restore_ids(call.params) if self._client_ids else call.params or None)
        return None

    def _restore_ids(self, params: Raw) -> Any:
        """Restore the client's original request id in the subscription id of a notification."""
        decoded_params = msgspec.json.decode(params) if params else None
        meta = decoded_params.get("_meta") if isinstance(decoded_params, dict) else None
        if isinstance(meta, dict) and meta.get(SUBSCRIPTION_ID_META_KEY) in self._client_ids:
            meta[SUBSCRIPTION_ID_META_KEY] = self._client_ids[meta[SUBSCRIPTION_ID_META_KEY]]
        return decoded_params


class _FromServer:
    """Handler of server messages other than responses.

    Notifications are forwarded synchronously, to preserve their order.
    """

    def __init__(self, proxy: RecordingProxy) -> None:
        self.start = proxy.receive

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if asyncio.iscoroutine(result) else result
