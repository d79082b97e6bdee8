"""The protocol as a table. Adding a method is adding a row."""

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
from portico.protocol.json_depth import MAX_JSON_DEPTH
from portico.protocol.jsonrpc import LARGEST_ID, MOST_NODES, NOTHING, SMALLEST_ID, TWICE, Frame, doubled, repeats
from portico.protocol.meta import Params
from portico.protocol.tools import CallToolParams
from portico.protocol.versions import V2024_11_05, V2025_06_18, V2025_11_25, V2026_07_28, Revision

if TYPE_CHECKING:
    from portico.protocol import uri_check
else:
    uri_check = LazyModule("portico.protocol.uri_check")

Direction = Literal["to server", "to client", "both"]
_EMPTY = Raw(b"{}")


class Method:
    """One row: who says it, in which revisions it stands as a message of its own, and what it carries.

    On 2026-07-28 the three questions to the client stand inside a result instead, so their rows end before it.
    """

    def __init__(
        self,
        name: str,
        direction: Direction,
        since: Revision,
        until: Revision,
        params: type,
        result: Any = None,
        named: str = "",
        uris: Callable[[Any], Iterable[str]] | None = None,
    ) -> None:
        self.name = name
        self.direction = direction
        self.since = since
        self.until = until
        self.params = params
        # None for notifications.
        self.result = result
        # The member of params that says what it is about: over HTTP it stands in the header Mcp-Name too.
        self.named = named
        # Returns the URIs in the typed params. They are checked when params are decoded, here and nowhere else.
        self.uris = uris

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.params)

    def decode(self, params: Raw) -> Any:
        """Return the typed params. Raises InvalidParams if they do not fit, or have a URI that `check_uri` refuses."""
        try:
            typed = self.decoder.decode(_EMPTY if params is NOTHING else params)
            self.check_uris(typed)
        except (msgspec.DecodeError, RecursionError, uri_check.InvalidUri) as failure:
            raise InvalidParams(f"Invalid params for {self.name}: {plainly(failure)}") from None
        return typed

    def check_uris(self, typed: Any) -> None:
        """Raise InvalidUri if a URI in typed params cannot be judged, because parsers disagree on it."""
        if self.uris is not None:
            for uri in self.uris(typed):
                uri_check.check_uri(uri)

    @cached_property
    def name_in(self) -> Callable[[Any], str | None]:
        """Gives what a request is about, out of its typed params; None for methods that have no such member."""
        return attrgetter("task_id" if self.named == "taskId" else self.named) if self.named else _nameless

    def known_to(self, revision: Revision) -> bool:
        return self.since <= revision <= self.until


def _nameless(typed: Any) -> None:
    """A request that is about no one thing."""


def uri_in(typed: Any) -> Iterable[str]:
    """Return the URI of params whose member `uri` it is."""
    return (typed.uri,)


def _referenced_uri(typed: completion.CompleteParams) -> Iterable[str]:
    return (typed.ref.uri,) if isinstance(typed.ref, completion.ResourceReference) else ()


def _subscribed_uris(typed: subscriptions.ListenParams) -> Iterable[str]:
    return typed.notifications.resource_subscriptions or ()


def plainly(failure: Exception) -> str:
    """A decoder's complaint in words that do not need its manual."""
    return str(failure).replace("`$.", "`").replace("`", "'")


_FIRST, _LAST, _LAST_HANDSHAKE = V2024_11_05, V2026_07_28, V2025_11_25

_ROWS = (
    # opening
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
        resources.ReceivedContents,
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
    # the rest of what a server answers
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
        subscriptions.ListenParams,
        EmptyResult,
        uris=_subscribed_uris,
    ),
    # tasks: 2025-11-25 had them in its core, 2026-07-28 as an extension
    Method("tasks/get", "both", V2025_11_25, _LAST, tasks.TaskParams, tasks.DetailedTask, "taskId"),
    Method("tasks/cancel", "both", V2025_11_25, _LAST, tasks.TaskParams, tasks.DetailedTask, "taskId"),
    Method("tasks/result", "both", V2025_11_25, _LAST_HANDSHAKE, tasks.TaskParams, Raw),
    Method("tasks/list", "both", V2025_11_25, _LAST_HANDSHAKE, tools.ListParams, tasks.ListTasksResult),
    Method("tasks/update", "to server", V2026_07_28, _LAST, tasks.UpdateTaskParams, EmptyResult, "taskId"),
    Method(notifications.TASK_STATUS, "both", V2025_11_25, _LAST_HANDSHAKE, tasks.TaskStatusParams),
    Method(notifications.TASK, "to client", V2026_07_28, _LAST, tasks.TaskNotice),
    # what a client answers
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
    Method(notifications.INITIALIZED, "to server", _FIRST, _LAST_HANDSHAKE, notifications.NoticeParams),
    Method(notifications.ROOTS_CHANGED, "to server", _FIRST, _LAST_HANDSHAKE, notifications.NoticeParams),
    Method(notifications.CANCELLED, "both", _FIRST, _LAST, notifications.CancelledParams),
    Method(notifications.PROGRESS, "both", _FIRST, _LAST, notifications.ProgressParams),
    Method(notifications.MESSAGE, "to client", _FIRST, _LAST, notifications.MessageParams),
    Method(notifications.TOOLS_CHANGED, "to client", _FIRST, _LAST, notifications.NoticeParams),
    Method(notifications.PROMPTS_CHANGED, "to client", _FIRST, _LAST, notifications.NoticeParams),
    Method(notifications.RESOURCES_CHANGED, "to client", _FIRST, _LAST, notifications.NoticeParams),
    Method(notifications.RESOURCE_UPDATED, "to client", _FIRST, _LAST, notifications.ResourceUpdatedParams),
    Method(
        notifications.ELICITATION_COMPLETE,
        "to client",
        V2025_11_25,
        _LAST_HANDSHAKE,
        notifications.ElicitationCompleteParams,
    ),
    Method(notifications.ACKNOWLEDGED, "to client", V2026_07_28, _LAST, subscriptions.AcknowledgedParams),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


class _Arguments(Struct):
    arguments: Raw = _EMPTY


# A tools/call without spaces is as long as this and its values.
_LEAST_CALL = len('{"name":"","arguments":,"_meta":}')
_only_meta = msgspec.json.Decoder(Params)
_only_arguments = msgspec.json.Decoder(_Arguments)


def read(method: str, params: Raw) -> tuple[Any, Raw]:
    """A request's params as the Struct of its method, None if they do not fit it, and their `_meta`.

    Raises InvalidRequest if a member that decides what is done, or an argument, stands twice.
    """
    if params is NOTHING:
        return None, NOTHING
    row = METHODS.get(method)
    try:
        typed = row.decoder.decode(params) if row is not None else None
        if row is not None and row.uris is not None:
            row.check_uris(typed)
    except (msgspec.DecodeError, RecursionError, uri_check.InvalidUri):
        # The method complains of it when it is answered: the revision and the headers are looked at first.
        typed = None
    try:
        if type(typed) is CallToolParams:
            meta, arguments = typed.meta, typed.arguments
            # All three are there, and it is no longer than they are: then there is no room for one to stand twice.
            least = _LEAST_CALL + len(typed.name) + len(arguments) + len(meta)
            if meta is NOTHING or arguments is NOTHING:
                least = 0
            twice = (arguments is not NOTHING and doubled(arguments)) or (
                len(params) != least and repeats(bytes(params), bytes(meta), bytes(arguments))
            )
        else:
            meta = (typed if isinstance(typed, Params) else _only_meta.decode(params)).meta
            twice = repeats(bytes(params), bytes(meta)) or (
                type(typed) is prompts.GetPromptParams and doubled(_only_arguments.decode(params).arguments)
            )
    except RecursionError:
        raise InvalidRequest("Invalid request: nested too deeply") from None
    if twice:
        raise InvalidRequest(TWICE)
    return typed, meta


class CallFrame(Frame, kw_only=True, gc=False):
    """A `tools/call` that was read together with its params. `params` are its bytes, as in every Frame."""

    params: CallToolParams  # type: ignore[assignment]
    typed: CallToolParams | None = None


_call_frame = msgspec.json.Decoder(CallFrame)
_LEAST_CALL_FRAME = len('{"jsonrpc":"2.0","id":,"method":"tools/call","params":}')
_PARAMS = b'"params":'


def read_call(data: bytes) -> CallFrame | None:
    """A `tools/call` in one decode; None for any that is not plain, and for all else: `jsonrpc.decode` reads those.

    Plain is one without spaces and escapes that has an id, and in its params a name, arguments and a `_meta`: it is as
    long as these are, so that there is no room for anything to stand twice, nor for another member.
    """
    if len(data) > MOST_NODES or not data.isascii() or data.count(b"{") + data.count(b"[") > MAX_JSON_DEPTH:
        return None
    try:
        frame = _call_frame.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    id, typed = frame.id, frame.params
    arguments, meta = typed.arguments, typed.meta
    if frame.method != "tools/call" or frame.jsonrpc != "2.0" or meta is NOTHING or arguments is NOTHING:
        return None
    if type(id) is not int:
        said = len(id) + 2 if type(id) is str else 0
    elif SMALLEST_ID <= id <= LARGEST_ID:
        said = len(str(id))
    else:
        return None
    length = _LEAST_CALL + len(typed.name) + len(arguments) + len(meta)
    if len(data) != _LEAST_CALL_FRAME + said + length or not said or doubled(arguments):
        return None
    # What may stand before it has no quotes inside, so that the first one is it.
    begin = data.index(_PARAMS) + len(_PARAMS)
    frame.typed, frame.params = typed, Raw(data[begin : begin + length])  # type: ignore[assignment]
    return frame


def is_bare(params: Raw, typed: CallToolParams) -> bool:
    """Whether the params of a tools/call are a name, arguments and a `_meta`: they are no longer than those."""
    if typed.meta is NOTHING or typed.arguments is NOTHING:
        return False
    return len(params) == _LEAST_CALL + len(typed.name) + len(typed.arguments) + len(typed.meta)


def add_method(row: Method) -> None:
    """Add a method of an extension. Twice the same row is no harm."""
    METHODS.setdefault(row.name, row)


# The requests that 2026-07-28 allows to be answered with questions.
ASKABLE = frozenset({"tools/call", "prompts/get", "resources/read"})


def asked_by(method: str, result: Any) -> client_features.InputRequiredResult | None:
    """The questions that a Handler's result is made of, also where it came over a wire; None for any other."""
    if type(result) is client_features.InputRequiredResult:
        return result
    if type(result) is not Raw or method not in ASKABLE or b'"input_required"' not in bytes(result):
        return None
    try:
        return msgspec.json.decode(result, type=client_features.InputRequiredResult)
    except msgspec.DecodeError:
        return None


# The requests that go on until one of the two sides ends them.
LASTING = frozenset({"subscriptions/listen"})

# The requests that the core of 2026-07-28 brought.
MODERN_ONLY = frozenset({"server/discover", "subscriptions/listen"})
