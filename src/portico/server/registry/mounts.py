"""Other handlers as part of a server: their names get a prefix, their answers come back through ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.rpc.call import Call, Handler, Listening
from portico.wire import jsonrpc, notices
from portico.wire.content import EmbeddedResource, ResourceLink
from portico.wire.errors import MethodNotFound, ProtocolError
from portico.wire.meta import SERVER_INFO
from portico.wire.methods import METHODS
from portico.wire.prompts import GetPromptResult
from portico.wire.resources import ReadResourceResult
from portico.wire.revisions import MODERN
from portico.wire.subscriptions import Filter, ListenParams
from portico.wire.tasks import EXTENSION
from portico.wire.tools import CallToolResult

log = logging.getLogger("portico")

MOST_PAGES = 1000

_members = msgspec.json.Decoder(dict[str, Raw])


class Mount(Struct, eq=False):
    handler: Handler
    prefix: str | None = None

    def outward(self, name: str) -> str:
        return name if self.prefix is None else f"{self.prefix}_{name}"

    def inward(self, name: str) -> str | None:
        """The name on the inside, if it can be one of ours."""
        if self.prefix is None:
            return name
        start = f"{self.prefix}_"
        return name.removeprefix(start) if name.startswith(start) else None

    def outward_uri(self, uri: str) -> str:
        scheme, mark, rest = uri.partition("://")
        return uri if self.prefix is None or not mark else f"{scheme}://{self.prefix}/{rest}"

    def inward_uri(self, uri: str) -> str | None:
        if self.prefix is None:
            return uri
        scheme, mark, rest = uri.partition("://")
        start = f"{self.prefix}/"
        return f"{scheme}://{rest.removeprefix(start)}" if mark and rest.startswith(start) else None


# Each list: the member that holds its entries, and the member of an entry that is rewritten.
_LISTS = {
    "tools/list": ("tools", "name", Mount.outward),
    "prompts/list": ("prompts", "name", Mount.outward),
    "resources/list": ("resources", "uri", Mount.outward_uri),
    "resources/templates/list": ("resource_templates", "uri_template", Mount.outward_uri),
}


async def entries(mount: Mount, method: str, call: Call) -> list[Any]:
    """All entries of a mounted handler's list, under their outward names."""
    member, field, outward = _LISTS[method]
    found: list[Any] = []
    cursor: Any = UNSET
    for _ in range(MOST_PAGES):
        params = Raw(jsonrpc.encode({} if cursor is UNSET else {"cursor": cursor}))
        try:
            said = await mount.handler(replace(call, method=method, params=params, revision=MODERN))
        except MethodNotFound:
            return found
        page = msgspec.json.decode(jsonrpc.encode(said), type=METHODS[method].result)
        for one in getattr(page, member):
            meta = _outward_meta(mount, one.meta)
            found.append(replace(one, **{field: outward(mount, getattr(one, field)), "meta": meta}))
        cursor = page.next_cursor
        if cursor is UNSET or cursor is None:
            break
    return found


def _outward_meta(mount: Mount, meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """A tool may name the page that shows it (the Apps extension); outside it has another address."""
    page = meta.get("ui") if meta is not None else None
    if not isinstance(page, dict) or not isinstance(page.get("resourceUri"), str):
        return meta
    return {**(meta or {}), "ui": {**page, "resourceUri": mount.outward_uri(page["resourceUri"])}}


async def delegate(mount: Mount, call: Call, member: str, inward: Any) -> Any:
    """The same call with the inward name, answered by the mounted handler under our name."""
    members: dict[str, Any] = dict(_members.decode(call.params))
    members[member] = inward
    # Its tasks could not be asked for by their ids here, so from there a call is answered with its result.
    able = call.capabilities
    if able.extensions is not None and EXTENSION in able.extensions:
        others = {name: one for name, one in able.extensions.items() if name != EXTENSION}
        able = replace(able, extensions=others or None)
    inner = replace(call, params=Raw(jsonrpc.encode(members)), capabilities=able)
    said = await mount.handler(inner)
    return _outward(mount, said) if isinstance(said, Struct) else said


def _outward(mount: Mount, said: Any) -> Any:
    """A result as it is seen from outside: unsigned, because we sign it, and with addresses that lead somewhere."""
    if isinstance(said.meta, Raw):
        said = replace(said, meta=UNSET)
    elif isinstance(said.meta, dict):
        said = replace(said, meta={name: one for name, one in said.meta.items() if name != SERVER_INFO} or UNSET)
    if isinstance(said, CallToolResult):
        return replace(said, content=[_outward_block(mount, part) for part in said.content])
    if isinstance(said, GetPromptResult):
        return replace(said, messages=[replace(m, content=_outward_block(mount, m.content)) for m in said.messages])
    if isinstance(said, ReadResourceResult):
        return replace(said, contents=[replace(part, uri=mount.outward_uri(part.uri)) for part in said.contents])
    return said


def _outward_block(mount: Mount, part: Any) -> Any:
    if isinstance(part, ResourceLink):
        return replace(part, uri=mount.outward_uri(part.uri))
    if isinstance(part, EmbeddedResource) and isinstance(part.resource, Struct):
        return replace(part, resource=replace(part.resource, uri=mount.outward_uri(part.resource.uri)))  # type: ignore[attr-defined]
    return part


def relay(mount: Mount, wanted: Filter, publish: Callable[[str, str | None], None]) -> asyncio.Task[None]:
    """Listen to a mounted handler for as long as the task lives."""
    uris = [inward for uri in wanted.resource_subscriptions or () if (inward := mount.inward_uri(uri)) is not None]
    inner = replace(wanted, resource_subscriptions=uris or None)

    def emit(method: str, params: Any) -> None:
        if method != notices.ACKNOWLEDGED:
            uri = getattr(params, "uri", None)
            publish(method, None if uri is None else mount.outward_uri(uri))

    call = Call(
        method="subscriptions/listen",
        params=Raw(jsonrpc.encode(ListenParams(inner))),
        id=0,
        revision=MODERN,
        reply=Listening(emit),
    )
    return asyncio.get_running_loop().create_task(_listen(mount, call))


async def _listen(mount: Mount, call: Call) -> None:
    try:
        await mount.handler(call)
    except ProtocolError as refusal:
        log.debug("a mounted handler does not tell of changes: %s", refusal.message)
