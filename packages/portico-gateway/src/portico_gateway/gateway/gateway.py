"""The Gateway: a Server whose tools, resources and prompts are those of other servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import msgspec

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.protocol.header_params import Mirror
from portico.protocol.lifecycle import DiscoverResult
from portico.rpc import supervision
from portico.rpc.call import Call
from portico.rpc.supervision import BackgroundTasks
from portico.secret_references import Secrets
from portico.server.apps import PassedPages
from portico.server.policy import settings as access
from portico.server.policy.interfaces import Kind, Owned
from portico.server.providers.naming import folded_alias
from portico.server.registry.catalog import KINDS
from portico.server.registry.service import Answer, Service
from portico.server.server import FaceChoice, Server
from portico.transports.targets import Url, target_of
from portico.transports.upstream import Upstream
from portico_gateway.gateway import status
from portico_gateway.gateway.catalog_cache import KeptLists
from portico_gateway.gateway.reload import WATCH_SECONDS, ConfigurationWatch, ReloadStatus
from portico_gateway.gateway.router import Routes
from portico_gateway.gateway.server_request_bridge import Bridge
from portico_gateway.gateway.settings import (
    GatewaySettings,
    UpstreamOptions,
    UpstreamSettings,
    read,
    settings_for,
    settings_of,
)
from portico_gateway.gateway.skills import GatewaySkills
from portico_gateway.gateway.task_ids import TaskIds
from portico_gateway.gateway.tasks import GatewayTasks
from portico_gateway.gateway.tool_pinning import Pins, PinSettings, ToolPin
from portico_gateway.gateway.upstream import GatewayUpstream
from portico_gateway.gateway.views import GatewayView, ViewOptions, ViewSettings, view_of

if TYPE_CHECKING:
    from portico_gateway.credentials import upstream_auth as outgoing_module
    from portico_gateway.credentials import upstream_auth_settings
    from portico_gateway.credentials.upstream_auth import OutgoingAuth
    from portico_gateway.gateway import connect_account_tool as connecting_module
    from portico_gateway.gateway import openapi_upstream
    from portico_gateway.gateway.openapi_upstream import ApiTarget
else:
    outgoing_module = LazyModule("portico_gateway.credentials.upstream_auth")
    upstream_auth_settings = LazyModule("portico_gateway.credentials.upstream_auth_settings")
    openapi_upstream = LazyModule("portico_gateway.gateway.openapi_upstream")
    connecting_module = LazyModule("portico_gateway.gateway.connect_account_tool")

# How often connections are looked at that nothing uses any more.
IDLE_LOOK_SECONDS = 30.0
# How long a client without a timeout waits for the upstreams when it connects.
MAX_CONNECT_SECONDS = 3600.0
# How often it is seen to it that upstreams are tried again whose lists listeners wait for; each has its own pause.
ABSENT_LOOK_SECONDS = 1.0

log = logging.getLogger("portico.gateway")

T = TypeVar("T")


def _connecting(upstream: GatewayUpstream) -> Any:
    """What people connect their accounts with, where they have some at this upstream; else None."""
    if upstream.auth is None or not isinstance(upstream.auth, outgoing_module.UserAuth):
        return None
    return connecting_module


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
        self._serves = False
        # How long a client waited for the upstreams when it connected, for the reason why one is missing.
        self._connect_seconds: float | None = None
        # Those that were removed, and whose calls come to their ends.
        self._retiring: set[GatewayUpstream] = set()
        self._bridge = Bridge(self.seal)
        self._kept = KeptLists()
        self.pins = Pins()
        # The file that it was loaded from, and what it said.
        self._path: Path | None = None
        self._watch: ConfigurationWatch | None = None
        self._settings = GatewaySettings()
        self.views: dict[str, GatewayView] = {}
        self._routes = Routes(self.subscriptions.publish, self.seal, self.owned, self.pins.why_held)
        self.others = self._routes
        self._tasks = GatewayTasks(
            lambda: self._routes.upstreams, TaskIds(self.seal), self.registry.cursors, self._routes.outward_result
        )
        self._routes.tasks = self._tasks
        super()._add_service(GatewaySkills(lambda: self._routes))
        super()._add_service(PassedPages())
        super()._add_service(self._tasks)
        self.lifespans.add(self._routes, self._serving)
        self.pages.append(status.page(self.report))
        for alias, target in _given(upstreams or {}, self._secrets):
            self._add(target if isinstance(target, UpstreamSettings) else settings_for(alias, target_of(target), {}))

    @classmethod
    def load(cls, path: str | Path, *, audited: bool = True, **options: Any) -> Gateway:
        """Return the gateway that a gateway.toml or an mcp.json describes. Raises UsageError for an invalid file.

        `audited`: whether its [audit] applies, so that the gateway writes to the audit store while it runs.
        """
        secrets = Secrets()
        settings = read(path, secrets)
        if not audited:
            settings = msgspec.structs.replace(settings, access=settings.access.without("audit"))
        gateway = cls(**{"name": Path(path).stem, **settings.about, **options})
        gateway._secrets = secrets
        if settings.lock is not None and any(one.pins != "off" for one in settings.upstreams.values()):
            gateway.pins.load(settings.lock)
        for one in settings.upstreams.values():
            gateway._add(one)
        for view in settings.views.values():
            gateway._add_view(view)
        access.apply(gateway, settings.access)
        gateway._path, gateway._settings = Path(path), settings
        gateway.faces = FaceChoice(settings.face, settings.always, code=settings.code)
        return gateway

    @classmethod
    def of(cls, configuration: str | Path | Mapping[str, Any]) -> Gateway:
        """The gateway of a configuration: a file's path, or what stands in it."""
        return cls(configuration) if isinstance(configuration, Mapping) else cls.load(configuration)

    def add(
        self, component: Any, target: Any = None, *, everywhere: bool = False, **options: Unpack[UpstreamOptions]
    ) -> None:
        """Add an upstream by its alias and target, at any time; or, given one thing, what `Server.add` takes."""
        if target is None:
            super().add(component, everywhere=everywhere)
            return
        if not isinstance(component, str):
            raise UsageError(f"{component!r} is no alias: it is a text")
        self._add(settings_for(component, target_of(target), options))

    def _add(self, settings: UpstreamSettings) -> None:
        for alias in self._routes.upstreams:
            if folded_alias(alias) == folded_alias(settings.alias):
                raise UsageError(f"there is already an upstream {alias!r}; remove it first")
        routes, alias = self._routes, settings.alias
        self.pins.use(alias, PinSettings(settings.pins, settings.new_tools))
        routes.upstreams[alias] = GatewayUpstream(
            settings,
            self.info,
            self._bridge,
            self._secrets,
            self._kept,
            partial(self._listed, alias),
            routes.updated,
            self._outgoing(settings),
        )
        self._offer_connecting(routes.upstreams[settings.alias])
        routes.changed()
        if self._serves:
            self._begin_errand(self._begin(routes.upstreams[alias]))

    async def _begin(self, upstream: GatewayUpstream) -> None:
        """What is added at run time is known as what was there before, and told to those who listen."""
        await upstream.recall()
        self._list_for_listeners()

    def _list_for_listeners(self) -> None:
        if self._serves:
            self._routes.list_for_listeners()

    def _outgoing(self, settings: UpstreamSettings) -> OutgoingAuth | None:
        url = getattr(settings.target, "url", None)
        if settings.auth is None or url is None:
            return None
        outgoing = upstream_auth_settings.outgoing_for(settings.alias, url, settings.auth, lambda: self.connector)
        if isinstance(settings.target, Url):
            return outgoing
        return openapi_upstream.show_to(cast("ApiTarget", settings.target), settings.auth, outgoing)

    def _offer_connecting(self, upstream: GatewayUpstream) -> None:
        """A tool for people who want to connect their account before anything of the upstream is known to them."""
        connecting = _connecting(upstream)
        if connecting is not None:
            name = upstream.settings.outward(connecting.CONNECT)
            self.accounts[upstream.alias] = connecting.account_at(upstream)
            self.tool(name=name, description=connecting.described(upstream.auth))(connecting.body(upstream))

    def _listed(self, alias: str, methods: Sequence[str]) -> None:
        """The lists of an upstream are others now, or seen for the first time."""
        upstream = self._routes.upstreams.get(alias)
        if upstream is not None and self.pins.see(alias, upstream.lists.all.entries):
            self._begin_errand(asyncio.to_thread(self._record, self.pins.recorded()))
        self._routes.changed(methods)

    def _record(self, record: Callable[[], None]) -> None:
        try:
            record()
        except UsageError as failure:
            log.error("what was pinned is forgotten at the end: %s", failure)

    def _begin_errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def remove(self, name: str, *, everywhere: bool = False) -> None:
        """Remove an upstream by its alias, or something that this server has itself."""
        upstream = self._routes.upstreams.pop(name, None)
        if upstream is None:
            super().remove(name, everywhere=everywhere)
            return
        connecting = _connecting(upstream)
        if connecting is not None:
            super().remove(upstream.settings.outward(connecting.CONNECT))
            del self.accounts[name]
        self._routes.changed()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            self._retiring.add(upstream)
            self._begin_errand(self._retire(upstream))

    async def _retire(self, upstream: GatewayUpstream) -> None:
        try:
            await upstream.retire()
        finally:
            self._retiring.discard(upstream)

    def _add_service(self, service: Service) -> None:
        """Tasks of upstreams come last, around those that this server may have itself."""
        self.bundles.services.remove(self._tasks)
        super()._add_service(service)
        self._tasks.beside_own = self.tasks is not None
        self.bundles.services.append(self._tasks)
        self._extend()

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(one for one in super().services if not isinstance(one, GatewayTasks | GatewaySkills | PassedPages))

    def _own_answers(self) -> dict[str, Answer]:
        return {**super()._own_answers(), "server/discover": self._discover}

    async def _discover(self, call: Call) -> DiscoverResult:
        """What it can do depends on its upstreams, so that it waits for them as a first list does."""
        await self._routes.settled(by=call)
        self.advertise()
        return self.methods.discover(call)

    def advertise(self) -> None:
        """Say what is known by now of what its upstreams can do."""
        known = {name for service in self.bundles.services for name in service.extensions()}
        if not known <= set(self.capabilities.extensions or {}):
            self._extend()

    def add_view(self, name: str, **options: Unpack[ViewOptions]) -> GatewayView:
        """Show a part of the upstreams at a path of its own, `/mcp/NAME` unless said otherwise. At any time.

        * **path** – where it is over HTTP.
        * **upstreams** – patterns of the aliases that are in it; all, unless said.
        * **include**, **exclude** – patterns of `alias.name`, by the upstreams' own names.
        * **title**, **description**, **instructions** – what is said of it in place of what the gateway says.
        """
        return self._add_view(view_of(name, options))

    def _add_view(self, settings: ViewSettings) -> GatewayView:
        view = GatewayView(self, settings)
        if settings.name in self.views:
            raise UsageError(f"there is already a view {settings.name!r}; remove it first")
        self.add_endpoint(settings.path, view)
        self.views[settings.name] = view
        return view

    def remove_view(self, name: str) -> None:
        """Undo `add_view`."""
        view = self.views.pop(name, None)
        if view is None:
            raise UsageError(f"there is no view {name!r} to remove")
        self.remove_endpoint(view.settings.path)
        self._routes.forget_facet(view)

    def mount(self, server: Any, namespace: str | None = None) -> None:
        """Add an upstream, with the namespace as its alias."""
        if namespace is None:
            raise UsageError("a gateway needs a namespace for what it mounts: it is the alias of the upstream")
        self.add(namespace, server)

    @property
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        return ChainMap(cast("dict[str, Sequence[Mirror]]", self.registry.mirrored), self._routes.table.mirrored)

    @property
    def clashes(self) -> list[str]:
        """What is hidden because something else has its name."""
        self._routes.table.routes("tools/list")
        return self._routes.table.clashes

    def counts(self, view: GatewayView | None = None) -> tuple[int, int, int]:
        """How many tools, prompts and resources of the upstreams are shown; in one view, or in all."""
        tools, prompts, resources = (
            len(self._routes.table.routes(f"{kind}/list", view)) for kind in ("tools", "prompts", "resources")
        )
        return tools, prompts, resources

    def pinned(self) -> list[ToolPin]:
        """Every tool and prompt that is pinned, or there, of the upstreams that are listed and have pins."""
        listed = [one for one in self._routes.upstreams.values() if one.settings.pins != "off" and one.lists.is_known]
        return [pin for one in listed for pin in self.pins.pins_of(one.alias, one.lists.all.entries)]

    async def settle(self, seconds: float) -> None:
        """Wait until every upstream is listed or has failed, but not for longer."""
        await self._routes.settled(seconds)

    def serve_operator(self) -> None:
        """Serve one client whose user has written the configuration: errors have the full reason of a failure."""
        for upstream in self._routes.upstreams.values():
            upstream.health.reveal_failures()

    async def connect_upstreams(self, seconds: float | None, names: Collection[str] | None = None) -> None:
        """Wait until every upstream is listed or has failed, for at most `seconds`. Later lists do not wait again.

        `names`: wait only for the upstreams to which these tools and prompts belong, as far as the names tell.
        """
        limit = MAX_CONNECT_SECONDS if seconds is None else min(seconds, MAX_CONNECT_SECONDS)
        await self._routes.settled(limit, only=self._routes.may_own(names))
        self._routes.first_seconds = 0.0
        self._connect_seconds = seconds

    def missing_upstreams(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return by alias why an upstream is not listed, for the operator; of all, or of those to which these names
        belong."""
        owners = self._routes.may_own(names)
        return {one.alias: why for one in owners if (why := one.listing_problem(self._connect_seconds))}

    def is_settled(self) -> bool:
        """Return whether every upstream was tried at least once; starts the first attempts that are due."""
        awaited = [one for one in self._routes.upstreams.values() if one.is_being_awaited]
        for upstream in awaited:
            upstream.begin_listing()
        return not awaited

    def everything(self) -> Iterator[tuple[Kind, Owned]]:
        """All that there is, by whose it is: our own, and what the upstreams have listed."""
        for method, kind in KINDS.items():
            yield from ((kind, self.owned(one)) for one in self.catalogs[method])
            for route in self._routes.table.routes(method).values():
                yield kind, Owned(route.upstream.alias, route.inward)

    def tool_owners(self) -> dict[str, tuple[str, str]]:
        """Whose each tool is: the upstream, and what it is called there. Apps may call those of their own alone."""
        routes = self._routes.table.routes("tools/list")
        return {name: (route.upstream.alias, route.inward) for name, route in routes.items()}

    def status(self) -> list[dict[str, Any]]:
        """How each upstream is."""
        return [upstream.status() for upstream in self._routes.upstreams.values()]

    def report(self) -> dict[str, Any]:
        """How everything is, for the operator. No secret is in it."""
        clashes = self.clashes
        return {
            "name": self.name,
            "version": self.version,
            "upstreams": self.status(),
            "clashes": clashes,
            "held": [
                {"upstream": held.alias, "name": held.inward, "why": held.why}
                for held in self._routes.table.held.values()
            ],
            "changed": [f"{pin.alias}.{pin.name}" for pin in self.pinned() if pin.state == "changed"],
            "views": {
                name: {"path": one.settings.path, "tools": self.counts(one)[0]} for name, one in self.views.items()
            },
            "parked": len(self._bridge),
            "configuration": None if self._watch is None else msgspec.structs.asdict(self._watch.status),
            "tasks": [state.report() for state in supervision.states()],
        }

    def connections(self) -> Iterator[tuple[str, Upstream]]:
        """Those that are open, each with the alias of its upstream."""
        for alias, upstream in self._routes.upstreams.items():
            yield from ((alias, lane.connection) for lane in upstream.lanes)

    def readiness(self) -> dict[str, str]:
        return status.readiness(self.status())

    def conditions(self) -> dict[str, str]:
        """Return whether the configuration file is in effect. An invalid file does not take a server out of rotation
        that works with the previous one."""
        return {} if self._watch is None else {"configuration": self._watch.status.describe()}

    def measures(self) -> list[str]:
        reload = ReloadStatus() if self._watch is None else self._watch.status
        counts = {
            "portico_gateway_configuration_not_applied": int(reload.not_applied_since is not None),
            "portico_gateway_reload_failures_total": reload.failures,
            "portico_gateway_clashes": len(self.clashes),
            "portico_gateway_held": len(self._routes.table.held),
            "portico_gateway_parked": len(self._bridge),
        }
        tallies = {alias: upstream.tally for alias, upstream in self._routes.upstreams.items()}
        return status.measures(self.status(), tallies, counts)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        await self._kept.open(self.store)
        await asyncio.gather(*(one.recall() for one in self._routes.upstreams.values()))
        self._serves = True
        supervisor = BackgroundTasks()
        supervisor.repeat("gateway idle connections", self._look_after, IDLE_LOOK_SECONDS)
        # Clients that listen ask again only after a change, so the gateway finds out which upstreams are back.
        supervisor.repeat("gateway absent upstreams", self._list_for_listeners, ABSENT_LOOK_SECONDS)
        if self._path is not None:
            self._watch = self._watch_file(self._path)
            supervisor.repeat("gateway configuration watcher", self._watch.check, WATCH_SECONDS)
        try:
            yield
        finally:
            self._serves = False
            supervisor.cancel()
            self._bridge.close()
            await self._tasks.close()
            self._routes.close()
            for one in self._retiring:
                one.hurry.set()
            await asyncio.gather(*(one.close() for one in self._routes.upstreams.values()), *self._ending)
            await self._kept.close()

    def _watch_file(self, path: Path) -> ConfigurationWatch:
        return ConfigurationWatch(
            path,
            lambda: self.pins.path,
            lambda: read(path, self._secrets),
            lambda: self._settings,
            self._apply,
            self._load_pins,
        )

    async def _load_pins(self) -> None:
        """Show what was approved since the pins were last read."""
        assert self.pins.path is not None
        await asyncio.to_thread(self.pins.load, self.pins.path)
        self._routes.changed()

    def _apply(self, settings: GatewaySettings) -> list[str]:
        """Apply a configuration, and return what could not be applied. Unchanged upstreams and views notice nothing.

        The rules come first: an upstream is not added where the rules that go with it cannot be applied. After that
        each upstream and view stands for itself, so that one that fails hides no other change.
        """
        access.change(self, self._settings.access, settings.access)
        problems: list[str] = []
        before, self._settings = self._settings, settings
        upstreams = _apply_each(
            "upstream", before.upstreams, settings.upstreams, self._remove_upstream, self._add, problems
        )
        views = _apply_each("view", before.views, settings.views, self._remove_view, self._add_view, problems)
        self._settings = msgspec.structs.replace(settings, upstreams=upstreams, views=views)
        self._routes.put_in_order(list(settings.upstreams))
        return problems

    def _remove_upstream(self, alias: str) -> None:
        if alias in self._routes.upstreams:
            self.remove(alias)

    def _remove_view(self, name: str) -> None:
        if name in self.views:
            self.remove_view(name)

    async def _look_after(self) -> None:
        self._bridge.sweep()
        for upstream in list(self._routes.upstreams.values()):
            await upstream.lanes.end_idle(time.monotonic())


def _apply_each(
    kind: str,
    old: Mapping[str, T],
    new: Mapping[str, T],
    remove: Callable[[str], None],
    add: Callable[[T], Any],
    problems: list[str],
) -> dict[str, T]:
    """Remove and add what differs. Return what is in effect then, so that the next change is compared with that."""
    applied = dict(old)
    for name in [name for name in old if new.get(name) != old[name]]:
        with _noting(kind, name, problems):
            remove(name)
            del applied[name]
    for name in [name for name in new if name not in applied]:
        with _noting(kind, name, problems):
            try:
                add(new[name])
            except Exception:
                # It may have been added in part, and is added again when the file changes.
                with contextlib.suppress(Exception):
                    remove(name)
                raise
            applied[name] = new[name]
    return applied


@contextlib.contextmanager
def _noting(kind: str, name: str, problems: list[str]) -> Iterator[None]:
    try:
        yield
    except UsageError as mistake:
        problems.append(f"{kind} {name}: {mistake}")
    except Exception as failure:
        log.exception("error while applying the %s %s", kind, name)
        problems.append(f"{kind} {name}: {type(failure).__name__}: {failure}")


def _given(upstreams: Mapping[str, Any] | GatewaySettings, secrets: Secrets) -> Iterator[tuple[str, Any]]:
    if isinstance(upstreams, Mapping) and isinstance(upstreams.get("mcpServers"), Mapping):
        upstreams = settings_of(upstreams, secrets)
    yield from (upstreams.upstreams if isinstance(upstreams, GatewaySettings) else upstreams).items()
