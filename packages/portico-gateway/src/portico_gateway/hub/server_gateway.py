"""A gateway with one server, which looks like that server to its hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from msgspec.structs import replace

from portico.protocol import notifications
from portico.protocol.errors import InternalError, PorticoError
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation
from portico.rpc.call import Call, HandlerWrapper
from portico.rpc.channel import MAX_IN_FLIGHT_REQUESTS
from portico.server.registry.service import MethodHandler
from portico.transports.process import ProcessTransport
from portico.transports.targets import CommandTarget, InProcessTarget
from portico_gateway.gateway.catalog_cache import CatalogCache
from portico_gateway.gateway.connection import SessionClient
from portico_gateway.gateway.gateway import DiscoveryService, Gateway
from portico_gateway.gateway.settings import UpstreamSettings, make_upstream_settings
from portico_gateway.gateway.upstream import UpstreamProvider
from portico_gateway.hub.settings import ServerCommand

# Names are not prefixed, so they are as long as the server made them.
MAX_NAME_CHARS = 10_000
# Processes of a shared server: more than one only if it sends requests that do not name their call.
MAX_SHARED_CONNECTIONS = 4


class SharedCatalogCache(CatalogCache):
    """Catalog cache of all gateways of a hub. It ends with the hub, not with one of them."""

    async def close(self) -> None: ...

    async def shut_down(self) -> None:
        await super().close()


class NoClient:
    """Client that a shared process with a handshake sees instead of its hosts, without features.

    The protocol version 2026-07-28 has no handshake: each request carries the capabilities of its host.
    """

    capabilities: ClientCapabilities = NO_CAPABILITIES
    info: Implementation | None = None
    can_request = False

    async def request(self, method: str, params: Any) -> Any:
        raise InternalError(f"{method} cannot be assigned to one host")

    def notify(self, method: str, params: Any) -> None: ...


class _AttachedHandler(HandlerWrapper):
    """A shared gateway as an upstream of another one, which must not start or stop it."""

    def lifespan(self) -> Any:
        return nullcontext()


class ServerGateway(Gateway):
    """Gateway for one server, or for several of one host, whose names are prefixed then.

    `client` is the host, if the gateway serves one host only.
    """

    first_list_seconds = 60.0

    def __init__(
        self,
        servers: Sequence[tuple[ServerCommand, ServerGateway | None]],
        client: SessionClient,
        catalog_cache: CatalogCache,
        *,
        max_result_tokens: int | None = None,
    ) -> None:
        names = [command.name for command, _ in servers]
        super().__init__(name="-".join(names)[:64], max_result_tokens=max_result_tokens)
        self.servers = [command for command, _ in servers]
        self._catalog_cache = catalog_cache
        self.used_at = time.monotonic()
        for command, shared in servers:
            target = (
                CommandTarget(command.words, command.env, command.cwd, command.cache_scope)
                if shared is None
                else InProcessTarget(_AttachedHandler(shared))
            )
            tokens = command.settings.max_result_tokens
            options = {
                "timeout": command.settings.timeout,
                "isolation": "shared",
                "idle_timeout": command.settings.idle_timeout,
                "max_connections": MAX_SHARED_CONNECTIONS if command.is_shared else 1,
                # A host has its server alone without the hub, too: it is limited by its session only.
                "max_concurrency": MAX_IN_FLIGHT_REQUESTS,
                "max_queued": MAX_IN_FLIGHT_REQUESTS,
                "max_name_length": MAX_NAME_CHARS,
                **({"prefix": ""} if len(servers) == 1 else {}),
                **({} if tokens is None else {"max_result_tokens": tokens}),
            }
            self._add_upstream(replace(make_upstream_settings(command.name, target, options), is_lazy=True))
            self._router.upstreams[command.name].connections.client = client
        self._add_service(DiscoveryService(self._describe_servers))
        # The user of a host is the operator of its servers.
        self.serve_operator()

    def bounds_results_of(self, settings: UpstreamSettings) -> bool:
        # The gateway of each host does, or the host itself.
        return True

    @property
    def providers(self) -> list[UpstreamProvider]:
        return list(self._router.upstreams.values())

    async def _describe_servers(self, handler: MethodHandler, call: Call) -> DiscoverResult:
        """Answer server/discover like the servers themselves, or with an error if none of them could be started."""
        result: DiscoverResult = await handler(call)
        self._check_started()
        features = [upstream.features for upstream in self.providers]
        if len(features) == 1:
            self.info = features[0].server or self.info
        texts = [
            item.instructions if len(features) == 1 else f"{command.name}: {item.instructions}"
            for command, item in zip(self.servers, features, strict=True)
            if item.instructions
        ]
        result.instructions = "\n\n".join(texts) or None
        return result

    def _check_started(self) -> None:
        """Raise an error if no server could be started: a host shows it, unlike an empty list of tools."""
        problems = [upstream.listing_problem(self.first_list_seconds) for upstream in self.providers]
        if problems and all(problems):
            raise InternalError("; ".join(problems))

    # Processes

    def processes(self) -> Iterator[tuple[UpstreamProvider, int]]:
        """Iterate over the running processes."""
        for upstream in self.providers:
            for lane in upstream.connections:
                transport = lane.connection.transport if lane.connection.is_open else None
                pid = transport.pid if isinstance(transport, ProcessTransport) else None
                if pid is not None:
                    yield upstream, pid

    async def announce_roots(self) -> None:
        """Tell the servers that the roots of their host changed."""
        for upstream in self.providers:
            for lane in list(upstream.connections):
                if not lane.is_stateless and lane.is_alive:
                    try:
                        await lane.connection(Call(method=notifications.ROOTS_LIST_CHANGED))
                    except PorticoError:
                        # A connection that has ended is opened again by the next call, and asks for the roots.
                        continue

    async def close_idle(self) -> None:
        """Stop processes without calls. The next call starts them again."""
        for upstream in self.providers:
            if not upstream.is_here:
                await upstream.close_if_idle(upstream.settings.idle_timeout)

    async def upgrade(self) -> None:
        """Start new processes, move new calls to them, and let calls in flight end. Raises PorticoError."""
        for upstream in self.providers:
            if not upstream.is_here:
                await upstream.connections.replace_connections()

    async def restart(self) -> None:
        """Stop the processes. Calls in flight are lost; the next call starts the processes again."""
        lanes = [(upstream, lane) for upstream in self.providers for lane in upstream.connections]
        await asyncio.gather(*(upstream.connections.discard(lane) for upstream, lane in lanes))
