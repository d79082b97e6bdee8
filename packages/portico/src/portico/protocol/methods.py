"""Table of all methods. Adding a method is adding a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw, Struct

from portico._lazy import LazyModule
from portico.protocol import (
    client_features,
    completion,
    lifecycle,
    notifications,
    prompts,
    resources,
    subscriptions,
    tasks,
    tools,
)
from portico.protocol.content import EmptyResult
from portico.protocol.errors import InvalidParams, InvalidRequest
from portico.protocol.json_depth import ARRAY_BYTE, MAX_JSON_DEPTH, MAX_SHALLOW_BYTES
from portico.protocol.jsonrpc import (
    DUPLICATE_MEMBER_MESSAGE,
    EMPTY_RAW,
    MAX_JSON_NODES,
    MAX_REQUEST_ID,
    MIN_REQUEST_ID,
    JsonRpcMessage,
    has_duplicate_keys,
    has_duplicate_members,
)
from portico.protocol.meta import RequestParams
from portico.protocol.tools import CallToolParams
from portico.protocol.versions import V2024_11_05, V2025_06_18, V2025_11_25, V2026_07_28, ProtocolVersion

if TYPE_CHECKING:
    from portico.protocol import uri_check
else:
    uri_check = LazyModule("portico.protocol.uri_check")

Direction = Literal["to server", "to client", "both"]
_EMPTY = Raw(b"{}")


class Method:
    """One method: its direction, the protocol versions in which it is a separate message, and its types.

    On 2026-07-28 the three server-to-client requests are part of a result instead, so their rows end before it.
    """

    def __init__(
        self,
        name: str,
        direction: Direction,
        since: ProtocolVersion,
        until: ProtocolVersion,
        params: type,
        result: Any = None,
        name_param: str = "",
        uris: Callable[[Any], Iterable[str]] | None = None,
    ) -> None:
        self.name = name
        self.direction = direction
        self.since = since
        self.until = until
        self.params = params
        # None for notifications.
        self.result = result
        # The member of params that names the target; over HTTP it is repeated in the header Mcp-Name.
        self.name_param = name_param
        # Returns the URIs in the typed params. They are checked only here, when params are decoded.
        self.uris = uris

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.params)

    def decode(self, params: Raw) -> Any:
        """Return the typed params. Raises InvalidParams if they, or a URI in them, are invalid."""
        try:
            typed = self.decoder.decode(_EMPTY if params is EMPTY_RAW else params)
            # A policy compares the URI, and a handler opens it. If both could read it differently, the policy
            # could be bypassed.
            self.check_uris(typed)
        except (msgspec.DecodeError, RecursionError, uri_check.InvalidUri) as failure:
            raise InvalidParams(f"Invalid params for {self.name}: {format_decode_error(failure)}") from None
        return typed

    def check_uris(self, typed: Any) -> None:
        """Raise InvalidUri if a URI in typed params is read differently by different parsers."""
        if self.uris is not None:
            for uri in self.uris(typed):
                uri_check.check_uri(uri)

    @cached_property
    def get_name(self) -> Callable[[Any], str | None]:
        """Return a function that extracts the target's name from typed params, or None for methods without one."""
        return (
            attrgetter("task_id" if self.name_param == "taskId" else self.name_param) if self.name_param else _no_name
        )

    def supports(self, protocol_version: ProtocolVersion) -> bool:
        """Return whether the method exists in a protocol version."""
        return self.since <= protocol_version <= self.until


def _no_name(typed: Any) -> None:
    """Return None, for requests without a named target."""


def uri_in(typed: Any) -> Iterable[str]:
    """Return the URI of params with a member `uri`."""
    return (typed.uri,)


def _referenced_uri(typed: completion.CompleteParams) -> Iterable[str]:
    return (typed.ref.uri,) if isinstance(typed.ref, completion.ResourceReference) else ()


def _subscribed_uris(typed: subscriptions.SubscriptionsListenParams) -> Iterable[str]:
    return typed.notifications.resource_subscriptions or ()


def format_decode_error(failure: Exception) -> str:
    """Return a decoder's message without its path syntax."""
    return str(failure).replace("`$.", "`").replace("`", "'")


_FIRST, _LAST, _LAST_HANDSHAKE = V2024_11_05, V2026_07_28, V2025_11_25

# The protocol as a table: adding a method is adding a row. `since` and `until` are inclusive.
_METHOD_TABLE = (
    # lifecycle
    Method("initialize", "to server", _FIRST, _LAST_HANDSHAKE, lifecycle.InitializeParams, lifecycle.InitializeResult),
    Method("ping", "both", _FIRST, _LAST_HANDSHAKE, lifecycle.EmptyParams, EmptyResult),
    Method("server/discover", "to server", V2026_07_28, _LAST, lifecycle.EmptyParams, lifecycle.DiscoverResult),
    # tools
    Method("tools/list", "to server", _FIRST, _LAST, tools.ListParams, tools.ListToolsResult),
    Method("tools/call", "to server", _FIRST, _LAST, CallToolParams, tools.ReceivedToolResult, "name"),
    # resources
    Method("resources/list", "to server", _FIRST, _LAST, tools.ListParams, resources.ListResourcesResult),
    Method(
        "resources/templates/list", "to server", _FIRST, _LAST, tools.ListParams, resources.ListResourceTemplatesResult
    ),
    Method(
        "resources/read",
        "to server",
        _FIRST,
        _LAST,
        resources.ReadResourceParams,
        resources.ReceivedResourceResult,
        "uri",
        uris=uri_in,
    ),
    Method(
        "resources/subscribe", "to server", _FIRST, _LAST_HANDSHAKE, resources.SubscribeParams, EmptyResult, uris=uri_in
    ),
    Method(
        "resources/unsubscribe",
        "to server",
        _FIRST,
        _LAST_HANDSHAKE,
        resources.SubscribeParams,
        EmptyResult,
        uris=uri_in,
    ),
    # prompts
    Method("prompts/list", "to server", _FIRST, _LAST, tools.ListParams, prompts.ListPromptsResult),
    Method("prompts/get", "to server", _FIRST, _LAST, prompts.GetPromptParams, prompts.GetPromptResult, "name"),
    # other server features
    Method(
        "completion/complete",
        "to server",
        _FIRST,
        _LAST,
        completion.CompleteParams,
        completion.CompleteResult,
        uris=_referenced_uri,
    ),
    Method("logging/setLevel", "to server", _FIRST, _LAST_HANDSHAKE, lifecycle.SetLevelParams, EmptyResult),
    Method(
        "subscriptions/listen",
        "to server",
        V2026_07_28,
        _LAST,
        subscriptions.SubscriptionsListenParams,
        EmptyResult,
        uris=_subscribed_uris,
    ),
    # tasks: 2025-11-25 had them in its core, 2026-07-28 as an extension
    Method("tasks/get", "both", V2025_11_25, _LAST, tasks.TaskIdParams, tasks.DetailedTask, "taskId"),
    Method("tasks/cancel", "both", V2025_11_25, _LAST, tasks.TaskIdParams, tasks.DetailedTask, "taskId"),
    Method("tasks/result", "both", V2025_11_25, _LAST_HANDSHAKE, tasks.TaskIdParams, Raw),
    Method("tasks/list", "both", V2025_11_25, _LAST_HANDSHAKE, tools.ListParams, tasks.ListTasksResult),
    Method("tasks/update", "to server", V2026_07_28, _LAST, tasks.UpdateTaskParams, EmptyResult, "taskId"),
    Method(notifications.TASK_STATUS, "both", V2025_11_25, _LAST_HANDSHAKE, tasks.TaskStatusParams),
    Method(notifications.TASK_UPDATED, "to client", V2026_07_28, _LAST, tasks.TaskNotificationParams),
    # client features
    Method(
        "sampling/createMessage",
        "to client",
        _FIRST,
        _LAST_HANDSHAKE,
        client_features.CreateMessageParams,
        client_features.CreateMessageResult,
    ),
    Method("roots/list", "to client", _FIRST, _LAST_HANDSHAKE, lifecycle.EmptyParams, client_features.ListRootsResult),
    Method(
        "elicitation/create",
        "to client",
        V2025_06_18,
        _LAST_HANDSHAKE,
        client_features.ElicitParams,
        client_features.ElicitResult,
    ),
    # notifications
    Method(notifications.INITIALIZED, "to server", _FIRST, _LAST_HANDSHAKE, notifications.NotificationParams),
    Method(notifications.ROOTS_LIST_CHANGED, "to server", _FIRST, _LAST_HANDSHAKE, notifications.NotificationParams),
    Method(notifications.CANCELLED, "both", _FIRST, _LAST, notifications.CancelledParams),
    Method(notifications.PROGRESS, "both", _FIRST, _LAST, notifications.ProgressParams),
    Method(notifications.LOG_MESSAGE, "to client", _FIRST, _LAST, notifications.LogMessageParams),
    Method(notifications.TOOLS_LIST_CHANGED, "to client", _FIRST, _LAST, notifications.NotificationParams),
    Method(notifications.PROMPTS_LIST_CHANGED, "to client", _FIRST, _LAST, notifications.NotificationParams),
    Method(notifications.RESOURCES_LIST_CHANGED, "to client", _FIRST, _LAST, notifications.NotificationParams),
    Method(notifications.RESOURCE_UPDATED, "to client", _FIRST, _LAST, notifications.ResourceUpdatedParams),
    Method(
        notifications.ELICITATION_COMPLETE,
        "to client",
        V2025_11_25,
        _LAST_HANDSHAKE,
        notifications.ElicitationCompleteParams,
    ),
    Method(
        notifications.SUBSCRIPTIONS_ACKNOWLEDGED,
        "to client",
        V2026_07_28,
        _LAST,
        subscriptions.SubscriptionsAcknowledgedParams,
    ),
)

METHODS: dict[str, Method] = {row.name: row for row in _METHOD_TABLE}


class _Arguments(Struct):
    arguments: Raw = _EMPTY


# Length of a compact tools/call without its values.
_MIN_CALL_PARAMS_BYTES = len('{"name":"","arguments":,"_meta":}')
_META_MEMBER_BYTES = len(',"_meta":')
_only_meta = msgspec.json.Decoder(RequestParams)
_only_arguments = msgspec.json.Decoder(_Arguments)


def decode_params(method: str, params: Raw) -> tuple[Any, Raw]:
    """Decode a request's params into the Struct of its method, or None if they are invalid, and return their `_meta`.

    Raises `InvalidRequest` if a routing member or an argument is duplicated.
    """
    if params is EMPTY_RAW:
        return None, EMPTY_RAW
    row = METHODS.get(method)
    try:
        typed = row.decoder.decode(params) if row is not None else None
        if row is not None and row.uris is not None:
            row.check_uris(typed)
    except (msgspec.DecodeError, RecursionError, uri_check.InvalidUri):
        # The method reports it when it is handled: the version and the headers are checked first.
        typed = None
    try:
        if type(typed) is CallToolParams:
            meta, arguments = typed.meta, typed.arguments
            twice = (arguments is not EMPTY_RAW and has_duplicate_keys(arguments)) or (
                # Minimal params have no room for a duplicate.
                not is_minimal_call(params, typed)
                and has_duplicate_members(
                    bytes(params),
                    bytes(meta),
                    bytes(arguments),
                    # Those of the name and its member, and of the names of the others.
                    quotes=4 + 2 * (meta is not EMPTY_RAW) + 2 * (arguments is not EMPTY_RAW),
                )
            )
        else:
            meta = (typed if isinstance(typed, RequestParams) else _only_meta.decode(params)).meta
            twice = has_duplicate_members(bytes(params), bytes(meta)) or (
                type(typed) is prompts.GetPromptParams and has_duplicate_keys(_only_arguments.decode(params).arguments)
            )
    except RecursionError:
        raise InvalidRequest("Invalid request: nested too deeply") from None
    if twice:
        raise InvalidRequest(DUPLICATE_MEMBER_MESSAGE)
    return typed, meta


class ToolCallMessage(JsonRpcMessage, kw_only=True, gc=False):
    """A `tools/call` that was decoded together with its params. `params` are its bytes, as in every message."""

    params: CallToolParams  # type: ignore[assignment]
    typed: CallToolParams | None = None


_call_frame = msgspec.json.Decoder(ToolCallMessage)
_MIN_CALL_MESSAGE_BYTES = len('{"jsonrpc":"2.0","id":,"method":"tools/call","params":}')
_PARAMS = b'"params":'


def decode_tool_call(data: bytes) -> ToolCallMessage | None:
    """Decode a compact `tools/call` in one pass; None for any other message, which `jsonrpc.decode_message` decodes.

    Compact means without whitespace and escapes, with an id, and with exactly a name, arguments and `_meta` in the
    params. Its length then proves that there is no duplicate and no other member.
    """
    # Conditions under which none of the limits can be exceeded, so that they need not be counted.
    if not data.isascii():
        return None
    if (len(data) > MAX_SHALLOW_BYTES or ARRAY_BYTE in data) and (
        len(data) > MAX_JSON_NODES or data.count(b"{") + data.count(b"[") > MAX_JSON_DEPTH
    ):
        return None
    try:
        frame = _call_frame.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    id, typed = frame.id, frame.params
    arguments, meta = typed.arguments, typed.meta
    if frame.method != "tools/call" or frame.jsonrpc != "2.0" or meta is EMPTY_RAW or arguments is EMPTY_RAW:
        return None
    if type(id) is not int:
        id_length = len(id) + 2 if type(id) is str else 0
    elif MIN_REQUEST_ID <= id <= MAX_REQUEST_ID:
        id_length = len(str(id))
    else:
        return None
    length = _MIN_CALL_PARAMS_BYTES + len(typed.name) + len(arguments) + len(meta)
    if len(data) != _MIN_CALL_MESSAGE_BYTES + id_length + length or not id_length or has_duplicate_keys(arguments):
        return None
    # Members before it contain no inner quotes, so the first occurrence is the key.
    begin = data.index(_PARAMS) + len(_PARAMS)
    frame.typed, frame.params = typed, Raw(data[begin : begin + length])  # type: ignore[assignment]
    return frame


def is_minimal_call(params: Raw, decoded_params: CallToolParams) -> bool:
    """Return whether the params of a tools/call are exactly a name, arguments and perhaps `_meta`, judging by their
    length.
    """
    if decoded_params.arguments is EMPTY_RAW:
        return False
    length = _MIN_CALL_PARAMS_BYTES + len(decoded_params.name) + len(decoded_params.arguments)
    return len(params) == length + (-_META_MEMBER_BYTES if (meta := decoded_params.meta) is EMPTY_RAW else len(meta))


def register_method(row: Method) -> None:
    """Register the method of an extension. Registering it again has no effect."""
    METHODS.setdefault(row.name, row)


# Requests that may be answered with `input_required` on 2026-07-28.
INPUT_REQUIRED_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
# The member of a list result with its entries, and the member that names an entry.
LIST_MEMBERS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}


def as_input_required(method: str, result: Any) -> client_features.InputRequiredResult | None:
    """Return the server-to-client requests in a handler's result, encoded or not, or None for other results."""
    if type(result) is client_features.InputRequiredResult:
        return result
    # The byte search is much cheaper than decoding, and nearly all results do not contain the text. `find`: for a bytes
    # object, `in` first tries to convert it to an integer, and raises and clears an exception.
    if type(result) is not Raw or method not in INPUT_REQUIRED_METHODS or bytes(result).find(b'"input_required"') < 0:
        return None
    try:
        return msgspec.json.decode(result, type=client_features.InputRequiredResult)
    except msgspec.DecodeError:
        return None


# Requests that stay open until one side ends them.
LONG_LIVED_METHODS = frozenset({"subscriptions/listen"})

# Requests introduced by the core of 2026-07-28.
MODERN_ONLY_METHODS = frozenset({"server/discover", "subscriptions/listen"})
