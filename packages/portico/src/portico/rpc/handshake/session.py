"""The handshake revisions, 2024-11-05 to 2025-11-25: a session that fills in what each Call stands on.

```
CREATED ──initialize──▶ INITIALIZING ──notifications/initialized──▶ OPERATING ──end of stream──▶ SHUTDOWN
```

A Session stands between the door and a Handler. Calls that carry their own revision (2026-07-28) do not come through
it, so both eras work on one stream. The inner handler only ever speaks the newest revision's methods: the handshake is
made of `server/discover`, and subscriptions of `subscriptions/listen`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.protocol import jsonrpc, notifications, translation
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import EmptyResult
from portico.protocol.errors import InternalError, InvalidRequest, MethodNotFound, ResourceNotFound
from portico.protocol.jsonrpc import Frame
from portico.protocol.lifecycle import DiscoverResult, InitializeParams, InitializeResult
from portico.protocol.meta import (
    NO_CAPABILITIES,
    SERVER_INFO,
    ClientCapabilities,
    Implementation,
    Meta,
    ProgressToken,
    ServerCapabilities,
)
from portico.protocol.methods import METHODS, asked_by
from portico.protocol.subscriptions import Filter
from portico.protocol.tasks import ENDED, EXTENSION, PROGRESS, CreateTaskResult
from portico.protocol.versions import MODERN, NEWEST_HANDSHAKE, V2024_11_05, V2025_03_26, Revision, negotiate
from portico.rpc.call import Call, Handler, Listening, Reply, members
from portico.rpc.change_relay import ChangeRelay
from portico.rpc.dispatcher import Sender, new_call
from portico.rpc.handshake.list_changes import ListChanges, Seen

if TYPE_CHECKING:
    from portico.rpc import client_requests
    from portico.rpc.handshake import input_requests
else:
    input_requests = LazyModule("portico.rpc.handshake.input_requests")
    client_requests = LazyModule("portico.rpc.client_requests")

State = Literal["CREATED", "INITIALIZING", "OPERATING", "SHUTDOWN"]
Lifecycle = Literal["auto", "strict", "lenient"]

MOST_SUBSCRIPTIONS = 1000
# How long a question waits for a client that has not said yet that it is ready.
READY_SECONDS = 30.0
_MAY_ASK = (InputRequiredResult, Raw)
_HEARS_OF_TASKS = ClientCapabilities(extensions={EXTENSION: {}, PROGRESS: {}})


class SessionFacts(Struct, kw_only=True, omit_defaults=True):
    """What a handshake has settled, and what the client has asked for since."""

    revision: Revision
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client: Implementation | None = None
    log_level: str = "info"
    operating: bool = False
    subscribed: list[str] = []


class PushStream(Protocol):
    """What a session needs of the Channel it lives on."""

    revision: Revision | None
    batches: bool
    root_changes: int

    def emit(self, method: str, params: Any) -> None: ...


class Session:
    """One client's conversation, from its handshake to the end of its stream."""

    def __init__(
        self,
        handler: Handler,
        *,
        lifecycle: Lifecycle = "auto",
        in_order: bool = True,
        changes: ListChanges | None = None,
    ) -> None:
        self.handler = handler
        # Whether messages arrive in the order in which they were sent. Otherwise a call may overtake `initialized`.
        self.in_order = in_order
        self.lifecycle = lifecycle
        self.state: State = "CREATED"
        self.revision: Revision | None = None
        self.capabilities: ClientCapabilities = NO_CAPABILITIES
        self.client: Implementation | None = None
        self.log_level = "info"
        self.stream: PushStream | None = None
        self._start = members(handler).start
        self._offered = ServerCapabilities()
        # Of those that never greet it is only known what the handler says unasked.
        self._logs = members(handler).logs
        # The resources that the client subscribed to, and the tasks that it is told of.
        self._subscribed: dict[str, ChangeRelay] = {}
        self._following: dict[str, ChangeRelay] = {}
        # Changes of lists: a session that has them to itself also ends them.
        self._changes = changes or ListChanges(handler)
        self._shares_changes = changes is not None
        # Whether the client has a stream that it can be told on; where it comes and goes, its transport says so.
        self._reachable = changes is None
        self._seen: Seen | None = None
        # Set when the client has said that it is ready: until then it is not asked anything.
        self._ready: asyncio.Event | None = None
        # While the handler's word on what it is comes from a task.
        self._settling: asyncio.Event | None = None
        # It came while the handshake went on.
        self._hurried = False
        # Whether all of its requests come to this object: otherwise nothing is offered that outlives a request.
        self.lasting = True
        # Told when there are other facts.
        self.on_change: Callable[[], None] | None = None

    def open(self, frame: Frame, reply: Reply, sender: Sender, meta: Meta, typed: Any) -> Call:
        """The Call of a frame that belongs to this session."""
        return new_call(frame, reply, sender, meta, typed, **self._known(reply))

    def _known(self, reply: Reply) -> dict[str, Any]:
        """What the handshake has settled, for a Call; its Reply gets the words of the revision."""
        reply.asks, reply.question = True, self._question
        reply.logs = self._logs
        if self.state == "INITIALIZING":
            reply.ready = self._until_ready
        if self.revision is not None and self.revision < NEWEST_HANDSHAKE:
            reply.notice = partial(translation.notice, revision=self.revision)
        return {
            "revision": self.revision,
            "capabilities": self.capabilities,
            "client": self.client,
            "log_level": self.log_level,
        }

    def _question(self, method: str, params: Any) -> Any:
        """The params of a question, if it may be asked, in the words of the revision."""
        asked = client_requests.prepared(self, method, params)
        return translation.question(asked, self.revision or NEWEST_HANDSHAKE)

    def start(self, call: Call) -> Any:
        """The result of a Call, or a coroutine that comes to it."""
        # What a call changes is told to a client that is being listened for: a handler that takes its time to begin
        # with that is a turn of the loop ahead.
        if self._settling is not None or (self._seen is not None and not self._changes.settled):
            return self._in_next_turn(call)
        return self._answer(call)

    async def _in_next_turn(self, call: Call) -> Any:
        """What comes in one read with `initialize` is looked at after it; and when it is answered, if the client says
        that it will not wait for that."""
        if self._settling is not None and self._hurried and call.method not in _OWN:
            await self._settling.wait()
        result = self._answer(replace(call, **self._known(call.reply)))
        return await result if type(result) is CoroutineType else result

    def _answer(self, call: Call) -> Any:
        own = _OWN.get(call.method)
        if own is not None:
            return own(self, call)
        self._admit(call)
        result = self._start(call)
        if type(result) is CoroutineType:
            return self._finish(call, result)
        asked = asked_by(call.method, result) if type(result) in _MAY_ASK else None
        return self._translated(call, result) if asked is None else self._finish(call, self._ask(call, asked))

    async def _finish(self, call: Call, coroutine: Coroutine[Any, Any, Any]) -> Any:
        result = await coroutine
        asked = asked_by(call.method, result) if type(result) in _MAY_ASK else None
        if asked is not None:
            result = await self._ask(call, asked)
        return self._translated(call, result)

    def _ask(self, call: Call, asked: InputRequiredResult) -> Coroutine[Any, Any, Any]:
        # Loaded by those who ask: most servers never do.
        return input_requests.push(call, asked, self.handler)

    def _translated(self, call: Call, result: Any) -> Any:
        assert self.revision is not None
        if isinstance(result, CreateTaskResult):
            self._follow(result.task.task_id, call)
        return translation.result(result, self.revision)

    # Going on in another process

    @property
    def facts(self) -> SessionFacts | None:
        """What another process needs to go on with it; None before the handshake and after the end."""
        if self.revision is None or self.state in ("CREATED", "SHUTDOWN"):
            return None
        return SessionFacts(
            revision=self.revision,
            capabilities=self.capabilities,
            client=self.client,
            log_level=self.log_level,
            operating=self.state == "OPERATING",
            subscribed=list(self._subscribed),
        )

    async def restore(self, facts: SessionFacts, principal: Any) -> None:
        """Go on where another process has stopped. What has changed meanwhile is not known, so all is said to have."""
        about = self._start(Call(method="server/discover", id=0, revision=MODERN, principal=principal))
        discovered = await about if type(about) is CoroutineType else about
        offered = msgspec.json.decode(jsonrpc.encode(discovered), type=DiscoverResult).capabilities
        self._offered, self._logs = offered, offered.logging is not None
        self.capabilities, self.client, self.log_level = facts.capabilities, facts.client, facts.log_level
        self.assume(facts.revision)
        self.state = "INITIALIZING"
        if facts.operating:
            self._operate()
            told = [
                (getattr(offered, one) or {}).get("listChanged", False) for one in ("tools", "prompts", "resources")
            ]
            self._seen = tuple(count - bool(one) for count, one in zip(self._changes.seen, told, strict=True))
        for uri in facts.subscribed:
            self._subscribed[uri] = self._relay(uri)
            self._tell_of_resource(notifications.RESOURCE_UPDATED, notifications.ResourceUpdatedParams(uri=uri))

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # The state machine

    def assume(self, revision: Revision) -> None:
        """Go on as if the handshake had been made: for clients that send one request and never greet."""
        self.revision, self.state = revision, "OPERATING"
        if self.stream is not None:
            self.stream.revision, self.stream.batches = revision, revision <= V2025_03_26

    def _admit(self, call: Call) -> None:
        """Whether this may be said now, and at this revision."""
        if self.state == "SHUTDOWN":
            raise InvalidRequest("The session is over")
        if self.state == "CREATED":
            raise InvalidRequest("Not initialized: the first request must be initialize, or carry a modern _meta")
        if self.state == "INITIALIZING":
            if self._may_skip_initialized():
                self._operate()
            elif self.in_order:
                raise InvalidRequest(f"Not initialized: {call.method} came before notifications/initialized")
        assert self.revision is not None
        row = METHODS.get(call.method)
        if row is not None and not row.known_to(self.revision):
            raise MethodNotFound(f"Method not found: {call.method} (not in {self.revision})")

    def _may_skip_initialized(self) -> bool:
        """Early clients never sent it; a server is free to wait for it or not, and from 2025-03-26 on ours does."""
        if self.lifecycle == "auto":
            return self.revision == V2024_11_05
        return self.lifecycle == "lenient"

    def _initialize(self, call: Call) -> Any:
        if call.id is None:
            raise InvalidRequest("initialize is a request")
        if self.state != "CREATED":
            raise InvalidRequest("Already initialized")
        params: InitializeParams = call.typed()
        self.state = "INITIALIZING"
        about = Call(method="server/discover", id=0, revision=MODERN, principal=call.principal)
        try:
            discovered = self._start(about)
            if type(discovered) is CoroutineType:
                self._settling = asyncio.Event()
                return self._discovering(call, params, discovered)
            return self._welcome(call, params, discovered)
        except BaseException:
            self.state = "CREATED"
            raise

    async def _discovering(self, call: Call, params: InitializeParams, discovered: Any) -> InitializeResult:
        try:
            return self._welcome(call, params, await discovered)
        except BaseException:
            self.state = "CREATED"
            raise
        finally:
            self._end_settling()

    def _end_settling(self) -> None:
        if self._settling is not None:
            self._settling.set()
            self._settling = None
        hurried, self._hurried = self._hurried, False
        if hurried and self.state == "INITIALIZING":
            self._operate()

    def _welcome(self, call: Call, params: InitializeParams, discovered: Any) -> InitializeResult:
        """The end of the handshake, with what the handler says of itself."""
        about = discovered
        if type(about) is not DiscoverResult:
            about = msgspec.json.decode(jsonrpc.encode(discovered), type=DiscoverResult)
        self.revision = revision = negotiate(params.protocol_version)
        self._offered = about.capabilities
        self._logs = about.capabilities.logging is not None
        self.capabilities = params.capabilities
        self.client = params.client_info
        if self.stream is not None:
            self.stream.revision = revision
            # 2025-03-26 is the only revision whose text has batches; the one before was silent about them.
            self.stream.batches = revision <= V2025_03_26
        offered = about.capabilities if self.lasting else _without_streams(about.capabilities)
        result = InitializeResult(
            protocol_version=revision,
            capabilities=_with_tasks(offered, revision, call.anonymous),
            server_info=self._server_info(about),
            instructions=about.instructions,
        )
        return translation.result(result, revision)  # type: ignore[no-any-return]

    def _server_info(self, about: DiscoverResult) -> Implementation:
        info = members(self.handler).info
        if info is not None:
            return info
        meta = about.meta if isinstance(about.meta, dict) else {}
        return msgspec.convert(meta.get(SERVER_INFO, {"name": "server", "version": "0"}), Implementation)

    def _initialized(self, call: Call) -> None:
        if call.id is not None:
            raise MethodNotFound(f"Method not found: {call.method} is a notification")
        if self.state == "INITIALIZING" and self._settling is not None:
            self._hurried = True
        elif self.state == "INITIALIZING" and self.revision is not None:
            self._operate()

    def _roots_changed(self, call: Call) -> None:
        if call.id is not None:
            raise MethodNotFound(f"Method not found: {call.method} is a notification")
        if self.stream is not None:
            self.stream.root_changes += 1

    def _ping(self, call: Call) -> EmptyResult:
        return EmptyResult()

    def _admit_feature(self, call: Call, offered: Any) -> None:
        """The same for what only exists when the server has said so."""
        self._admit(call)
        if not offered:
            raise MethodNotFound(f"Method not found: {call.method} (not among the server's capabilities)")

    def _set_level(self, call: Call) -> EmptyResult:
        self._admit_feature(call, self._offered.logging is not None)
        self.log_level = call.typed().level
        self._changed()
        return EmptyResult()

    def _operate(self) -> None:
        self.state = "OPERATING"
        if self._ready is not None:
            self._ready.set()
        if self.stream is not None:
            self._changes.begin()
            self._seen = self._changes.seen
            if self._reachable:
                self._changes.join(self._tell_of_list, self._seen)
        self._changed()

    async def _until_ready(self) -> None:
        """2025-03-26, basic/lifecycle: before `initialized` a server should send no request. Calls may overtake it."""
        if self.state == "INITIALIZING":
            self._ready = self._ready or asyncio.Event()
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await self._ready.wait()
            except TimeoutError:
                raise InternalError("The client cannot be asked: it has not sent notifications/initialized") from None

    def reach(self, reachable: bool) -> None:
        """The client has opened a stream that it can be told on, or the last one was closed."""
        self._reachable = reachable
        if self._seen is not None and self.state == "OPERATING":
            if reachable:
                self._changes.join(self._tell_of_list, self._seen)
            else:
                self._seen = self._changes.leave(self._tell_of_list)

    def close(self) -> None:
        self.state = "SHUTDOWN"
        if self._ready is not None:
            self._ready.set()
        self._changes.leave(self._tell_of_list)
        if not self._shares_changes:
            self._changes.end()
        for relay in (*self._subscribed.values(), *self._following.values()):
            relay.end()
        self._subscribed.clear()
        self._following.clear()

    # Changes: what 2026-07-28 says to a listener, said to the whole session

    def _tell_of_list(self, method: str) -> None:
        if self.stream is not None:
            self.stream.emit(method, None)

    def _tell_of_resource(self, method: str, params: Any) -> None:
        if self.stream is not None and method == notifications.RESOURCE_UPDATED:
            self.stream.emit(method, notifications.ResourceUpdatedParams(uri=params.uri))

    def _tell_of_task(self, progress: Reply, token: ProgressToken | None, method: str, params: Any) -> None:
        if self.stream is not None and method == notifications.TASK:
            self.stream.emit(notifications.TASK_STATUS, translation.task_status(params))
            if token is not None and (said := translation.task_progress(params, token)) is not None:
                progress.emit(notifications.PROGRESS, said)
            if params.status in ENDED and params.task_id in self._following:
                asyncio.get_running_loop().call_soon(self._unfollow, params.task_id)

    def _follow(self, task: str, call: Call) -> None:
        """Tell the client how its task comes along. That is a courtesy, so there is an end to it."""
        if len(self._subscribed) + len(self._following) < MOST_SUBSCRIPTIONS and self.stream is not None:
            # basic/utilities/progress: the token of the request stays valid as long as its task.
            progress = Listening(self.stream.emit)
            self._following[task] = ChangeRelay(
                self.handler,
                Filter(task_ids=[task]),
                partial(self._tell_of_task, progress, call.progress_token),
                principal=call.principal,
                capabilities=_HEARS_OF_TASKS,
            )

    def _unfollow(self, task: str) -> None:
        following = self._following.pop(task, None)
        if following is not None:
            following.end()

    async def _subscribe(self, call: Call) -> EmptyResult:
        self._admit_feature(call, (self._offered.resources or {}).get("subscribe"))
        uri = call.typed().uri
        if uri in self._subscribed:
            return EmptyResult()
        if len(self._subscribed) + len(self._following) >= MOST_SUBSCRIPTIONS:
            raise InternalError(f"Refused: {MOST_SUBSCRIPTIONS} subscriptions are the most a session may have")
        relay = ChangeRelay(
            self.handler,
            Filter(resource_subscriptions=[uri]),
            self._tell_of_resource,
            principal=call.principal,
            address=call.address,
        )
        self._subscribed[uri] = relay
        await relay.settled.wait()
        if relay.acknowledged is not None and relay.acknowledged.resource_subscriptions:
            return EmptyResult()
        self._unsubscribe_from(uri)
        if relay.acknowledged is None:
            raise relay.refusal or InternalError("Changes cannot be listened to at the moment")
        raise ResourceNotFound(uri)

    def _relay(self, uri: str) -> ChangeRelay:
        return ChangeRelay(self.handler, Filter(resource_subscriptions=[uri]), self._tell_of_resource)

    def _unsubscribe(self, call: Call) -> EmptyResult:
        self._admit_feature(call, (self._offered.resources or {}).get("subscribe"))
        self._unsubscribe_from(call.typed().uri)
        self._changed()
        return EmptyResult()

    def _unsubscribe_from(self, uri: str) -> None:
        relay = self._subscribed.pop(uri, None)
        if relay is not None:
            relay.end()


def _without_streams(offered: ServerCapabilities) -> ServerCapabilities:
    """What can be offered in a session of which each request is alone."""
    lists: dict[str, Any] = {
        name: {} for name in ("tools", "prompts", "resources") if getattr(offered, name) is not None
    }
    return replace(offered, logging=None, **lists)


def _with_tasks(offered: ServerCapabilities, revision: Revision, public: bool) -> ServerCapabilities:
    """2025-11-25 has tasks in its core. They are listed only where clients log in, or are alone."""
    if revision != NEWEST_HANDSHAKE or EXTENSION not in (offered.extensions or {}):
        return offered
    able: dict[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
    return replace(offered, tasks=able if public else {"list": {}, **able})


# What the session answers itself. Early servers knew the notification by its short name too.
_OWN = {
    "initialize": Session._initialize,
    "ping": Session._ping,
    "logging/setLevel": Session._set_level,
    "resources/subscribe": Session._subscribe,
    "resources/unsubscribe": Session._unsubscribe,
    notifications.INITIALIZED: Session._initialized,
    "initialized": Session._initialized,
    notifications.ROOTS_CHANGED: Session._roots_changed,
}
