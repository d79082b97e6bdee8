"""Other handlers as part of a server: their names get a prefix, their answers come back through ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.protocol import jsonrpc, notifications
from portico.protocol.content import EmbeddedResource, ResourceLink
from portico.protocol.errors import InvalidParams, MethodNotFound, ProtocolError, UsageError
from portico.protocol.meta import SERVER_INFO
from portico.protocol.methods import METHODS, asked_by, plainly
from portico.protocol.pagination import Paging
from portico.protocol.prompts import GetPromptResult
from portico.protocol.resources import ReadResourceResult, ReceivedContents
from portico.protocol.subscriptions import Filter
from portico.protocol.tasks import EXTENSION
from portico.protocol.tools import CallToolResult, ReceivedToolResult
from portico.protocol.uri_template import begins_with_variable
from portico.protocol.versions import MODERN
from portico.rpc.call import Call, Handler, members
from portico.rpc.change_relay import ChangeRelay
from portico.rpc.client_requests import require_all
from portico.rpc.handshake.input_requests import push
from portico.server.policy.interfaces import Kind, Owned
from portico.server.registry.caller_view import CallerView

if TYPE_CHECKING:
    from portico.transports import targets, upstream
else:
    targets = LazyModule("portico.transports.targets")
    upstream = LazyModule("portico.transports.upstream")

_CHANGES = frozenset(
    {
        notifications.TOOLS_CHANGED,
        notifications.PROMPTS_CHANGED,
        notifications.RESOURCES_CHANGED,
        notifications.RESOURCE_UPDATED,
    }
)

_members = msgspec.json.Decoder(dict[str, Raw])


class Mount(Struct, eq=False):
    # What was mounted: the handler itself, or a target, such as a URL, that the handler talks to.
    target: Any
    handler: Handler
    prefix: str | None = None
    # Of each list what the handler had at hand, and that under its outward names.
    kept: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {}

    def outward(self, name: str) -> str:
        return name if self.prefix is None else f"{self.prefix}_{name}"

    def inward(self, name: str) -> str | None:
        """The name on the inside, if it can be one of ours."""
        if self.prefix is None:
            return name
        start = f"{self.prefix}_"
        return name.removeprefix(start) if name.startswith(start) else None

    def outward_uri(self, uri: str) -> str:
        """Return the URI, or the URI template, that the handler's own has outside. A template that begins with a
        variable gets the prefix in front of all of it, so that it matches nothing of another mount."""
        scheme, mark, rest = uri.partition("://")
        if self.prefix is not None and not mark and begins_with_variable(uri):
            return f"{self.prefix}/{uri}"
        return uri if self.prefix is None or not mark else f"{scheme}://{self.prefix}/{rest}"

    def inward_uri(self, uri: str) -> str | None:
        """Return the handler's own URI; None if it cannot be one of its own."""
        if self.prefix is None:
            return uri
        start = f"{self.prefix}/"
        if uri.startswith(start):
            return uri.removeprefix(start)
        scheme, mark, rest = uri.partition("://")
        return f"{scheme}://{rest.removeprefix(start)}" if mark and rest.startswith(start) else None

    @property
    def owner(self) -> str:
        """Whose its things are in rules and records."""
        info = members(self.handler).info
        return self.prefix or (info.name if info is not None else "") or "mount"

    def inside(self, kind: Kind, name: str) -> str | None:
        """What the handler calls the thing that has a name outside; None if it cannot be one of its own."""
        inward = self.inward(name) if kind in ("tool", "prompt") else self.inward_uri(name)
        return None if inward is None else members(self.handler).canonical(kind, inward)

    def owned(self, kind: Kind, name: str) -> Owned | None:
        inside = self.inside(kind, name)
        return None if inside is None else Owned(self.owner, inside)

    def may_have(self, uri: str, view: CallerView | None) -> bool:
        inward = self.inward_uri(uri)
        return inward is not None and (view is None or view.sees("resource", Owned(self.owner, inward)))

    def outside(self, kind: Kind, inside: str) -> str:
        return self.outward(inside) if kind in ("tool", "prompt") else self.outward_uri(inside)

    def known(self, method: str) -> Sequence[Any] | None:
        """The entries of the handler's list under their outward names, where it has them at hand.

        They are the same for everybody, and the same object until something changes.
        """
        inside = members(self.handler).listed(method)
        if inside is None:
            return None
        kept = self.kept.get(method)
        if kept is None or kept[0] is not inside:
            kept = self.kept[method] = (inside, tuple(_outward_entry(self, method, one) for one in inside))
        return kept[1]

    async def entries(self, method: str, call: Call) -> Sequence[Any]:
        """All entries of the handler's list, under their outward names; it is asked if need be."""
        at_hand = self.known(method)
        if at_hand is not None:
            return at_hand
        found: list[Any] = []
        paging, params = Paging(), b"{}"
        while True:
            try:
                said = await self.handler(replace(call, method=method, params=Raw(params), revision=MODERN))
            except MethodNotFound:
                return found
            page = msgspec.json.decode(jsonrpc.encode(said), type=METHODS[method].result)
            listed = getattr(page, _LISTS[method][0])
            found += [_outward_entry(self, method, one) for one in listed]
            cursor = paging.after(page.next_cursor, len(listed))
            if cursor is None:
                return found
            params = jsonrpc.encode({"cursor": cursor})

    async def delegate(self, call: Call, member: str, inward: Any) -> Any:
        """The same call with the inward name, answered by the handler under our name."""
        params: dict[str, Any] = dict(_members.decode(call.params))
        params[member] = inward
        # A client could not listen to its tasks here, so from there a call of one is answered with its result.
        able = call.capabilities
        if able.extensions is not None and EXTENSION in able.extensions and not call.reply.follows:
            others = {name: one for name, one in able.extensions.items() if name != EXTENSION}
            able = replace(able, extensions=others or None)
        inner = replace(call, params=Raw(jsonrpc.encode(params)), capabilities=able)
        said = await self.handler(inner)
        if call.reply.follows and (task := _outward_task(self, said)) is not None:
            return task
        asked = asked_by(call.method, said)
        if asked is not None and call.reply.asks:
            said = await push(inner, asked, self.handler)
        elif asked is not None:
            # It goes to our client, so it is our question.
            require_all(call, asked)
        if type(said) is Raw and not _passes(self, call, said):
            said = _read(call.method, said)
        return _outward(self, said) if isinstance(said, Struct) else said

    async def about_task(self, call: Call) -> Any:
        """What the handler says about a task of its own. Raises InvalidParams where it cannot be one."""
        params: dict[str, Any] = dict(_members.decode(call.params))
        outward = msgspec.json.decode(params["taskId"], type=str)
        start = f"{self.owner}."
        if not outward.startswith(start):
            raise InvalidParams("Unknown task")
        params["taskId"] = outward.removeprefix(start)
        said = await self.handler(replace(call, params=Raw(jsonrpc.encode(params)), read=None))
        return _outward_state(self, said) if call.method == "tasks/get" else said

    def relay(self, uris: tuple[str, ...], publish: Callable[[str, str | None], None]) -> ChangeRelay | None:
        """Listen to the handler for changes of its lists or, if there are any, of these resources. None: it cannot have
        one of them."""
        wanted = Filter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
        if uris:
            inward = [one for one in map(self.inward_uri, uris) if one is not None]
            if not inward:
                return None
            wanted = Filter(resource_subscriptions=inward)

        def tell(method: str, params: Any) -> None:
            if method in _CHANGES:
                uri = getattr(params, "uri", None)
                publish(method, None if uri is None else self.outward_uri(uri))

        def missed() -> None:
            for uri in uris:
                publish(notifications.RESOURCE_UPDATED, uri)
            for method in (
                ()
                if uris
                else (notifications.TOOLS_CHANGED, notifications.PROMPTS_CHANGED, notifications.RESOURCES_CHANGED)
            ):
                publish(method, None)

        return ChangeRelay(self.handler, wanted, tell, missed=missed)


def handler_of(target: Any) -> Handler:
    """The Handler that a target stands for: itself, or a connection that is opened in the server's lifespan."""
    if isinstance(target, type):
        raise UsageError(f"cannot mount the class {target.__name__}: make an object of it")
    if callable(target):
        return target  # type: ignore[no-any-return]
    # What a client needs is loaded by servers that are one.
    upstreams = upstream
    found = targets.target_of(target)
    handler: Handler = getattr(found, "handler", None) or upstreams.Upstream(found)
    return handler


# Each list: the member that holds its entries, and the member of an entry that is rewritten.
_LISTS = {
    "tools/list": ("tools", "name", Mount.outward),
    "prompts/list": ("prompts", "name", Mount.outward),
    "resources/list": ("resources", "uri", Mount.outward_uri),
    "resources/templates/list": ("resource_templates", "uri_template", Mount.outward_uri),
}


def _outward_entry(mount: Mount, method: str, entry: Any) -> Any:
    _, field, outward = _LISTS[method]
    return replace(entry, **{field: outward(mount, getattr(entry, field)), "meta": _outward_meta(mount, entry.meta)})


def _outward_meta(mount: Mount, meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """A tool may name the page that shows it (the Apps extension); outside it has another address."""
    page = meta.get("ui") if meta is not None else None
    if not isinstance(page, dict) or not isinstance(page.get("resourceUri"), str):
        return meta
    return {**(meta or {}), "ui": {**page, "resourceUri": mount.outward_uri(page["resourceUri"])}}


def _outward_task(mount: Mount, said: Any) -> Raw | None:
    """A task that a call has become, under the id that it has outside; None for any other result."""
    if isinstance(said, CallToolResult):
        return None
    found = _members.decode(jsonrpc.encode(said))
    if bytes(found.get("resultType", b"")) != b'"task"' or "taskId" not in found:
        return None
    id = f"{mount.owner}.{msgspec.json.decode(found['taskId'], type=str)}"
    return Raw(jsonrpc.encode({**found, "taskId": id}))


def _outward_state(mount: Mount, said: Any) -> Any:
    """How a task stands, and what has come of it as a call would have given it."""
    found = _members.decode(jsonrpc.encode(said))
    if mount.prefix is None or b'"uri"' not in bytes(found.get("result", b"")):
        return said
    result = _read("tools/call", found["result"])
    if not isinstance(result, Struct):
        return said
    return Raw(jsonrpc.encode({**found, "result": _outward(mount, result)}))


def _passes(mount: Mount, call: Call, said: Raw) -> bool:
    """Whether a result can be passed on as it is: both speak 2026-07-28, and no address in it changes."""
    modern = call.revision is not None and call.revision >= MODERN and "resultType" in _members.decode(said)
    return modern and (mount.prefix is None or b'"uri"' not in bytes(said))


def _read(method: str, said: Raw) -> Any:
    """A result that came over a wire, as the Struct that a handler here would have given."""
    try:
        found = msgspec.json.decode(said, type=METHODS[method].result)
    except (msgspec.DecodeError, RecursionError) as failure:
        # One that is of another kind, such as a question, has no addresses.
        if b'"resultType"' in bytes(said):
            return said
        raise ProtocolError(f"the mounted server gave an invalid result of {method}: {plainly(failure)}") from None
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    if isinstance(found, ReceivedToolResult):
        return CallToolResult(**fields)
    return ReadResourceResult(**fields) if isinstance(found, ReceivedContents) else found


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
    if isinstance(part, EmbeddedResource):
        return replace(part, resource=_outward_contents(mount, part.resource))
    return part


def _outward_contents(mount: Mount, contents: Any) -> Any:
    if isinstance(contents, Struct):
        return replace(contents, uri=mount.outward_uri(contents.uri))  # type: ignore[attr-defined]
    # As it came over a wire.
    if isinstance(contents, dict) and isinstance(contents.get("uri"), str):
        return {**contents, "uri": mount.outward_uri(contents["uri"])}
    return contents
