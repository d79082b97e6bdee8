"""The handlers that are mounted in a server: who of them answers to a name, and what they tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import is_not
from typing import Any, Protocol

from msgspec import Raw, Struct

from portico.rpc.call import Call, Face
from portico.rpc.relay import ChangeRelay
from portico.schema.problems import nearest
from portico.server.registry import mounts
from portico.server.registry.catalog import Catalog
from portico.server.registry.mounts import Mount
from portico.wire.completion import CompleteParams, PromptReference
from portico.wire.errors import InvalidParams, ResourceNotFound, Unknown
from portico.wire.revisions import LATEST
from portico.wire.subscriptions import Filter


class Others(Protocol):
    """What a server asks when it has no answer itself: its mounts; and in a gateway its upstreams."""

    def __bool__(self) -> bool: ...
    def __len__(self) -> int: ...
    def hear(self, wanted: Filter, face: Face | None) -> list[tuple[str, ...]]: ...
    def unhear(self, keys: list[tuple[str, ...]]) -> None: ...
    def may_have(self, uri: str, face: Face | None) -> bool: ...
    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None: ...
    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Any: ...
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
        mount = Mount(target, mounts.handler_of(target), prefix)
        self._set([*self._mounts, mount])
        for uris, shared in self._relays.items():
            shared.relays[mount] = mounts.relay(mount, uris, self._publish)
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

    def hear(self, wanted: Filter, face: Face | None) -> list[tuple[str, ...]]:
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
                    shared.relays[mount] = mounts.relay(mount, uris, self._publish)
            shared.users += 1
        return keys

    def unhear(self, keys: list[tuple[str, ...]]) -> None:
        for uris in keys:
            shared = self._relays[uris]
            shared.users -= 1
            if not shared.users:
                del self._relays[uris]
                _end(shared.relays.values())

    def may_have(self, uri: str, face: Face | None) -> bool:
        """Whether a mounted handler could have this resource: only it knows."""
        return any(mount.inward_uri(uri) is not None for mount in self._mounts)

    # Lists

    def listed(self, catalog: Catalog[Any]) -> Sequence[Any] | None:
        """The server's list with those of the mounts, if all are at hand; the same object until one changes."""
        parts = [catalog.definitions]
        for mount in self._mounts:
            part = mounts.known(mount, catalog.method)
            if part is None:
                return None
            parts.append(part)
        merged = self._merged.get(catalog.method)
        if merged is None or len(merged[0]) != len(parts) or any(map(is_not, merged[0], parts)):
            merged = self._merged[catalog.method] = (parts, _merge(catalog, parts))
        return merged[1]

    def page(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Any:
        """A page of the server's list and those of the mounted handlers, or a coroutine that comes to it."""
        listed = self.listed(catalog)
        if listed is None:
            return self._asked(catalog, call, cursor)
        return catalog.page(call.revision or LATEST, cursor, listed)

    async def _asked(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        """What depends on who asks is asked for each time."""
        parts = [catalog.definitions]
        for mount in self._mounts:
            parts.append(await mounts.entries(mount, catalog.method, call))
        return catalog.once(_merge(catalog, parts), call.revision or LATEST, cursor)

    # Answering

    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The answer of the mounted handler that knows a tool or a prompt; the longest prefix is asked first."""
        for mount in self._by_prefix:
            inward = mount.inward(name)
            if inward is not None:
                try:
                    return await mounts.delegate(mount, call, "name", inward)
                except Unknown:
                    continue
        names = [component.definition.name for component in catalog]
        for mount in self._mounts:
            names += [one.name for one in await mounts.entries(mount, f"{kind}s/list", call)]
        raise Unknown(kind, name, nearest(name, names, most=3))

    async def read(self, call: Call, uri: str) -> Any:
        """The answer of the mounted handler that has a resource."""
        for mount in self._mounts:
            inward = mount.inward_uri(uri)
            if inward is not None:
                try:
                    return await mounts.delegate(mount, call, "uri", inward)
                except ResourceNotFound:
                    continue
        raise ResourceNotFound(uri)

    async def complete(self, call: Call, params: CompleteParams) -> Any:
        """The completions of the first mounted handler whose prefix fits."""
        ref = params.ref
        name = ref.name if isinstance(ref, PromptReference) else ref.uri
        for mount in self._mounts:
            if isinstance(ref, PromptReference):
                inward, inner = mount.inward(name), {"type": "ref/prompt", "name": mount.inward(name)}
            else:
                inward, inner = mount.inward_uri(name), {"type": "ref/resource", "uri": mount.inward_uri(name)}
            if inward is not None:
                return await mounts.delegate(mount, call, "ref", inner)
        raise InvalidParams(f"Nothing to complete: {name}")


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
