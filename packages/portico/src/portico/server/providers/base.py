"""The Provider interface for components that a server does not own, and its implementation for mounted handlers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import is_not
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from portico._lazy import LazyModule
from portico.caching import LruCache
from portico.protocol import jsonrpc
from portico.protocol.completion import CompleteParams, PromptReference
from portico.protocol.errors import ComponentNotFound, InvalidParams, MethodNotFound, PorticoError, ResourceNotFound
from portico.protocol.header_params import HeaderParam
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tools import ToolAnnotations
from portico.protocol.versions import LATEST_PROTOCOL_VERSION
from portico.rpc.call import Call, get_capabilities
from portico.rpc.fair_queue import get_caller_key
from portico.server.registry.catalog import KIND_BY_METHOD, Catalog
from portico.server.registry.lifespans import LifespanManager

if TYPE_CHECKING:
    from portico.protocol import uri_template as uris
    from portico.rpc.change_relay import ChangeRelay

    # Imported for type checking only: enforcement wraps the server that owns these providers.
    from portico.server.policy.enforcement import PolicyEnforcer
    from portico.server.policy.interfaces import Kind, QualifiedName
    from portico.server.providers import mount as mounts
    from portico.server.providers.mount import Mount
    from portico.server.registry.caller_view import CallerView
else:
    uris = LazyModule("portico.protocol.uri_template")
    mounts = LazyModule("portico.server.providers.mount")

# How long the list of a remote handler is trusted to contain a name, and how long a name is trusted to be missing.
NAME_CACHE_TTL_SECONDS = 10.0
MISS_CACHE_TTL_SECONDS = 1.0
MAX_CACHED_LISTINGS = 1000
_METHODS: dict[Kind, str] = {kind: method for method, kind in KIND_BY_METHOD.items()}
# Rank of a mount that does not list a resource but may still have it.
_UNLISTED = (3,)
# Methods for tasks that one of our functions started on a mounted handler.
TASK_METHODS = ("tasks/get", "tasks/cancel", "tasks/update")

HeaderParams = Mapping[str, Sequence[HeaderParam]]
"Arguments that are also sent as HTTP headers, by tool."


class Provider(ABC):
    """Components that a server does not own: those of its mounts, and in a gateway those of its upstreams.

    A provider lists, resolves and calls components, and publishes their changes. Access is decided here, by the owner's
    own name of a component.
    """

    # Policy to apply before a request is forwarded, if configured.
    protection: PolicyEnforcer | None = None

    @abstractmethod
    def __bool__(self) -> bool:
        """Return whether there is anything to query."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def mount(self, target: Any, namespace: str | None) -> None:
        """Add the components of another server, with names in a namespace."""

    @abstractmethod
    def unmount(self, target: Any) -> None:
        """Remove the components of a target that was mounted."""

    # Resolving

    @abstractmethod
    def qualified_name(self, kind: Kind, name: str) -> QualifiedName | None: ...
    @abstractmethod
    def canonical_name(self, kind: Kind, name: str) -> str | None: ...
    @abstractmethod
    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool: ...
    @abstractmethod
    def requires_task(self, tool: str) -> bool: ...
    @abstractmethod
    def tool_annotations(self, call: Call, tool: str) -> ToolAnnotations | None: ...
    @abstractmethod
    def may_have_resource(self, uri: str, call: Call, view: CallerView | None = None) -> bool: ...

    # Listing

    @abstractmethod
    def cached_list(self, catalog: Catalog[Any]) -> Sequence[Any] | None: ...
    @abstractmethod
    def get_page(
        self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None
    ) -> Any: ...
    @abstractmethod
    async def visible_names(self, call: Call, catalog: Catalog[Any], view: CallerView | None) -> list[str]:
        """Return the names that a caller sees in a list of tools or prompts, including the server's own."""

    # Calling

    @abstractmethod
    def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Coroutine[Any, Any, Any]: ...
    @abstractmethod
    async def read(self, call: Call, uri: str) -> Any: ...
    @abstractmethod
    async def complete(self, call: Call, params: CompleteParams) -> Any: ...

    # Publishing changes

    @abstractmethod
    def subscribe(self, filter: SubscriptionFilter, call: Call) -> list[Any]: ...
    @abstractmethod
    def unsubscribe(self, keys: list[Any]) -> None: ...

    # Shared by all providers

    @property
    def task_methods(self) -> Collection[str]:
        """Return the methods for tasks that `wrap_task_method` answers."""
        return ()

    @property
    def hides_resources(self) -> bool:
        """Return whether resources may be hidden from a caller without a policy."""
        return False

    def add_header_params(self, own: HeaderParams) -> HeaderParams:
        """Return the arguments that are also sent as HTTP headers: those of the server's own tools, and of others."""
        return own

    def wrap_task_method(self, handler: Callable[[Call], Any], call: Call) -> Any:
        """Answer a request about a task, which may belong to another server."""
        return handler(call)

    async def not_found_error(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> ComponentNotFound:
        """Return the error for an unknown name, with similar names that the caller may see."""
        names = await self.visible_names(call, catalog, self.view(call))
        from portico.jsonschema import argument_issues

        return ComponentNotFound(
            kind, name, argument_issues.closest_names(name, catalog.without_auth_checks(names), max_results=3)
        )

    def nothing_to_complete(self, name: str) -> InvalidParams:
        return InvalidParams(f"Nothing to complete: {name}")

    def view(self, call: Call) -> CallerView | None:
        """Return the caller's view of the components; None: everything is visible."""
        return None if self.protection is None else self.protection.caller_view(call)

    async def admits(self, call: Call, kind: Any, owned: QualifiedName | None) -> bool:
        """Return whether a call may be forwarded to a component. Raises if it is rejected for another reason, such as a
        limit.
        """
        if self.protection is None:
            return True
        # Rules may have conditions on arguments. Those of prompts are decoded already, those of
        # tools are not.
        result = getattr(call.decode_params(), "arguments", EMPTY_RAW)
        arguments = result if isinstance(result, Raw) else jsonrpc.encode(result or {})
        return owned is not None and await self.protection.authorize_call(call, kind, owned, arguments)


class _SharedRelays(Struct):
    """Relays shared by subscribers with the same filter: number of users, and the relay of each mount."""

    users: int = 0
    relays: dict[Mount, ChangeRelay | None] = {}


class MountedProviders(Provider):
    """The mounts of one server, in order. Their changes are passed to `publish`."""

    def __init__(self, publish: Callable[[str, str | None], None], lifespans: LifespanManager) -> None:
        self._publish = publish
        self._lifespans = lifespans
        # Names that handlers listed, with the list object that they come from; for remote handlers, which may
        # list differently for each caller, with the time of the listing.
        self._listings: LruCache[Any, tuple[Any, frozenset[str]]] = LruCache(MAX_CACHED_LISTINGS)
        self._mounts: list[Mount] = []
        # Longest prefix first.
        self._by_prefix: list[Mount] = []
        # By subscribed resource URIs; an empty key stands for the lists. Equal subscriptions share their relays.
        self._relays: dict[tuple[str, ...], _SharedRelays] = {}
        # For each list, the parts it was last merged from, and the merged list.
        self._merged: dict[str, tuple[list[Sequence[Any]], Sequence[Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._mounts)

    def __len__(self) -> int:
        return len(self._mounts)

    @property
    def task_methods(self) -> Collection[str]:
        return TASK_METHODS if self._mounts else ()

    @property
    def hides_resources(self) -> bool:
        return bool(self._mounts)

    def mount(self, target: Any, namespace: str | None) -> None:
        """Mount a target under a prefix, and subscribe it to the changes that clients listen to."""
        mount: Mount = mounts.Mount(target, mounts.resolve_handler(target), namespace)
        self._set([*self._mounts, mount])
        # Clients that subscribed before the mount was added expect its changes too.
        for uris, shared in self._relays.items():
            shared.relays[mount] = mount.subscribe(uris, self._publish)
        self._lifespans.add(mount, get_capabilities(mount.handler).lifespan)

    def unmount(self, target: Any) -> None:
        """Remove every mount of a target."""
        removed = [mount for mount in self._mounts if mount.target is target or mount.target == target]
        self._set([mount for mount in self._mounts if mount not in removed])
        for shared in self._relays.values():
            _close_relays([shared.relays.pop(mount) for mount in removed])
        for mount in removed:
            self._lifespans.remove(mount)

    def _set(self, mounts: list[Mount]) -> None:
        self._mounts = mounts
        # With the mounts `a` and `a_b`, the name `a_b_c` belongs to `a_b`.
        self._by_prefix = sorted(mounts, key=lambda mount: -len(mount.prefix or ""))

    # Change notifications

    def subscribe(self, filter: SubscriptionFilter, call: Call) -> list[tuple[str, ...]]:
        """Publish changes of the mounted handlers to a new subscriber. Return the keys for `unsubscribe`.

        Costs one relay per mounted handler, however many subscribers there are.
        """
        keys: list[tuple[str, ...]] = []
        if filter.tools_list_changed or filter.prompts_list_changed or filter.resources_list_changed:
            keys.append(())
        if filter.resource_subscriptions:
            # Sorted, so that equal subscriptions share a relay whatever the order of their URIs.
            keys.append(tuple(sorted(set(filter.resource_subscriptions))))
        for uris in keys:
            shared = self._relays.get(uris)
            if shared is None:
                shared = self._relays[uris] = _SharedRelays()
                for mount in self._mounts:
                    shared.relays[mount] = mount.subscribe(uris, self._publish)
            shared.users += 1
        return keys

    def unsubscribe(self, keys: list[tuple[str, ...]]) -> None:
        for uris in keys:
            shared = self._relays[uris]
            shared.users -= 1
            if not shared.users:
                del self._relays[uris]
                _close_relays(shared.relays.values())

    def may_have_resource(self, uri: str, call: Call, view: CallerView | None = None) -> bool:
        """Return whether a mounted handler could have this resource; only the handler knows."""
        return any(mount.may_have_resource(uri, view) for mount in self._mounts)

    # Resolving names

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName | None:
        """Return the qualified name of a component in the first mount that may have it."""
        result = (mount.qualified_name(kind, name) for mount in self._by_prefix)
        return next((item for item in result if item is not None), None)

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        """Return the canonical name of a component among all names that lead to it."""
        for mount in self._by_prefix:
            inside = mount.to_local(kind, name)
            if inside is not None:
                return mount.to_exposed(kind, inside)
        return None

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        """Return whether a mounted handler has a component that it hides from the caller."""
        for mount in self._mounts:
            inward = mount.local_name(name) if kind in ("tool", "prompt") else mount.local_uri(name)
            if inward is not None and get_capabilities(mount.handler).directory.is_hidden(call, kind, inward):
                return True
        return False

    async def _holder(self, call: Call, kind: Kind, name: str) -> tuple[Mount, QualifiedName] | None:
        """Return the first mount that lists a tool or prompt, and its qualified name.

        Unlisted components are unreachable, because access rules could not match their names.
        """
        for mount in self._by_prefix:
            owned = mount.qualified_name(kind, name)
            if owned is not None and await self._lists(mount, call, kind, owned.name):
                return mount, owned
        return None

    async def _lists(self, mount: Mount, call: Call, kind: Kind, inside: str) -> bool:
        return inside in await self._names(mount, call, kind, inside)

    async def _names(self, mount: Mount, call: Call, kind: Kind, requested_name: str = "") -> frozenset[str]:
        """Return the names, URIs or templates that a mounted handler lists for a caller.

        A cached list of tools or prompts that does not contain the wanted name is soon requested again.
        """
        method = _METHODS[kind]
        at_hand = mount.cached_entries(method)
        # A remote handler may list differently for each caller, so its listing is cached per caller.
        key = (mount, method, get_caller_key(call)[0]) if at_hand is None else (mount, method)
        cached = self._listings.get(key)
        if cached is not None and at_hand is None:
            age = time.monotonic() - cached[0]
            if age < MISS_CACHE_TTL_SECONDS or (
                (requested_name in cached[1] or not requested_name) and age < NAME_CACHE_TTL_SECONDS
            ):
                return cached[1]
        elif cached is not None and cached[0] is at_hand:
            return cached[1]
        listed = at_hand if at_hand is not None else await mount.fetch_entries(method, call)
        names = frozenset(item for item in (_inner_name(mount, kind, entry) for entry in listed) if item is not None)
        self._listings[key] = (time.monotonic() if at_hand is None else at_hand, names)
        return names

    # Lists

    def cached_list(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        """Return the server's list merged with those of the mounts, or None if one is not cached.

        The same object is returned until one of them changes.
        """
        # The server's own components come first and win over mounted ones of the same name.
        parts = [catalog.definitions]
        for mount in self._mounts:
            part = mount.cached_entries(catalog.method)
            if part is None:
                return None
            parts.append(part)
        merged = self._merged.get(catalog.method)
        if merged is None or len(merged[0]) != len(parts) or any(map(is_not, merged[0], parts)):
            merged = self._merged[catalog.method] = (parts, _merge(catalog, parts))
        return merged[1]

    def get_page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None) -> Any:
        """Return a page of the server's list merged with those of the mounts, or a coroutine that returns it."""
        if view is not None:
            return self._page_in_view(catalog, call, cursor, view)
        listed = self.cached_list(catalog)
        if listed is None:
            return self._page_per_caller(catalog, call, cursor)
        return catalog.page(call.protocol_version or LATEST_PROTOCOL_VERSION, cursor, listed)

    async def _page_per_caller(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        """Return a page of lists that depend on the caller, requested again each time."""
        parts = [catalog.definitions, *await self._entries(catalog.method, call)]
        return catalog.encode_page(_merge(catalog, parts), call.protocol_version or LATEST_PROTOCOL_VERSION, cursor)

    async def _entries(self, method: str, call: Call) -> list[Sequence[Any]]:
        """Return the entries of each mounted handler; remote handlers are queried concurrently."""
        return await asyncio.gather(*(mount.fetch_entries(method, call) for mount in self._mounts))

    async def _page_in_view(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView) -> Raw:
        """Return a page of the entries that the caller may see."""
        parts = await self._entries(catalog.method, call)
        make = partial(self._visible, catalog, parts, view)
        if all(mount.cached_entries(catalog.method) is part for mount, part in zip(self._mounts, parts, strict=True)):
            return view.page(catalog, (catalog.definitions, *parts), make, call.protocol_version, cursor)
        return catalog.encode_page(make(), call.protocol_version or LATEST_PROTOCOL_VERSION, cursor)

    def _visible(self, catalog: Catalog[Any], parts: list[Sequence[Any]], view: CallerView) -> Sequence[Any]:
        kind = KIND_BY_METHOD[catalog.method]
        result = {catalog.name_of(entry): entry for entry in view.definitions(catalog)}
        # Each name belongs to the mount that a call of it would be forwarded to.
        owners: dict[str, Mount] = {}
        by_mount = dict(zip(self._mounts, parts, strict=True))
        for mount in self._by_prefix if kind in ("tool", "prompt") else self._mounts:
            for entry in by_mount[mount]:
                owners.setdefault(catalog.name_of(entry), mount)
        for mount, part in by_mount.items():
            for entry in part:
                name = catalog.name_of(entry)
                # An entry that is shadowed by a component the caller may not see stays hidden: a
                # call of the name would reach that component.
                if owners[name] is not mount or name in result or name in catalog:
                    continue
                owned = view.local_name_of(kind, name) or mount.qualified_name(kind, name)
                if owned is not None and view.is_visible(kind, owned):
                    result[name] = entry
        return tuple(result.values())

    # Forwarding requests

    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """Forward a call to the mounted handler that knows the tool or prompt, longest prefix first. Raises
        ComponentNotFound.
        """
        if self.protection is not None:
            return await self._call_if_admitted(call, kind, name, catalog)
        for mount in self._by_prefix:
            inward = mount.local_name(name)
            if inward is not None:
                try:
                    return await mount.forward(call, "name", inward)
                except ComponentNotFound:
                    continue
        raise await self.not_found_error(call, kind, name, catalog)

    async def _call_if_admitted(self, call: Call, kind: Any, name: str, catalog: Catalog[Any]) -> Any:
        # With a policy, the mount is determined before the call: trying one mount after the other
        # would execute a tool under a name that no rule was checked for.
        owner = await self._holder(call, kind, name)
        if owner is not None and await self.admits(call, kind, owner[1]):
            try:
                return await owner[0].forward(call, "name", owner[0].local_name(name))
            except ComponentNotFound:
                pass  # raise the error below instead: it names this server's similar components
        raise await self.not_found_error(call, kind, name, catalog)

    async def visible_names(self, call: Call, catalog: Catalog[Any], view: CallerView | None) -> list[str]:
        parts = await self._entries(catalog.method, call)
        if view is not None:
            return [item.name for item in self._visible(catalog, parts, view)]
        return [item.definition.name for item in catalog] + [item.name for part in parts for item in part]

    def requires_task(self, tool: str) -> bool:
        """Return whether a mounted handler knows that its tool runs only as a task."""
        return any(
            get_capabilities(mount.handler).directory.requires_task(inward)
            for mount in self._by_prefix
            if (inward := mount.local_name(tool)) is not None
        )

    def tool_annotations(self, call: Call, tool: str) -> ToolAnnotations | None:
        """Return the annotations of a tool from the mounted handler that knows it, longest prefix first."""
        for mount in self._by_prefix:
            inward = mount.local_name(tool)
            result = (
                None if inward is None else get_capabilities(mount.handler).directory.tool_annotations(call, inward)
            )
            if result is not None:
                return result
        return None

    def wrap_task_method(self, handler: Callable[[Call], Any], call: Call) -> Any:
        """Answer a request about a task, which a function of ours may have started on a mounted handler."""
        return self._about_task(handler, call) if self._mounts and call.reply.tracks_tasks else handler(call)

    async def _about_task(self, own: Callable[[Call], Any], call: Call) -> Any:
        for mount in self._mounts:
            try:
                return await mount.forward_task_request(call)
            except (InvalidParams, MethodNotFound):
                continue  # another handler's task
        result = own(call)
        return await result if type(result) is CoroutineType else result

    async def read(self, call: Call, uri: str) -> Any:
        """Return the contents of a resource from the mounted handler that has it. Raises ResourceNotFound."""
        for mount in await self._providers(call, uri):
            if await self.admits(call, "resource", mount.qualified_name("resource", uri)):
                try:
                    return await mount.forward(call, "uri", mount.local_uri(uri))
                except ResourceNotFound:
                    continue
        raise ResourceNotFound(uri)

    async def _providers(self, call: Call, uri: str) -> list[Mount]:
        """Return the mounts that may have a resource, in the order in which to try them.

        A mount that lists it, or has the most specific template for it, is tried alone; a matching prefix takes
        precedence. If no mount lists it, all are tried, mounts without a prefix whose template begins with a variable
        last.
        """
        fitting = [mount for mount in self._mounts if mount.local_uri(uri) is not None]
        # The usual case: one mount fits, and nothing has to be listed.
        if len(fitting) < 2:
            return fitting
        ranked = [(await self._rank(mount, call, uri), mount) for mount in fitting]
        ranked.sort(key=lambda entry: entry[0])
        if ranked[0][0] < _UNLISTED:
            return [ranked[0][1]]
        return [mount for _, mount in ranked]

    async def _rank(self, mount: Mount, call: Call, uri: str) -> tuple[int, ...]:
        """Return the rank of a mount for a URI; lower is better."""
        inward = mount.local_uri(uri) or ""
        try:
            listed = inward in await self._names(mount, call, "resource")
            names = await self._names(mount, call, "template")
        except PorticoError:
            # An unreachable mount must not keep others from being tried.
            return (*_UNLISTED, -len(mount.prefix or ""))
        result = [
            template
            for name in sorted(names)
            if (template := uris.try_parse_template(name)) is not None and template.match(inward) is not None
        ]
        if mount.prefix is not None and (listed or result):
            return (0, -len(mount.prefix))
        if listed:
            return (1,)
        own = [item.specificity for item in result if not uris.begins_with_variable(item.text)]
        if own:
            return (2, *min(own))
        return (*_UNLISTED, 1) if result else (*_UNLISTED, -len(mount.prefix or ""))

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        """Return the completions of the mounted handler that lists the prompt or template, or of the first matching
        prefix.
        """
        ref = params.ref
        name = ref.name if isinstance(ref, PromptReference) else ref.uri
        for mount in await self._completing(call, params):
            if isinstance(ref, PromptReference):
                inward, inner = mount.local_name(name), {"type": "ref/prompt", "name": mount.local_name(name)}
            else:
                inward, inner = mount.local_uri(name), {"type": "ref/resource", "uri": mount.local_uri(name)}
            kind: Kind = "prompt" if isinstance(ref, PromptReference) else "template"
            if inward is not None and await self.admits(call, kind, mount.qualified_name(kind, name)):
                return await mount.forward(call, "ref", inner)
        raise self.nothing_to_complete(name)

    async def _completing(self, call: Call, params: CompleteParams) -> list[Mount]:
        ref = params.ref
        kinds: tuple[Kind, ...] = ("prompt",) if isinstance(ref, PromptReference) else ("template", "resource")
        name = ref.name if isinstance(ref, PromptReference) else ref.uri
        inward = {
            mount: mount.local_name(name) if kinds[0] == "prompt" else mount.local_uri(name) for mount in self._mounts
        }
        fitting = [mount for mount in self._by_prefix if inward[mount] is not None]
        if len(fitting) < 2:
            return fitting
        for mount in fitting:
            for kind in kinds:
                with suppress(PorticoError):
                    if inward[mount] in await self._names(mount, call, kind, inward[mount] or ""):
                        return [mount]
        return fitting


def _inner_name(mount: Mount, kind: Kind, entry: Any) -> str | None:
    """Return the mounted handler's own name for an entry of one of its lists, which has its exposed name."""
    if kind in ("tool", "prompt"):
        return mount.to_local(kind, entry.name)
    return mount.local_uri(Catalog.name_of(entry))


def _merge(catalog: Catalog[Any], parts: list[Sequence[Any]]) -> Sequence[Any]:
    """Merge lists. Of several entries with the same name only the first is reachable, so the others are dropped."""
    result: dict[str, Any] = {}
    for part in parts:
        for entry in part:
            result.setdefault(catalog.name_of(entry), entry)
    return tuple(result.values())


def _close_relays(relays: Iterable[ChangeRelay | None]) -> None:
    for relay in relays:
        if relay is not None:
            relay.close()
