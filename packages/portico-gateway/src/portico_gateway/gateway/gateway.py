"""The Gateway: a Server whose tools, resources and prompts come from other servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import msgspec

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.protocol.lifecycle import DiscoverResult
from portico.rpc import supervision
from portico.rpc.call import Call
from portico.rpc.supervision import BackgroundTasks
from portico.secret_references import SecretResolver
from portico.server.apps import ForwardedAppsExtension
from portico.server.policy import settings as access
from portico.server.policy.interfaces import Kind, QualifiedName
from portico.server.providers.naming import normalize_alias
from portico.server.registry.catalog import KIND_BY_METHOD
from portico.server.registry.service import MethodHandler, Service
from portico.server.results.service import ResultLimits
from portico.server.results.settings import DEFAULT_MAX_TOKENS, find_result_limits
from portico.server.server import Server, ServerOperations, ToolSearchConfig
from portico.transports.targets import UrlTarget, parse_target
from portico.transports.upstream import Upstream
from portico_gateway.gateway import status
from portico_gateway.gateway.catalog_cache import CatalogCache
from portico_gateway.gateway.reload import WATCH_SECONDS, ConfigurationWatch, ReloadStatus
from portico_gateway.gateway.router import UpstreamRouter
from portico_gateway.gateway.server_request_bridge import ServerRequestBridge
from portico_gateway.gateway.settings import (
    GatewaySettings,
    UpstreamOptions,
    UpstreamSettings,
    load_settings,
    make_upstream_settings,
    parse_settings,
)
from portico_gateway.gateway.skills import GatewaySkills
from portico_gateway.gateway.task_ids import TaskIdCodec
from portico_gateway.gateway.tasks import GatewayTasks
from portico_gateway.gateway.tool_pinning import PinningSettings, PinStore, ToolPin
from portico_gateway.gateway.upstream import UpstreamProvider
from portico_gateway.gateway.view_settings import ViewOptions, ViewSettings, parse_view
from portico_gateway.gateway.views import GatewayView

if TYPE_CHECKING:
    from portico_gateway.credentials import upstream_auth as outgoing_module, upstream_auth_settings
    from portico_gateway.credentials.upstream_auth import UpstreamAuth
    from portico_gateway.gateway import connect_account_tool as connecting_module, openapi_upstream
    from portico_gateway.gateway.openapi_upstream import OpenApiTarget
else:
    outgoing_module = LazyModule("portico_gateway.credentials.upstream_auth")
    upstream_auth_settings = LazyModule("portico_gateway.credentials.upstream_auth_settings")
    openapi_upstream = LazyModule("portico_gateway.gateway.openapi_upstream")
    connecting_module = LazyModule("portico_gateway.gateway.connect_account_tool")

# Interval for closing idle connections.
MAINTENANCE_INTERVAL_SECONDS = 30.0
# Maximum wait of a client without a timeout when it connects.
MAX_CONNECT_SECONDS = 3600.0
# Interval at which unavailable upstreams are checked while clients subscribe to their lists. Each upstream has its own
# back-off.
UNAVAILABLE_RETRY_SECONDS = 1.0

log = logging.getLogger("portico.gateway")

T = TypeVar("T")


def _find_connect_account(upstream: UpstreamProvider) -> Any:
    """Return the connect-account module if users have accounts at this upstream, else None."""
    if upstream.auth is None or not isinstance(upstream.auth, outgoing_module.ConnectedAccountAuth):
        return None
    return connecting_module


class DiscoveryService(Service):
    """Answers server/discover when the upstreams are listed, because they determine the capabilities."""

    name = "portico/gateway-discovery"
    internal = True

    def __init__(self, discover: Callable[[MethodHandler, Call], Any]) -> None:
        super().__init__()
        self._discover = discover

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        return partial(self._discover, handler) if method == "server/discover" else handler


class Gateway(Server):
    """Many servers behind one endpoint: a Server whose provider are its upstreams.

    `Gateway({"files": ["npx", "…"], "weather": "https://…/mcp", "notes": notes_server})`, or `Gateway.load(path)`. An
    upstream is anything that a Client accepts: a URL, a command, a `module:object`, a Server or any Handler. Component
    names are prefixed with the alias of their upstream.
    """

    # Seconds that the first list of a new gateway waits for upstreams that were never listed. Later lists include those
    # that answered in the meantime. Set it before the gateway is created.
    first_list_seconds: float = 2.0
    # Budget of a tool's result in estimated tokens. Set it before the gateway is created; 0 for no limit.
    max_result_tokens: int = DEFAULT_MAX_TOKENS

    def __init__(
        self,
        upstreams: Mapping[str, Any] | GatewaySettings | None = None,
        name: str = "gateway",
        *,
        max_result_tokens: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self._secrets = SecretResolver()
        self._background_tasks = BackgroundTasks()
        self._is_serving = False
        # How long a client waited for the upstreams when it connected; part of the message about a missing one.
        self._connect_seconds: float | None = None
        # Removed upstreams whose calls are still in flight.
        self._draining: set[UpstreamProvider] = set()
        self._bridge = ServerRequestBridge(self.state_sealer)
        self._catalog_cache = CatalogCache()
        self.pins = PinStore()
        # The configuration file and its settings, if it was loaded from one.
        self._path: Path | None = None
        self._watch_config: ConfigurationWatch | None = None
        self._settings = GatewaySettings()
        self.views: dict[str, GatewayView] = {}
        self._router = UpstreamRouter(
            self.subscriptions.publish,
            self.state_sealer,
            lambda component: self.ownership.component_qualified_name(component),
            self.first_list_seconds,
            self._add_upstream,
            self.remove_upstream,
            self.pins.unapproved_reason,
        )
        self.provider = self._router
        self.operations = _GatewayOperations(self)
        self._tasks = GatewayTasks(
            lambda: self._router.upstreams,
            TaskIdCodec(self.state_sealer),
            self.registry.cursors,
            self._router.expose_result,
        )
        self._router.tasks = self._tasks
        for service in (
            GatewaySkills(lambda: self._router),
            ForwardedAppsExtension(),
            self._tasks,
            DiscoveryService(self._discover),
        ):
            self._add_service(service)
        tokens = self.max_result_tokens if max_result_tokens is None else max_result_tokens
        if tokens:
            self.add(ResultLimits(tokens))
        self.lifespans.add(self._router, self._lifespan)
        self.custom_routes.append(status.status_route(self.status_report))
        for alias, target in _iter_upstreams(upstreams or {}, self._secrets):
            self._add_upstream(
                target
                if isinstance(target, UpstreamSettings)
                else make_upstream_settings(alias, parse_target(target), {})
            )

    @classmethod
    def load(cls, path: str | Path, *, audited: bool = True, **options: Any) -> Gateway:
        """Load a gateway from a gateway.toml or an mcp.json. Raises UsageError if the file is invalid.

        With `audited`, its [audit] section applies, and the gateway writes to the audit store while it runs.
        """
        secrets = SecretResolver()
        settings = load_settings(path, secrets)
        if not audited:
            settings = msgspec.structs.replace(settings, access=settings.access.without("audit"))
        gateway = cls(**{"name": Path(path).stem, **settings.about, **options})
        gateway._secrets = secrets
        if settings.pins_file is not None and any(
            upstream.pinning != "off" for upstream in settings.upstreams.values()
        ):
            gateway.pins.load(settings.pins_file)
        for upstream in settings.upstreams.values():
            gateway._add_upstream(upstream)
        for view in settings.views.values():
            gateway._add_view(view)
        access.apply(gateway, settings.access)
        gateway._path, gateway._settings = Path(path), settings
        gateway.tool_search = ToolSearchConfig(
            settings.tool_exposure, settings.always_visible, code=settings.code_limits
        )
        return gateway

    def add_upstream(self, alias: str, target: Any, **options: Unpack[UpstreamOptions]) -> None:
        """Add an upstream: a URL, a command, a `module:object`, a Server or any Handler. Possible at any time.

        Its component names are prefixed with `alias`, unless `prefix` is set.
        """
        if not isinstance(alias, str):
            raise UsageError(f"the alias of an upstream must be a string, got {alias!r}")
        self._add_upstream(make_upstream_settings(alias, parse_target(target), options))

    def _add_upstream(self, settings: UpstreamSettings) -> None:
        for alias in self._router.upstreams:
            if normalize_alias(alias) == normalize_alias(settings.alias):
                raise UsageError(f"upstream {alias!r} already exists; remove it first")
        routes, alias = self._router, settings.alias
        self.pins.configure_upstream(alias, PinningSettings(settings.pinning, settings.new_tools))
        routes.upstreams[alias] = UpstreamProvider(
            settings,
            self.info,
            self._bridge,
            self._secrets,
            self._catalog_cache,
            partial(self._on_catalog_changed, alias),
            routes.on_resource_updated,
            self._make_upstream_auth(settings),
        )
        routes.upstreams[alias].connections.bounds_results = lambda: self.bounds_results_of(settings)
        self._add_connect_tool(routes.upstreams[settings.alias])
        if (limits := find_result_limits(self)) is not None:
            limits.refresh()
        routes.on_lists_changed()
        if self._is_serving:
            self._background_tasks.start(self._start_upstream(routes.upstreams[alias]))

    async def _start_upstream(self, upstream: UpstreamProvider) -> None:
        """Load the cached catalog of an upstream that was added at run time, and notify subscribers."""
        await upstream.load_cached_catalog()
        self._refresh_for_subscribers()

    def bounds_results_of(self, settings: UpstreamSettings) -> bool:
        """Return whether this gateway bounds the results of an upstream, so that the upstream need not."""
        return settings.max_result_tokens != 0 and find_result_limits(self) is not None

    def upstream_result_tokens(self) -> dict[str, int | None]:
        """Return the budgets of upstreams that have their own, by alias."""
        settings = (upstream.settings for upstream in self._router.upstreams.values())
        return {item.alias: item.max_result_tokens for item in settings if item.max_result_tokens is not None}

    def _refresh_for_subscribers(self) -> None:
        if self._is_serving:
            self._router.refresh_for_subscribers()

    def _make_upstream_auth(self, settings: UpstreamSettings) -> UpstreamAuth | None:
        url = getattr(settings.target, "url", None)
        if settings.auth is None or url is None:
            return None
        outgoing = upstream_auth_settings.make_upstream_auth(
            settings.alias, url, settings.auth, lambda: self.account_connector
        )
        if isinstance(settings.target, UrlTarget):
            return outgoing
        return openapi_upstream.attach_credentials(cast("OpenApiTarget", settings.target), settings.auth, outgoing)

    def _add_connect_tool(self, upstream: UpstreamProvider) -> None:
        """Add a tool with which users connect their account before the upstream can be listed for them."""
        connecting = _find_connect_account(upstream)
        if connecting is not None:
            name = upstream.settings.exposed_name(connecting.CONNECT_ACCOUNT_TOOL)
            self.connected_accounts[upstream.alias] = connecting.find_account(upstream)
            self.tool(name=name, description=connecting.describe_tool(upstream.auth))(
                connecting.make_connect_tool(upstream)
            )

    def _on_catalog_changed(self, alias: str, methods: Sequence[str]) -> None:
        """Handle changed lists of an upstream: check the pins, then update the routes."""
        upstream = self._router.upstreams.get(alias)
        if upstream is not None and self.pins.check_catalog(alias, upstream.catalog.merged.entries):
            self._background_tasks.start(asyncio.to_thread(self._save_pins, self.pins.make_writer()))
        self._router.on_lists_changed(methods)

    def _save_pins(self, record: Callable[[], None]) -> None:
        try:
            record()
        except UsageError as failure:
            log.error("pins are lost when the gateway ends: %s", failure)

    def remove_upstream(self, alias: str) -> None:
        """Remove an upstream. Calls in flight are completed. Raises UsageError for an unknown alias."""
        upstream = self._router.upstreams.pop(alias, None)
        if upstream is None:
            aliases = ", ".join(self._router.upstreams) or "none"
            raise UsageError(f"unknown upstream {alias!r} (known: {aliases})")
        connecting = _find_connect_account(upstream)
        if connecting is not None:
            self.remove(upstream.settings.exposed_name(connecting.CONNECT_ACCOUNT_TOOL))
            del self.connected_accounts[alias]
        self._router.on_lists_changed()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            self._draining.add(upstream)
            self._background_tasks.start(self._drain(upstream))

    async def _drain(self, upstream: UpstreamProvider) -> None:
        try:
            await upstream.drain()
        finally:
            self._draining.discard(upstream)

    async def _discover(self, handler: MethodHandler, call: Call) -> DiscoverResult:
        """Answer server/discover. The capabilities depend on the upstreams, so it waits for them like a first list."""
        await self._router.wait_until_listed(call=call)
        self.update_capabilities()
        result: DiscoverResult = handler(call)
        return result

    def update_capabilities(self) -> None:
        """Update the declared capabilities from those that the upstreams are known to have."""
        extensions = {name for service in self.service_registry.services for name in service.extensions()}
        if not extensions <= set(self.capabilities.extensions or {}):
            self._extend()

    def add_view(self, name: str, **options: Unpack[ViewOptions]) -> GatewayView:
        """Expose a part of the upstreams at a separate path. Possible at any time.

        * **path** – the HTTP path; `/mcp/NAME` by default.
        * **upstreams** – patterns of upstream aliases; all by default.
        * **include**, **exclude** – patterns of `alias.name`, with the upstreams' own names.
        * **title**, **description**, **instructions** – replace those of the gateway.
        """
        return self._add_view(parse_view(name, options))

    def _add_view(self, settings: ViewSettings) -> GatewayView:
        view = GatewayView(self, settings)
        if settings.name in self.views:
            raise UsageError(f"view {settings.name!r} already exists; remove it first")
        self.add_endpoint(settings.path, view)
        self.views[settings.name] = view
        return view

    def remove_view(self, name: str) -> None:
        """Remove a view. Raises UsageError for an unknown name."""
        view = self.views.pop(name, None)
        if view is None:
            raise UsageError(f"unknown view {name!r}")
        self.remove_endpoint(view.settings.path)
        self._router.remove_view(view)

    @property
    def name_conflicts(self) -> list[str]:
        """Return a message for each component that is hidden because of a name conflict."""
        self._router.table.routes("tools/list")
        return self._router.table.name_conflicts

    def count_components(self, view: GatewayView | None = None) -> tuple[int, int, int]:
        """Return the numbers of exposed tools, prompts and resources of the upstreams, in total or in one view."""
        tools, prompts, resources = (
            len(self._router.table.routes(f"{kind}/list", view)) for kind in ("tools", "prompts", "resources")
        )
        return tools, prompts, resources

    def list_pins(self) -> list[ToolPin]:
        """Return every pinned or listed tool and prompt of the upstreams that are listed and have pinning enabled."""
        listed = [
            upstream
            for upstream in self._router.upstreams.values()
            if upstream.settings.pinning != "off" and upstream.catalog.is_known
        ]
        return [
            pin for upstream in listed for pin in self.pins.list_pins(upstream.alias, upstream.catalog.merged.entries)
        ]

    async def wait_until_listed(self, timeout: float) -> None:
        """Wait until every upstream is listed or has failed, for at most `timeout` seconds."""
        await self._router.wait_until_listed(timeout)

    def serve_operator(self) -> None:
        """Include full failure reasons in errors, for a single client whose user wrote the configuration."""
        for upstream in self._router.upstreams.values():
            upstream.health.reveal_failures()

    async def connect_upstreams(self, seconds: float | None, names: Collection[str] | None = None) -> None:
        """Wait until every upstream is listed or has failed, for at most `seconds`. Later lists do not wait again.

        With `names`, wait only for the upstreams that may own these tools and prompts, judging by their names.
        """
        limit = MAX_CONNECT_SECONDS if seconds is None else min(seconds, MAX_CONNECT_SECONDS)
        await self._router.wait_until_listed(limit, only=self._router.may_own(names))
        self._router.first_seconds = 0.0
        self._connect_seconds = seconds

    def missing_upstreams(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return by alias why an upstream is not listed; for all upstreams, or those that may own these names."""
        owners = self._router.may_own(names)
        return {owner.alias: why for owner in owners if (why := owner.listing_problem(self._connect_seconds))}

    def iter_components(self) -> Iterator[tuple[Kind, QualifiedName]]:
        """Iterate over all components with their owners: this server's own and those that the upstreams listed."""
        for method, kind in KIND_BY_METHOD.items():
            yield from ((kind, self.ownership.component_qualified_name(catalog)) for catalog in self.catalogs[method])
            for route in self._router.table.routes(method).values():
                yield kind, QualifiedName(route.upstream.alias, route.inward)

    def tool_origins(self) -> dict[str, tuple[str, str]]:
        """Return the upstream and the original name of each tool. Apps may call tools of their own upstream only."""
        routes = self._router.table.routes("tools/list")
        return {name: (route.upstream.alias, route.inward) for name, route in routes.items()}

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each upstream."""
        return [upstream.status() for upstream in self._router.upstreams.values()]

    def status_report(self) -> dict[str, Any]:
        """Return the status of the gateway for the operator. It contains no secrets."""
        clashes = self.name_conflicts
        return {
            "name": self.name,
            "version": self.version,
            "upstreams": self.status(),
            "clashes": clashes,
            "held": [
                {"upstream": unapproved.alias, "name": unapproved.inward, "why": unapproved.why}
                for unapproved in self._router.table.unapproved.values()
            ],
            "changed": [f"{pin.alias}.{pin.name}" for pin in self.list_pins() if pin.status == "changed"],
            "views": {
                name: {"path": view.settings.path, "tools": self.count_components(view)[0]}
                for name, view in self.views.items()
            },
            "parked": len(self._bridge),
            "configuration": None if self._watch_config is None else msgspec.structs.asdict(self._watch_config.status),
            "tasks": [state.report() for state in supervision.states()],
        }

    def connections(self) -> Iterator[tuple[str, Upstream]]:
        """Iterate over the open connections, each with the alias of its upstream."""
        for alias, upstream in self._router.upstreams.items():
            yield from ((alias, lane.connection) for lane in upstream.connections)

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        await self._catalog_cache.open(self.store)
        await asyncio.gather(*(upstream.load_cached_catalog() for upstream in self._router.upstreams.values()))
        self._is_serving = True
        supervisor = BackgroundTasks()
        supervisor.repeat("gateway idle connections", self._run_maintenance, MAINTENANCE_INTERVAL_SECONDS)
        # Subscribed clients list again only after a notification, so the gateway checks which upstreams are back.
        supervisor.repeat("gateway absent upstreams", self._refresh_for_subscribers, UNAVAILABLE_RETRY_SECONDS)
        if self._path is not None:
            self._watch_config = self._watch_file(self._path)
            supervisor.repeat("gateway configuration watcher", self._watch_config.check, WATCH_SECONDS)
        try:
            yield
        finally:
            self._is_serving = False
            supervisor.cancel()
            self._bridge.close()
            await self._tasks.close()
            self._router.close()
            for upstream in self._draining:
                upstream.force_close.set()
            await asyncio.gather(
                *(upstream.close() for upstream in self._router.upstreams.values()), *self._background_tasks
            )
            await self._catalog_cache.close()

    def _watch_file(self, path: Path) -> ConfigurationWatch:
        return ConfigurationWatch(
            path,
            lambda: self.pins.path,
            lambda: load_settings(path, self._secrets),
            lambda: self._settings,
            self._apply_settings,
            self._load_pins,
        )

    async def _load_pins(self) -> None:
        """Load the pins and expose components that were approved since."""
        assert self.pins.path is not None
        await asyncio.to_thread(self.pins.load, self.pins.path)
        self._router.on_lists_changed()

    def _apply_settings(self, settings: GatewaySettings) -> list[str]:
        """Apply a configuration and return the problems. Unchanged upstreams and views are not affected.

        The rules come first: an upstream is not added if the rules that go with it cannot be applied. After that,
        upstreams and views are applied independently, so that one failure does not block other changes.
        """
        access.change(self, self._settings.access, settings.access)
        problems: list[str] = []
        before, self._settings = self._settings, settings
        upstreams = _apply_each(
            "upstream", before.upstreams, settings.upstreams, self._remove_upstream, self._add_upstream, problems
        )
        views = _apply_each("view", before.views, settings.views, self._remove_view, self._add_view, problems)
        self._settings = msgspec.structs.replace(settings, upstreams=upstreams, views=views)
        self._router.set_order(list(settings.upstreams))
        return problems

    def _remove_upstream(self, alias: str) -> None:
        if alias in self._router.upstreams:
            self.remove_upstream(alias)

    def _remove_view(self, name: str) -> None:
        if name in self.views:
            self.remove_view(name)

    async def _run_maintenance(self) -> None:
        self._bridge.expire_stale()
        for upstream in list(self._router.upstreams.values()):
            await upstream.connections.close_idle(time.monotonic())


class _GatewayOperations(ServerOperations):
    """Operational interface of a gateway: the state of its upstreams and of its configuration."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._gateway = gateway

    def readiness(self) -> Mapping[str, str]:
        return status.readiness(self._gateway.status())

    def is_settled(self) -> bool:
        """Return whether every upstream was tried at least once. Starts the first attempts that are due."""
        awaited = [item for item in self._gateway._router.upstreams.values() if item.is_being_awaited]
        for upstream in awaited:
            upstream.start_refresh()
        return not awaited

    def conditions(self) -> Mapping[str, str]:
        """Return whether the configuration file is applied.

        An invalid file does not take a server out of rotation that works with the previous configuration.
        """
        watch = self._gateway._watch_config
        return {} if watch is None else {"configuration": watch.status.describe()}

    def render_metrics(self) -> Sequence[str]:
        gateway, router, watch = self._gateway, self._gateway._router, self._gateway._watch_config
        reload = ReloadStatus() if watch is None else watch.status
        counts = {
            "portico_gateway_configuration_not_applied": int(reload.not_applied_since is not None),
            "portico_gateway_reload_failures_total": reload.failures,
            "portico_gateway_name_conflicts": len(gateway.name_conflicts),
            "portico_gateway_unapproved_entries": len(router.table.unapproved),
            "portico_gateway_suspended_calls": len(gateway._bridge),
        }
        tallies = {alias: upstream.stats for alias, upstream in router.upstreams.items()}
        return status.render_metrics(gateway.status(), tallies, counts)


def _apply_each(
    kind: str,
    old: Mapping[str, T],
    new: Mapping[str, T],
    remove: Callable[[str], None],
    add: Callable[[T], Any],
    problems: list[str],
) -> dict[str, T]:
    """Remove and add the items that differ. Return those in effect, against which the next change is compared."""
    applied = dict(old)
    for name in [name for name in old if new.get(name) != old[name]]:
        with _collect_problems(kind, name, problems):
            remove(name)
            del applied[name]
    for name in [name for name in new if name not in applied]:
        with _collect_problems(kind, name, problems):
            try:
                add(new[name])
            except Exception:
                # It may have been added in part. Remove it, so that the next change of the file adds it again.
                with contextlib.suppress(Exception):
                    remove(name)
                raise
            applied[name] = new[name]
    return applied


@contextlib.contextmanager
def _collect_problems(kind: str, name: str, problems: list[str]) -> Iterator[None]:
    try:
        yield
    except UsageError as mistake:
        problems.append(f"{kind} {name}: {mistake}")
    except Exception as failure:
        log.exception("failed to apply the %s %s", kind, name)
        problems.append(f"{kind} {name}: {type(failure).__name__}: {failure}")


def _iter_upstreams(
    upstreams: Mapping[str, Any] | GatewaySettings, secrets: SecretResolver
) -> Iterator[tuple[str, Any]]:
    if isinstance(upstreams, Mapping) and isinstance(upstreams.get("mcpServers"), Mapping):
        upstreams = parse_settings(upstreams, secrets)
    yield from (upstreams.upstreams if isinstance(upstreams, GatewaySettings) else upstreams).items()
