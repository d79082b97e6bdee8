"""The Gateway: a Server whose tools, resources and prompts are those of other servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack, cast

from portico.access.secrets import Secrets
from portico.gateway.bridge import Bridge
from portico.gateway.config import (
    GatewaySettings,
    UpstreamOptions,
    UpstreamSettings,
    read,
    settings_for,
    settings_of,
)
from portico.gateway.kept import KeptLists
from portico.gateway.names import folded_alias
from portico.gateway.routes import Routes
from portico.gateway.task_ids import TaskIds
from portico.gateway.tasks import GatewayTasks
from portico.gateway.upstream import GatewayUpstream
from portico.rpc.call import Call
from portico.server.registry.service import Service
from portico.server.server import Server
from portico.transport.targets import target_of
from portico.wire.errors import UsageError
from portico.wire.mirrors import Mirror

# How often connections are looked at that nothing uses any more.
IDLE_LOOK_SECONDS = 30.0
# How often the file is looked at.
WATCH_SECONDS = 1.0

log = logging.getLogger("portico.gateway")


class Gateway(Server):
    """Every server behind one endpoint.

    `Gateway({"files": ["npx", "…"], "weather": "https://…/mcp", "notes": notes_server})`, or `Gateway.load(path)`.
    Upstreams are what a Client takes: a URL, a command, a `module:object`, a Server or any Handler. The names of an
    upstream have its alias before them.
    """

    def __init__(
        self, upstreams: Mapping[str, Any] | GatewaySettings | None = None, name: str = "gateway", **options: Any
    ) -> None:
        super().__init__(name, **options)
        self._secrets = Secrets()
        self._ending: set[asyncio.Task[None]] = set()
        self._bridge = Bridge(self.seal)
        self._kept = KeptLists()
        # The file that it was loaded from, and what it said.
        self._path: Path | None = None
        self._settings = GatewaySettings()
        self._routes = Routes(self.subscriptions.publish, self.seal)
        self._others = self._routes
        self._tasks = GatewayTasks(
            lambda: self._routes.upstreams, TaskIds(self.seal), self.registry.cursors, self._routes.outward_result
        )
        self._routes.tasks = self._tasks
        super()._add_service(self._tasks)
        self._lifespans.add(self._routes, self._serving)
        for alias, target in _given(upstreams or {}, self._secrets):
            self._add(target if isinstance(target, UpstreamSettings) else settings_for(alias, target_of(target), {}))

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Gateway:
        """The gateway that a gateway.toml or an mcp.json describes. Raises UsageError with what is wrong in it."""
        secrets = Secrets()
        settings = read(path, secrets)
        gateway = cls(**{"name": Path(path).stem, **settings.about, **options})
        gateway._secrets = secrets
        for one in settings.upstreams.values():
            gateway._add(one)
        gateway._path, gateway._settings = Path(path), settings
        return gateway

    @classmethod
    def of(cls, configuration: str | Path | Mapping[str, Any]) -> Gateway:
        """The gateway of a configuration: a file's path, or what stands in it."""
        return cls(configuration) if isinstance(configuration, Mapping) else cls.load(configuration)

    def add(self, component: Any, target: Any = None, **options: Unpack[UpstreamOptions]) -> None:
        """Add an upstream by its alias and target, at any time; or, given one thing, what `Server.add` takes."""
        if target is None:
            super().add(component)
            return
        if not isinstance(component, str):
            raise UsageError(f"{component!r} is no alias: it is a text")
        self._add(settings_for(component, target_of(target), options))

    def _add(self, settings: UpstreamSettings) -> None:
        for alias in self._routes.upstreams:
            if folded_alias(alias) == folded_alias(settings.alias):
                raise UsageError(f"there is already an upstream {alias!r}; remove it first")
        routes = self._routes
        routes.upstreams[settings.alias] = GatewayUpstream(
            settings, self.info, self._bridge, self._secrets, self._kept, routes.changed, routes.updated
        )
        routes.changed()

    def remove(self, name: str) -> None:
        """Remove an upstream by its alias, or something that this server has itself."""
        upstream = self._routes.upstreams.pop(name, None)
        if upstream is None:
            super().remove(name)
            return
        self._routes.changed()
        with contextlib.suppress(RuntimeError):
            task = asyncio.get_running_loop().create_task(upstream.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _add_service(self, service: Service) -> None:
        """Tasks of upstreams come last, around those that this server may have itself."""
        self._services.remove(self._tasks)
        super()._add_service(service)
        self._tasks.beside_own = self.tasks is not None
        self._services.append(self._tasks)
        self._extend()

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(service for service in super().services if service is not self._tasks)

    async def _discover(self, call: Call) -> Any:  # type: ignore[override]
        """What it can do depends on its upstreams, so that it waits for them as a first list does."""
        await self._routes.settled()
        self.advertise()
        return super()._discover(call)

    def advertise(self) -> None:
        """Say what is known by now of what its upstreams can do."""
        known = {name for service in self._services for name in service.extensions()}
        if not known <= set(self.capabilities.extensions or {}):
            self._extend()

    def mount(self, target: Any, prefix: str | None = None) -> None:
        """The same as `add`, with the prefix as the alias."""
        if prefix is None:
            raise UsageError("a gateway needs a prefix for what it mounts: it is the alias of the upstream")
        self.add(prefix, target)

    @property
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        return ChainMap(cast("dict[str, Sequence[Mirror]]", self.registry.mirrored), self._routes.mirrored)

    @property
    def clashes(self) -> list[str]:
        """What is hidden because something else has its name."""
        self._routes.routes("tools/list")
        return self._routes.clashes

    async def settle(self, seconds: float) -> None:
        """Wait until every upstream is listed or has failed, but not for longer."""
        await self._routes.settled(seconds)

    def status(self) -> list[dict[str, Any]]:
        """How each upstream is."""
        return [upstream.status() for upstream in self._routes.upstreams.values()]

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        await self._kept.open(self.store)
        await asyncio.gather(*(one.recall() for one in self._routes.upstreams.values()))
        tasks = [asyncio.create_task(self._look_after())]
        if self._path is not None:
            tasks.append(asyncio.create_task(self._watch(self._path)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            self._bridge.close()
            await self._tasks.close()
            await asyncio.gather(*(one.close() for one in self._routes.upstreams.values()), *self._ending)
            await self._kept.close()

    async def _watch(self, path: Path) -> None:
        """Apply what changes in the file. One that makes no sense changes nothing."""
        before = _looks(path)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = _looks(path)
            if now != before:
                before = now
                try:
                    self._apply(await asyncio.to_thread(read, path, self._secrets))
                except UsageError as mistake:
                    log.error("nothing is changed: %s", mistake)

    def _apply(self, settings: GatewaySettings) -> None:
        """Upstreams that are the same notice nothing."""
        old, new = self._settings.upstreams, settings.upstreams
        for alias in [alias for alias in old if new.get(alias) != old[alias]]:
            if alias in self._routes.upstreams:
                self.remove(alias)
        for alias in [alias for alias in new if new[alias] != old.get(alias)]:
            self._add(new[alias])
        self._routes.put_in_order(list(new))
        self._settings = settings
        log.info("%s was read again: %d upstreams", self._path, len(new))

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(IDLE_LOOK_SECONDS)
            self._bridge.sweep()
            for upstream in list(self._routes.upstreams.values()):
                await upstream.lanes.end_idle(time.monotonic())


def _looks(path: Path) -> tuple[int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _given(upstreams: Mapping[str, Any] | GatewaySettings, secrets: Secrets) -> Iterator[tuple[str, Any]]:
    if isinstance(upstreams, Mapping) and isinstance(upstreams.get("mcpServers"), Mapping):
        upstreams = settings_of(upstreams, secrets)
    yield from (upstreams.upstreams if isinstance(upstreams, GatewaySettings) else upstreams).items()
