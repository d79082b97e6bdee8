"""The handlers that are mounted in a server: who of them answers to a name, and what they tell of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from portico.rpc.call import Call
from portico.schema.problems import nearest
from portico.server.registry import mounts
from portico.server.registry.catalog import Catalog, position
from portico.server.registry.mounts import Mount
from portico.wire.completion import CompleteParams, PromptReference
from portico.wire.errors import InvalidParams, ResourceNotFound, Unknown
from portico.wire.revisions import LATEST
from portico.wire.subscriptions import Filter


class Mounts:
    """The mounts of one server, in their order. `publish` is told of their changes."""

    def __init__(self, publish: Callable[[str, str | None], None]) -> None:
        self._publish = publish
        self._mounts: list[Mount] = []
        # For each listener what it wants, and the task that listens for it at each mounted handler.
        self._relays: list[tuple[Filter, dict[Mount, asyncio.Task[None]]]] = []

    def __bool__(self) -> bool:
        return bool(self._mounts)

    def add(self, target: Any, prefix: str | None) -> Mount:
        mount = Mount(target, mounts.handler_of(target), prefix)
        self._mounts.append(mount)
        for wanted, relays in self._relays:
            relays[mount] = mounts.relay(mount, wanted, self._publish)
        return mount

    def remove(self, target: Any) -> list[Mount]:
        """Take out every mount of a target. Returns those that there were."""
        gone = [mount for mount in self._mounts if mount.target is target or mount.target == target]
        self._mounts = [mount for mount in self._mounts if mount not in gone]
        for mount in gone:
            for _, relays in self._relays:
                relays.pop(mount).cancel()
        return gone

    @contextmanager
    def relaying(self, wanted: Filter) -> Iterator[None]:
        """Meanwhile what the mounted handlers tell of is published here, also by those that are added later."""
        # Their tasks are not asked for here: see `mounts.delegate`.
        wanted = replace(wanted, task_ids=None)
        relays = {mount: mounts.relay(mount, wanted, self._publish) for mount in self._mounts}
        self._relays.append((wanted, relays))
        try:
            yield
        finally:
            self._relays.remove((wanted, relays))
            for task in relays.values():
                task.cancel()

    async def page(self, catalog: Catalog[Any], call: Call, cursor: str | None) -> Raw:
        """A page of the server's list and those of the mounted handlers."""
        definitions = [component.definition for component in catalog]
        for mount in self._mounts:
            # What has the same name as something before it could not be reached, so it is not shown.
            taken = {catalog.name_of(one) for one in definitions}
            entries = await mounts.entries(mount, call.method, call)
            definitions += [one for one in entries if catalog.name_of(one) not in taken]
        return catalog.encode(definitions, call.revision or LATEST, position(cursor, catalog.page_size))

    async def call(self, call: Call, kind: str, name: str, catalog: Catalog[Any]) -> Any:
        """The answer of the mounted handler that knows a tool or a prompt; the longest prefix is asked first."""
        for mount in sorted(self._mounts, key=lambda mount: -len(mount.prefix or "")):
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
