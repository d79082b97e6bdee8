"""The handlers that are mounted in a server: who of them answers to a name, and what they tell of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import is_not
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw, Struct

from portico._lazy import LazyModule
from portico.protocol import jsonrpc
from portico.protocol.completion import CompleteParams, PromptReference
from portico.protocol.errors import Error, InvalidParams, MethodNotFound, ResourceNotFound, Unknown
from portico.protocol.subscriptions import Filter
from portico.protocol.tools import ToolAnnotations
from portico.protocol.versions import LATEST
from portico.rpc.call import Call, members
from portico.rpc.fair_queue import caller_of
from portico.server.registry.catalog import KINDS, Catalog

if TYPE_CHECKING:
    from portico.jsonschema import argument_issues
    from portico.protocol import uri_template as uris
    from portico.rpc.change_relay import ChangeRelay

    # It is put around the server that these belong to.
    from portico.server.policy.enforcement import Protection
    from portico.server.policy.interfaces import Kind, Owned
    from portico.server.providers import mount as mounts
    from portico.server.providers.mount import Mount
    from portico.server.registry.caller_view import CallerView
else:
    uris = LazyModule("portico.protocol.uri_template")
    argument_issues = LazyModule("portico.jsonschema.argument_issues")
    mounts = LazyModule("portico.server.providers.mount")

# For how long it is believed what a handler elsewhere has listed, when it is asked whether it has a name; and for how
# long a name is believed not to be there.
NAMES_SECONDS = 10.0
MISSING_SECONDS = 1.0
MOST_LISTINGS = 1000
_METHODS: dict[Kind, str] = {kind: method for method, kind in KINDS.items()}
# The rank of a mount that does not list a resource, and may have it all the same.
_UNLISTED = (3,)
# What a body of ours asks about a task that it has begun.
TASK_METHODS = ("tasks/get", "tasks/cancel", "tasks/update")


class Others(Protocol):
    """What a server asks when it has no answer itself: its mounts; and in a gateway its upstreams."""

    # Asked before anything is passed on, where there is one.
    protection: Protection | None

    def __bool__(self) -> bool: ...
    def __len__(self) -> int: ...
    def owner_of(self, kind: Kind, name: str) -> Owned | None: ...
    def canonical(self, kind: Kind, name: str) -> str | None: ...
    def hides(self, call: Call, kind: Kind, name: str) -> bool: ...
    def needs_task(self, tool: str) -> bool: ...
    def hints(self, call: Call, tool: str) -> ToolAnnotations | None: ...
    async def unknown(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Unknown: ...
    def nothing_to_complete(self, name: str) -> InvalidParams: ...
    def hear(self, wanted: Filter, call: Call) -> list[tuple[str, ...]]: ...
    def unhear(self, keys: list[tuple[str, ...]]) -> None: ...
    def may_have(self, uri: str, call: Call, view: CallerView | None = None) -> bool: ...
    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None: ...
    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None) -> Any: ...
    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any: ...
    async def read(self, call: Call, uri: str) -> Any: ...
    async def complete(self, call: Call, params: CompleteParams) -> Any: ...


class _SharedRelays(Struct):
    """How many want it, and the relay of each mounted handler that may tell of it."""

    users: int = 0
    relays: dict[Mount, ChangeRelay | None] = {}


class Mounts:
    """The mounts of one server, in their order. `publish` is told of their changes."""

    def __init__(self, publish: Callable[[str, str | None], None]) -> None:
        self._publish = publish
        self.protection: Protection | None = None
        # The names that handlers have listed: the list that they are from; or, of handlers elsewhere and by whom it was
        # listed for, when that was.
        self._listings: dict[Any, tuple[Any, frozenset[str]]] = {}
        self._mounts: list[Mount] = []
        # The longest prefix first.
        self._by_prefix: list[Mount] = []
        # By the resources that are wanted; for the lists by none. All listeners that want the same share their relays.
        self._relays: dict[tuple[str, ...], _SharedRelays] = {}
        # Of each list the parts it was last made of, and what they came to.
        self._merged: dict[str, tuple[list[Sequence[Any]], Sequence[Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._mounts)

    def __len__(self) -> int:
        return len(self._mounts)

    def add(self, target: Any, prefix: str | None) -> Mount:
        mount: Mount = mounts.Mount(target, mounts.handler_of(target), prefix)
        self._set([*self._mounts, mount])
        for uris, shared in self._relays.items():
            shared.relays[mount] = mount.relay(uris, self._publish)
        return mount

    def remove(self, target: Any) -> list[Mount]:
        """Take out every mount of a target. Returns those that there were."""
        gone = [mount for mount in self._mounts if mount.target is target or mount.target == target]
        self._set([mount for mount in self._mounts if mount not in gone])
        for shared in self._relays.values():
            _end([shared.relays.pop(mount) for mount in gone])
        return gone

    def _set(self, found: list[Mount]) -> None:
        self._mounts = found
        self._by_prefix = sorted(found, key=lambda mount: -len(mount.prefix or ""))

    # Changes

    def hear(self, wanted: Filter, call: Call) -> list[tuple[str, ...]]:
        """From now on what the mounted handlers tell of is published here. Returns what `unhear` takes.

        It costs a relay for each mounted handler once, however many listeners there are.
        """
        keys: list[tuple[str, ...]] = []
        if wanted.tools_list_changed or wanted.prompts_list_changed or wanted.resources_list_changed:
            keys.append(())
        if wanted.resource_subscriptions:
            keys.append(tuple(sorted(set(wanted.resource_subscriptions))))
        for uris in keys:
            shared = self._relays.get(uris)
            if shared is None:
                shared = self._relays[uris] = _SharedRelays()
                for mount in self._mounts:
                    shared.relays[mount] = mount.relay(uris, self._publish)
            shared.users += 1
        return keys

    def unhear(self, keys: list[tuple[str, ...]]) -> None:
        for uris in keys:
            shared = self._relays[uris]
            shared.users -= 1
            if not shared.users:
                del self._relays[uris]
                _end(shared.relays.values())

    def may_have(self, uri: str, call: Call, view: CallerView | None = None) -> bool:
        """Whether a mounted handler could have this resource: only it knows."""
        return any(mount.may_have(uri, view) for mount in self._mounts)

    # Whose something is

    def owner_of(self, kind: Kind, name: str) -> Owned | None:
        """Of the mounted handlers that may have it, the one that is asked first."""
        found = (mount.owned(kind, name) for mount in self._by_prefix)
        return next((one for one in found if one is not None), None)

    def canonical(self, kind: Kind, name: str) -> str | None:
        """The one name of something among those that lead to it."""
        for mount in self._by_prefix:
            inside = mount.inside(kind, name)
            if inside is not None:
                return mount.outside(kind, inside)
        return None

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        """Whether a mounted handler has something that it does not show to the sender of a call."""
        for mount in self._mounts:
            inward = mount.inward(name) if kind in ("tool", "prompt") else mount.inward_uri(name)
            if inward is not None and members(mount.handler).hides(call, kind, inward):
                return True
        return False

    async def _holder(self, call: Call, kind: Kind, name: str) -> tuple[Mount, Owned] | None:
        """Whose tool or prompt it is: the first that lists it. What is not listed cannot be had by a name that no rule
        knows."""
        for mount in self._by_prefix:
            owned = mount.owned(kind, name)
            if owned is not None and await self._lists(mount, call, kind, owned.name):
                return mount, owned
        return None

    async def _lists(self, mount: Mount, call: Call, kind: Kind, inside: str) -> bool:
        return inside in await self._names(mount, call, kind, inside)

    async def _names(self, mount: Mount, call: Call, kind: Kind, wanted: str = "") -> frozenset[str]:
        """Return the names, URIs or templates that a mounted handler lists to the sender of a call. A cached list of
        tools or prompts without the wanted name is soon asked for again."""
        method = _METHODS[kind]
        at_hand = mount.known(method)
        key = (mount, method, caller_of(call)[0]) if at_hand is None else (mount, method)
        kept = self._listings.get(key)
        if kept is not None and at_hand is None:
            age = time.monotonic() - kept[0]
            if age < MISSING_SECONDS or ((wanted in kept[1] or not wanted) and age < NAMES_SECONDS):
                return kept[1]
        elif kept is not None and kept[0] is at_hand:
            return kept[1]
        listed = at_hand if at_hand is not None else await mount.entries(method, call)
        names = frozenset(one for one in (_inside(mount, kind, entry) for entry in listed) if one is not None)
        if len(self._listings) >= MOST_LISTINGS:
            self._listings.clear()
        self._listings[key] = (time.monotonic() if at_hand is None else at_hand, names)
        return names

    # Lists

    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        """The server's list with those of the mounts, if all are at hand; the same object until one changes."""
        parts = [catalog.definitions]
        for mount in self._mounts:
            part = mount.known(catalog.method)
            if part is None:
                return None
            parts.append(part)
        merged = self._merged.get(catalog.method)
        if merged is None or len(merged[0]) != len(parts) or any(map(is_not, merged[0], parts)):
            merged = self._merged[catalog.method] = (parts, _merge(catalog, parts))
        return merged[1]

    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView | None = None) -> Any:
        """A page of the server's list and those of the mounted handlers, or a coroutine that comes to it."""
        if view is not None:
            return self._seen(catalog, call, cursor, view)
        listed = self.listed(catalog)
        if listed is None:
            return self._asked(catalog, call, cursor)
        return catalog.page(call.revision or LATEST, cursor, listed)

    async def _asked(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        """What depends on who asks is asked for each time."""
        parts = [catalog.definitions, *await self._entries(catalog.method, call)]
        return catalog.once(_merge(catalog, parts), call.revision or LATEST, cursor)

    async def _entries(self, method: str, call: Call) -> list[Sequence[Any]]:
        """Return the entries of each mounted handler; those elsewhere are asked concurrently."""
        return await asyncio.gather(*(mount.entries(method, call) for mount in self._mounts))

    async def _seen(self, catalog: Catalog[Any], call: Call, cursor: str | None, view: CallerView) -> Raw:
        """The same, of what the caller may see."""
        parts = await self._entries(catalog.method, call)
        make = partial(self._visible, catalog, parts, view)
        if all(mount.known(catalog.method) is part for mount, part in zip(self._mounts, parts, strict=True)):
            return view.page(catalog, (catalog.definitions, *parts), make, call.revision, cursor)
        return catalog.once(make(), call.revision or LATEST, cursor)

    def _visible(self, catalog: Catalog[Any], parts: list[Sequence[Any]], view: CallerView) -> Sequence[Any]:
        kind = KINDS[catalog.method]
        found = {catalog.name_of(entry): entry for entry in view.definitions(catalog)}
        # Each name belongs to the one that a call of it would go to.
        held: dict[str, Mount] = {}
        by_mount = dict(zip(self._mounts, parts, strict=True))
        for mount in self._by_prefix if kind in ("tool", "prompt") else self._mounts:
            for entry in by_mount[mount]:
                held.setdefault(catalog.name_of(entry), mount)
        for mount, part in by_mount.items():
            for entry in part:
                name = catalog.name_of(entry)
                if held[name] is not mount or name in found or name in catalog:
                    continue
                owned = view.own(kind, name) or mount.owned(kind, name)
                if owned is not None and view.sees(kind, owned):
                    found[name] = entry
        return tuple(found.values())

    # Answering

    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The answer of the mounted handler that knows a tool or a prompt; the longest prefix is asked first."""
        if self.protection is not None:
            return await self._call_if_admitted(call, kind, name, catalog, self.protection)
        for mount in self._by_prefix:
            inward = mount.inward(name)
            if inward is not None:
                try:
                    return await mount.delegate(call, "name", inward)
                except Unknown:
                    continue
        raise await self.unknown(call, kind, name, catalog)

    async def _call_if_admitted(
        self, call: Call, kind: Any, name: str, catalog: Catalog[Any], protection: Protection
    ) -> Any:
        held = await self._holder(call, kind, name)
        if held is not None and await protection.admit(call, kind, held[1], _arguments(call)):
            try:
                return await held[0].delegate(call, "name", held[0].inward(name))
            except Unknown:
                pass  # it is ours that is not known, and the names that may be meant are
        raise await self.unknown(call, kind, name, catalog)

    async def unknown(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Unknown:
        """The refusal of a name that is not there, with those that may have been meant, as far as the caller sees."""
        view = None if self.protection is None else self.protection.view(call)
        parts = await self._entries(f"{kind}s/list", call)
        if view is not None:
            names = [one.name for one in self._visible(catalog, parts, view)]
        else:
            names = [one.definition.name for one in catalog] + [one.name for part in parts for one in part]
        nearest = argument_issues.nearest
        return Unknown(kind, name, nearest(name, catalog.unchecked(names), most=3))

    def nothing_to_complete(self, name: str) -> InvalidParams:
        return InvalidParams(f"Nothing to complete: {name}")

    def needs_task(self, tool: str) -> bool:
        """Whether a mounted handler knows that a tool of its own runs only as a task."""
        return any(
            members(mount.handler).needs_task(inward)
            for mount in self._by_prefix
            if (inward := mount.inward(tool)) is not None
        )

    def hints(self, call: Call, tool: str) -> ToolAnnotations | None:
        """What the mounted handler that knows a tool says of it; the longest prefix is asked first."""
        for mount in self._by_prefix:
            inward = mount.inward(tool)
            found = None if inward is None else members(mount.handler).hints(call, inward)
            if found is not None:
                return found
        return None

    def around_task(self, own: Callable[[Call], Any], call: Call) -> Any:
        """What is asked about a task: of a mounted handler's, too, where a body of ours has begun it there."""
        return self._about_task(own, call) if self._mounts and call.reply.follows else own(call)

    async def _about_task(self, own: Callable[[Call], Any], call: Call) -> Any:
        for mount in self._mounts:
            try:
                return await mount.about_task(call)
            except (InvalidParams, MethodNotFound):
                continue  # it is not this one's
        said = own(call)
        return await said if type(said) is CoroutineType else said

    async def read(self, call: Call, uri: str) -> Any:
        """Return the answer of the mounted handler that has a resource."""
        for mount in await self._providers(call, uri):
            if await self._admits(call, "resource", mount, uri):
                try:
                    return await mount.delegate(call, "uri", mount.inward_uri(uri))
                except ResourceNotFound:
                    continue
        raise ResourceNotFound(uri)

    async def _providers(self, call: Call, uri: str) -> list[Mount]:
        """Return the mounts that may have a resource, in the order in which they are asked. One that lists it, or has
        the most specific template for it, is asked alone; a mount that is named by its prefix comes before others. If
        no mount lists it all are asked, those without a prefix whose template begins with a variable last."""
        fitting = [mount for mount in self._mounts if mount.inward_uri(uri) is not None]
        if len(fitting) < 2:
            return fitting
        ranked = [(await self._rank(mount, call, uri), mount) for mount in fitting]
        ranked.sort(key=lambda one: one[0])
        if ranked[0][0] < _UNLISTED:
            return [ranked[0][1]]
        return [mount for _, mount in ranked]

    async def _rank(self, mount: Mount, call: Call, uri: str) -> tuple[int, ...]:
        """Return how well a mount fits a URI; less is better."""
        inward = mount.inward_uri(uri) or ""
        try:
            listed = inward in await self._names(mount, call, "resource")
            names = await self._names(mount, call, "template")
        except Error:
            # One that is away is no reason not to ask others.
            return (*_UNLISTED, -len(mount.prefix or ""))
        found = [one for one in map(uris.parsed, sorted(names)) if one is not None and one.match(inward) is not None]
        if mount.prefix is not None and (listed or found):
            return (0, -len(mount.prefix))
        if listed:
            return (1,)
        own = [one.rank for one in found if not uris.begins_with_variable(one.text)]
        if own:
            return (2, *min(own))
        return (*_UNLISTED, 1) if found else (*_UNLISTED, -len(mount.prefix or ""))

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        """Return the completions of the mounted handler that lists the prompt or template, or else of the first whose
        prefix fits."""
        ref = params.ref
        name = ref.name if isinstance(ref, PromptReference) else ref.uri
        for mount in await self._completing(call, params):
            if isinstance(ref, PromptReference):
                inward, inner = mount.inward(name), {"type": "ref/prompt", "name": mount.inward(name)}
            else:
                inward, inner = mount.inward_uri(name), {"type": "ref/resource", "uri": mount.inward_uri(name)}
            kind: Kind = "prompt" if isinstance(ref, PromptReference) else "template"
            if inward is not None and await self._admits(call, kind, mount, name):
                return await mount.delegate(call, "ref", inner)
        raise self.nothing_to_complete(name)

    async def _completing(self, call: Call, params: CompleteParams) -> list[Mount]:
        ref = params.ref
        kinds: tuple[Kind, ...] = ("prompt",) if isinstance(ref, PromptReference) else ("template", "resource")
        name = ref.name if isinstance(ref, PromptReference) else ref.uri
        inward = {
            mount: mount.inward(name) if kinds[0] == "prompt" else mount.inward_uri(name) for mount in self._mounts
        }
        fitting = [mount for mount in self._by_prefix if inward[mount] is not None]
        if len(fitting) < 2:
            return fitting
        for mount in fitting:
            for kind in kinds:
                with suppress(Error):
                    if inward[mount] in await self._names(mount, call, kind, inward[mount] or ""):
                        return [mount]
        return fitting

    async def _admits(self, call: Call, kind: Kind, mount: Mount, name: str) -> bool:
        if self.protection is None:
            return True
        owned = mount.owned(kind, name)
        return owned is not None and await self.protection.admit(call, kind, owned)


def _inside(mount: Mount, kind: Kind, entry: Any) -> str | None:
    """Return what a mounted handler itself calls an entry of one of its lists, which has its outward name."""
    if kind in ("tool", "prompt"):
        return mount.inside(kind, entry.name)
    return mount.inward_uri(Catalog.name_of(entry))


def _arguments(call: Call) -> Any:
    found = call.typed().arguments
    return found if isinstance(found, Raw) else jsonrpc.encode(found or {})


def _merge(catalog: Catalog[Any], parts: list[Sequence[Any]]) -> Sequence[Any]:
    """All entries, each name once: what has the same name as something before it could not be reached."""
    found: dict[str, Any] = {}
    for part in parts:
        for entry in part:
            found.setdefault(catalog.name_of(entry), entry)
    return tuple(found.values())


def _end(relays: Iterable[ChangeRelay | None]) -> None:
    for relay in relays:
        if relay is not None:
            relay.end()
