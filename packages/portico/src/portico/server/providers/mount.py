"""Mounted handlers: their components get a prefix, and their results are returned as ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.protocol import jsonrpc, notifications
from portico.protocol.content import EmbeddedResource, ResourceLink
from portico.protocol.errors import InvalidParams, MethodNotFound, ProtocolError, UsageError
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.meta import SERVER_INFO_META_KEY
from portico.protocol.methods import METHODS, as_input_required, format_decode_error
from portico.protocol.pagination import Paginator
from portico.protocol.prompts import GetPromptResult
from portico.protocol.resources import ReadResourceResult, ReceivedResourceResult
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tasks import EXTENSION
from portico.protocol.tools import CallToolResult, ReceivedToolResult
from portico.protocol.uri_template import begins_with_variable
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call, Handler, get_capabilities
from portico.rpc.change_relay import ChangeRelay
from portico.rpc.client_requests import validate_input_requests
from portico.rpc.handshake.input_requests import resolve_input_requests
from portico.server.policy.interfaces import Kind, QualifiedName
from portico.server.registry.caller_view import CallerView

_CHANGES = frozenset(
    {
        notifications.TOOLS_LIST_CHANGED,
        notifications.PROMPTS_LIST_CHANGED,
        notifications.RESOURCES_LIST_CHANGED,
        notifications.RESOURCE_UPDATED,
    }
)


class Mount(Struct, eq=False):
    """A handler mounted in a server, with the translation between local and exposed names."""

    # The mounted object: the handler itself, or a target, such as a URL, that the handler connects to.
    target: Any
    handler: Handler
    prefix: str | None = None
    # For each list, the handler's cached entries, and the same entries under their exposed names.
    entry_cache: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {}

    def exposed_name(self, name: str) -> str:
        return name if self.prefix is None else f"{self.prefix}_{name}"

    def local_name(self, name: str) -> str | None:
        """Return the handler's own name for an exposed name, or None if the prefix does not match."""
        if self.prefix is None:
            return name
        start = f"{self.prefix}_"
        return name.removeprefix(start) if name.startswith(start) else None

    def exposed_uri(self, uri: str) -> str:
        """Return the exposed URI or URI template for the handler's own.

        A template that begins with a variable gets the prefix in front of all of it, so that it matches no URI of
        another mount.
        """
        scheme, mark, rest = uri.partition("://")
        # `{+uri}` matches everything, also the URIs of other mounts.
        if self.prefix is not None and not mark and begins_with_variable(uri):
            return f"{self.prefix}/{uri}"
        return uri if self.prefix is None or not mark else f"{scheme}://{self.prefix}/{rest}"

    def local_uri(self, uri: str) -> str | None:
        """Return the handler's own URI for an exposed one, or None if the prefix does not match."""
        if self.prefix is None:
            return uri
        start = f"{self.prefix}/"
        if uri.startswith(start):
            return uri.removeprefix(start)
        scheme, mark, rest = uri.partition("://")
        return f"{scheme}://{rest.removeprefix(start)}" if mark and rest.startswith(start) else None

    @property
    def owner(self) -> str:
        """Return the owner name of its components in rules and records."""
        info = get_capabilities(self.handler).info
        return self.prefix or (info.name if info is not None else "") or "mount"

    def to_local(self, kind: Kind, name: str) -> str | None:
        """Return the handler's canonical name for an exposed name, or None if it cannot be one of its components."""
        inward = self.local_name(name) if kind in ("tool", "prompt") else self.local_uri(name)
        return None if inward is None else get_capabilities(self.handler).directory.canonical_name(kind, inward)

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName | None:
        inside = self.to_local(kind, name)
        return None if inside is None else QualifiedName(self.owner, inside)

    def may_have_resource(self, uri: str, view: CallerView | None) -> bool:
        inward = self.local_uri(uri)
        return inward is not None and (view is None or view.is_visible("resource", QualifiedName(self.owner, inward)))

    def to_exposed(self, kind: Kind, inside: str) -> str:
        return self.exposed_name(inside) if kind in ("tool", "prompt") else self.exposed_uri(inside)

    def cached_entries(self, method: str) -> Sequence[Any] | None:
        """Return the entries of the handler's list under their exposed names, or None if the handler has no cached
        list.

        They are the same for every caller, and the same object until something changes.
        """
        inside = get_capabilities(self.handler).directory.cached_list(method)
        if inside is None:
            return None
        cached = self.entry_cache.get(method)
        if cached is None or cached[0] is not inside:
            cached = self.entry_cache[method] = (inside, tuple(_outward_entry(self, method, item) for item in inside))
        return cached[1]

    async def fetch_entries(self, method: str, call: Call) -> Sequence[Any]:
        """Return all entries of the handler's list under their exposed names, requesting them if not cached."""
        at_hand = self.cached_entries(method)
        if at_hand is not None:
            return at_hand
        results: list[Any] = []
        paging, params = Paginator(), b"{}"
        while True:
            try:
                # Always at the newest version: entries are Structs of that version, and our own
                # catalog translates them for the client.
                result = await self.handler(
                    replace(call, method=method, params=Raw(params), protocol_version=FIRST_MODERN_VERSION)
                )
            # A handler without this kind of component, such as a server without prompts.
            except MethodNotFound:
                return results
            page = msgspec.json.decode(jsonrpc.encode(result), type=METHODS[method].result)
            listed = getattr(page, _LISTS[method][0])
            results += [_outward_entry(self, method, item) for item in listed]
            cursor = paging.next_cursor(page.next_cursor, len(listed))
            if cursor is None:
                return results
            params = jsonrpc.encode({"cursor": cursor})

    async def forward(self, call: Call, member: str, local_value: Any) -> Any:
        """Forward a call under the handler's own name, and return the result under the exposed one."""
        params: dict[str, Any] = dict(object_decoder.decode(call.params))
        params[member] = local_value
        # Clients cannot subscribe to the handler's tasks here, so do not offer tasks to it: it then returns the final
        # result.
        able = call.capabilities
        if able.extensions is not None and EXTENSION in able.extensions and not call.reply.tracks_tasks:
            others = {name: extension for name, extension in able.extensions.items() if name != EXTENSION}
            able = replace(able, extensions=others or None)
        inner = replace(call, params=Raw(jsonrpc.encode(params)), capabilities=able)
        response = await self.handler(inner)
        if call.reply.tracks_tasks and (task := _outward_task(self, response)) is not None:
            return task
        input_required = as_input_required(call.method, response)
        # The client uses a handshake version and cannot answer an input-required result, so the
        # requests are sent to it here and the call is repeated.
        if input_required is not None and call.reply.can_request:
            response = await resolve_input_requests(inner, input_required, self.handler)
        elif input_required is not None:
            # Our client will answer it, so it must satisfy the rules for our own input requests.
            validate_input_requests(call, input_required)
        if type(response) is Raw and not _passes(self, call, response):
            response = _read(call.method, response)
        return _expose_uris(self, response) if isinstance(response, Struct) else response

    async def forward_task_request(self, call: Call) -> Any:
        """Forward a request about one of the handler's tasks. Raises InvalidParams if the id is not one of them."""
        params: dict[str, Any] = dict(object_decoder.decode(call.params))
        outward = msgspec.json.decode(params["taskId"], type=str)
        start = f"{self.owner}."
        if not outward.startswith(start):
            raise InvalidParams("Unknown task")
        params["taskId"] = outward.removeprefix(start)
        result = await self.handler(replace(call, params=Raw(jsonrpc.encode(params)), read=None))
        return _outward_state(self, result) if call.method == "tasks/get" else result

    def subscribe(self, uris: tuple[str, ...], publish: Callable[[str, str | None], None]) -> ChangeRelay | None:
        """Subscribe to changes of the handler's lists, or of these resources if any are given.

        Returns None if none of the resources can be the handler's.
        """
        subscription_filter = SubscriptionFilter(
            tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        )
        if uris:
            inward = [item for item in map(self.local_uri, uris) if item is not None]
            if not inward:
                return None
            subscription_filter = SubscriptionFilter(resource_subscriptions=inward)

        def publish_exposed(method: str, params: Any) -> None:
            if method in _CHANGES:
                uri = getattr(params, "uri", None)
                publish(method, None if uri is None else self.exposed_uri(uri))

        # After a reconnect, notifications may have been lost: report everything as changed.
        def report_all_changed() -> None:
            for uri in uris:
                publish(notifications.RESOURCE_UPDATED, uri)
            for method in (
                ()
                if uris
                else (
                    notifications.TOOLS_LIST_CHANGED,
                    notifications.PROMPTS_LIST_CHANGED,
                    notifications.RESOURCES_LIST_CHANGED,
                )
            ):
                publish(method, None)

        return ChangeRelay(self.handler, subscription_filter, publish_exposed, on_gap=report_all_changed)


def resolve_handler(target: Any) -> Handler:
    """Return the Handler for a target: the target itself, or a connection that is opened in the server's lifespan."""
    if isinstance(target, type):
        raise UsageError(f"cannot mount the class {target.__name__}: mount an instance of it")
    if callable(target):
        return target  # type: ignore[no-any-return]
    # Only servers that connect to upstreams need the client.
    from portico.transports.targets import parse_target
    from portico.transports.upstream import Upstream

    result = parse_target(target)
    handler: Handler = getattr(result, "handler", None) or Upstream(result)
    return handler


# For each list: the member with its entries, the member of an entry to rewrite, and the translation.
_LISTS = {
    "tools/list": ("tools", "name", Mount.exposed_name),
    "prompts/list": ("prompts", "name", Mount.exposed_name),
    "resources/list": ("resources", "uri", Mount.exposed_uri),
    "resources/templates/list": ("resource_templates", "uri_template", Mount.exposed_uri),
}


def _outward_entry(mount: Mount, method: str, entry: Any) -> Any:
    _, field, outward = _LISTS[method]
    return replace(entry, **{field: outward(mount, getattr(entry, field)), "meta": _outward_meta(mount, entry.meta)})


def _outward_meta(mount: Mount, meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata with the exposed URI of the tool's app page (Apps extension)."""
    page = meta.get("ui") if meta is not None else None
    if not isinstance(page, dict) or not isinstance(page.get("resourceUri"), str):
        return meta
    return {**(meta or {}), "ui": {**page, "resourceUri": mount.exposed_uri(page["resourceUri"])}}


def _outward_task(mount: Mount, response: Any) -> Raw | None:
    """Return a task result under the task's exposed id, or None for any other result."""
    if isinstance(response, CallToolResult):
        return None
    result = object_decoder.decode(jsonrpc.encode(response))
    if bytes(result.get("resultType", b"")) != b'"task"' or "taskId" not in result:
        return None
    # Task ids of different handlers may be equal; the owner makes them unique and tells where to
    # forward.
    id = f"{mount.owner}.{msgspec.json.decode(result['taskId'], type=str)}"
    return Raw(jsonrpc.encode({**result, "taskId": id}))


def _outward_state(mount: Mount, state: Any) -> Any:
    """Return the state of a task, with its result rewritten like that of a call."""
    match = object_decoder.decode(jsonrpc.encode(state))
    if mount.prefix is None or b'"uri"' not in bytes(match.get("result", b"")):
        return state
    result = _read("tools/call", match["result"])
    if not isinstance(result, Struct):
        return state
    return Raw(jsonrpc.encode({**match, "result": _expose_uris(mount, result)}))


def _passes(mount: Mount, call: Call, params: Raw) -> bool:
    """Return whether a result can be passed on unchanged: both sides use 2026-07-28, and it has no URI to rewrite."""
    modern = (
        call.protocol_version is not None
        and call.protocol_version >= FIRST_MODERN_VERSION
        and "resultType" in object_decoder.decode(params)
    )
    # A search for the bytes instead of decoding: a false positive costs a decode, and large results
    # are mostly passed on unchanged.
    return modern and (mount.prefix is None or b'"uri"' not in bytes(params))


def _read(method: str, raw: Raw) -> Any:
    """Decode a result received from a remote handler into the Struct that a local handler returns. Raises
    ProtocolError.
    """
    try:
        result = msgspec.json.decode(raw, type=METHODS[method].result)
    except (msgspec.DecodeError, RecursionError) as failure:
        # Other result types, such as input requests, contain no URIs.
        if b'"resultType"' in bytes(raw):
            return raw
        raise ProtocolError(
            f"the mounted server returned an invalid result for {method}: {format_decode_error(failure)}"
        ) from None
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    if isinstance(result, ReceivedToolResult):
        return CallToolResult(**fields)
    return ReadResourceResult(**fields) if isinstance(result, ReceivedResourceResult) else result


def _expose_uris(mount: Mount, result: Any) -> Any:
    """Return a result with exposed URIs and without the inner server's info, because the outer server adds its own."""
    if isinstance(result.meta, Raw):
        result = replace(result, meta=UNSET)
    elif isinstance(result.meta, dict):
        result = replace(
            result, meta={name: value for name, value in result.meta.items() if name != SERVER_INFO_META_KEY} or UNSET
        )
    if isinstance(result, CallToolResult):
        return replace(result, content=[_outward_block(mount, part) for part in result.content])
    if isinstance(result, GetPromptResult):
        return replace(result, messages=[replace(m, content=_outward_block(mount, m.content)) for m in result.messages])
    if isinstance(result, ReadResourceResult):
        return replace(result, contents=[replace(part, uri=mount.exposed_uri(part.uri)) for part in result.contents])
    return result


def _outward_block(mount: Mount, part: Any) -> Any:
    if isinstance(part, ResourceLink):
        return replace(part, uri=mount.exposed_uri(part.uri))
    if isinstance(part, EmbeddedResource):
        return replace(part, resource=_outward_contents(mount, part.resource))
    return part


def _outward_contents(mount: Mount, contents: Any) -> Any:
    if isinstance(contents, Struct):
        return replace(contents, uri=mount.exposed_uri(contents.uri))  # type: ignore[attr-defined]
    # Undecoded, as received from a remote handler.
    if isinstance(contents, dict) and isinstance(contents.get("uri"), str):
        return {**contents, "uri": mount.exposed_uri(contents["uri"])}
    return contents
