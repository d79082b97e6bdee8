"""What a body can do besides returning: log, report progress, ask, look around."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.protocol import meta as metas
from portico.protocol import notifications
from portico.protocol.apps import shows_pages
from portico.protocol.client_features import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequiredResult,
    ListRootsResult,
    ModelHint,
    ModelPreferences,
    Root,
    SamplingMessage,
)
from portico.protocol.content import SamplingBlock, TextContent
from portico.protocol.errors import ProtocolError, ToolError
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import LOG_LEVELS, Implementation, LogLevel
from portico.protocol.methods import METHODS
from portico.protocol.pagination import Paging
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tasks import EXTENSION as TASKS
from portico.protocol.tools import ListToolsResult, Tool, ToolChoice
from portico.protocol.versions import LATEST, MODERN, V2025_11_25, Revision
from portico.rpc.call import Call, Conversation, Handler, Reply
from portico.rpc.client_requests import check_answer, new_elicitation_id
from portico.rpc.fair_queue import caller_of
from portico.rpc.trace_context import trace_context
from portico.server.components.results import Detached
from portico.server.components.runtime import Runtime
from portico.server.context import elicitation
from portico.server.context.current import ContextType
from portico.server.context.input_rounds import BodyReply, Rounds, Settle, SettledRounds, rounds_of

if TYPE_CHECKING:
    from portico.server.components import interop

    # For `ctx.server` alone, so that authors see its type.
    from portico.server.server import Server
    from portico.server.transforms import session_visibility
else:
    interop = LazyModule("portico.server.components.interop")
    session_visibility = LazyModule("portico.server.transforms.session_visibility")

T = TypeVar("T")

MAX_TOKENS = 512


class Elicitation(Struct, Generic[T]):
    """What came of a question: `data` is there when `action` is "accept"."""

    action: Literal["accept", "decline", "cancel"]
    data: T | None = None
    # Of a page that was to be opened, where the revision gives it one: for `elicitation_complete`.
    id: str | None = None


class AcceptedElicitation(Elicitation[T], tag=False):
    """The user has answered."""


class DeclinedElicitation(Elicitation[T], tag=False):
    """The user has said no."""


class CancelledElicitation(Elicitation[T], tag=False):
    """The user has not answered."""


_OUTCOMES: dict[str, type[Elicitation[Any]]] = {
    "accept": AcceptedElicitation,
    "decline": DeclinedElicitation,
    "cancel": CancelledElicitation,
}


ElicitationResult = Elicitation
"""The official SDK's word: `ElicitationResult[Confirm]` is any of the three."""


class Sample(Struct):
    """What the client's model said."""

    content: SamplingBlock | list[SamplingBlock]
    model: str
    role: str = "assistant"
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(block.text for block in blocks if isinstance(block, TextContent))


class Sent:
    """Returned by log and progress calls. The message is sent; awaiting this applies back-pressure."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._reply.drain().__await__()


async def fetch_all_pages(fetch_page: Callable[[dict[str, Any]], Awaitable[Any]], kind: Any, member: str) -> list[Any]:
    """Return all entries of a list, one page after the other. `fetch_page` takes the params of a page.

    Raises ProtocolError for a list that does not end.
    """
    entries: list[Any] = []
    paging = Paging()
    cursor: str | None = ""
    params: dict[str, Any] = {}
    while cursor is not None:
        page = await fetch_page(params)
        if isinstance(page, Raw):
            page = msgspec.json.decode(page, type=kind)
        added = getattr(page, member)
        entries += added
        cursor = paging.after(page.next_cursor, len(added))
        params = {"cursor": cursor}
    if paging.endless:
        raise ProtocolError(f"the list of {member} has no end: {len(entries)} entries, and more to come")
    return entries


class Context(ContextType):
    """One call, as its body sees it. Ask for it with a parameter: `ctx: Context`."""

    __slots__ = ("_call", "_loop", "_rounds", "_runtime", "_start", "_task", "_trace")

    def __init__(self, call: Call, runtime: Runtime, start: Callable[[asyncio.Task[Any]], Rounds]) -> None:
        self._call = call
        self._runtime = runtime
        self._start = start
        self._rounds: Rounds | None = rounds_of(call)
        self._task: asyncio.Task[Any] | None = None
        # Of a body in a thread: what it says on the way is sent by the loop's.
        self._loop: asyncio.AbstractEventLoop | None = None
        # What its requests say of its trace: looked for once, as what it was asked with may be long.
        self._trace: dict[str, Any] | None = None

    def __class_getitem__(cls, item: Any) -> Any:
        """Return the class: in `Context[App]`, App is the type of `lifespan_context`."""
        return cls

    def begin(self) -> Rounds:
        """The questions of this call: nothing is prepared for them until there is one."""
        if self._rounds is None:
            assert self._task is not None
            self._rounds = self._start(self._task)
        return self._rounds

    def enter(self) -> None:
        """The body runs in this task; a question may come from one of its children."""
        self._task = asyncio.current_task()

    def leave_loop(self) -> None:
        """The body runs in a thread from here on."""
        self._loop = asyncio.get_running_loop()

    def _emit(self, method: str, params: Any) -> Awaitable[None]:
        reply = self._call.reply
        if self._loop is None:
            reply.emit(method, params)
        else:
            try:
                self._loop.call_soon_threadsafe(reply.emit, method, params)
            except RuntimeError:
                pass  # the loop has ended before the thread
        return Sent(reply)

    def required(self) -> InputRequiredResult | Detached | None:
        """The result that asks. A body that was called by another leaves that to the other."""
        if self._rounds is None or rounds_of(self._call) is not None:
            return None
        return self._rounds.required()

    # Who is asking

    @property
    def request_id(self) -> int | str | None:
        return self._call.id

    @property
    def revision(self) -> Revision:
        return self._call.revision or LATEST

    @property
    def client(self) -> Implementation | None:
        """The client's own word about itself, for display; nothing should be decided by it."""
        return self._call.client

    @property
    def capabilities(self) -> metas.ClientCapabilities:
        return self._call.capabilities

    @property
    def shows_pages(self) -> bool:
        """Whether the client shows pages of MCP Apps beside results."""
        return shows_pages(self._call.capabilities)

    @property
    def principal(self) -> Any:
        return self._call.principal

    @property
    def address(self) -> str | None:
        """Where the request comes from, over HTTP; None where only one client can be meant."""
        return self._call.address

    @property
    def client_address(self) -> str | None:
        """The same. A proxy's word on it is taken from trusted proxies alone."""
        return self._call.address

    @property
    def headers(self) -> Mapping[str, str]:
        """Those headers of the request that the server asks for by name, `Server(headers=["x-tenant"])`, in lower
        case, as far as they came. Over HTTP only; a task that goes on later has none."""
        said = self._call.headers or {}
        named = ((name, said.get(name.encode())) for name in self._runtime.headers)
        return {name: value.decode("latin-1") for name, value in named if value is not None}

    @property
    def on_behalf(self) -> dict[str, Any]:
        """The members of a Call that say whom it is for, and of which part of the server it asks: for Calls that a
        service makes itself, so that they come to what this one would come to."""
        call = self._call
        return {name: getattr(call, name) for name in ("principal", "client", "address", "headers", "facet")}

    @property
    def call(self) -> Call:
        """The request that this body answers: for Calls that are made in its stead."""
        return self._call

    @property
    def conversation(self) -> Conversation | None:
        """The same for all calls of one client; None where each stands alone, as over HTTP at 2026-07-28."""
        return self._call.reply.conversation

    @property
    def server(self) -> Server:
        return self._runtime.server

    @property
    def lifespan_context(self) -> Any:
        """The value that the server's lifespan yielded."""
        return self.server.yielded

    @property
    def client_id(self) -> str | None:
        """The OAuth client that the caller's token was issued to; None without a token."""
        return getattr(self.principal, "client_id", None)

    def client_extension_settings(self, identifier: str) -> dict[str, Any] | None:
        """Return the settings that the client declared for an extension; None if it does not support it."""
        return (self.capabilities.extensions or {}).get(identifier)

    def client_supports_extension(self, identifier: str) -> bool:
        return self.client_extension_settings(identifier) is not None

    @property
    def client_capabilities(self) -> metas.ClientCapabilities:
        return self._call.capabilities

    @property
    def protocol_version(self) -> str:
        return str(self.revision)

    @property
    def session_id(self) -> str | None:
        """The same for all calls of one session; None where each request is independent."""
        return self._runtime.states.id_of(self._call)

    @property
    def transport(self) -> str:
        return "stdio" if self._call.address is None else "streamable-http"

    @property
    def input_responses(self) -> dict[str, Any] | None:
        """The client's responses to the requests of an InputRequiredResult; None in the first round."""
        responses = getattr(self._call.typed(), "input_responses", None)
        return None if not responses else interop.responses(responses)

    @property
    def request_state(self) -> str | None:
        """The state that an InputRequiredResult gave the client to carry; None in the first round."""
        return self.begin().carried

    @property
    def meta(self) -> dict[str, Any]:
        """All of the request's `_meta`."""
        return metas.members(self._call.params)

    @property
    def cancelled(self) -> bool:
        """Whether the client has lost interest. A body in a thread should look now and then."""
        return self._call.reply.cancelled or self._call.reply.closed

    def _changed(self, method: str, uri: str | None = None) -> Awaitable[None]:
        """Tell all who listen to this server that something has changed."""
        publish = self.server.subscriptions.publish
        if self._loop is None:
            publish(method, uri)
        else:
            self._loop.call_soon_threadsafe(publish, method, uri)
        return Sent(self._call.reply)

    def notify_tools_changed(self) -> Awaitable[None]:
        """Send listeners `notifications/tools/list_changed`."""
        return self._changed(notifications.TOOLS_CHANGED)

    def notify_prompts_changed(self) -> Awaitable[None]:
        """Send listeners `notifications/prompts/list_changed`."""
        return self._changed(notifications.PROMPTS_CHANGED)

    def notify_resources_changed(self) -> Awaitable[None]:
        """Send listeners `notifications/resources/list_changed`."""
        return self._changed(notifications.RESOURCES_CHANGED)

    def notify_resource_updated(self, uri: str) -> Awaitable[None]:
        """Send subscribers of a resource `notifications/resources/updated`."""
        return self._changed(notifications.RESOURCE_UPDATED, str(uri))

    # State

    async def get_state(self, key: str) -> Any:
        """Return the value that an earlier call of this session stored under a key, or None."""
        return self._runtime.states.get(self._call, key)

    async def set_state(self, key: str, value: Any) -> None:
        """Store a JSON value for later calls of this session, or of this principal where requests are independent."""
        self._runtime.states.set(self._call, key, value)

    async def delete_state(self, key: str) -> None:
        self._runtime.states.drop(self._call, key)

    # Visibility for this session

    async def enable_components(
        self, *, names: Collection[str] = (), tags: Collection[str] = (), match_all: bool = False
    ) -> None:
        """Show components with one of these names or tags to this session, although `server.disable` hides them."""
        self._set_visibility(True, names, tags, match_all)

    async def disable_components(
        self, *, names: Collection[str] = (), tags: Collection[str] = (), match_all: bool = False
    ) -> None:
        """Hide components with one of these names or tags from this session."""
        self._set_visibility(False, names, tags, match_all)

    async def reset_visibility(self) -> None:
        """Show this session what all other sessions see."""
        self._set_visibility(None, (), (), False)

    def _set_visibility(
        self, enabled: bool | None, names: Collection[str], tags: Collection[str], match_all: bool
    ) -> None:
        session_visibility.set_visibility(self._call, self.server, enabled, names or (), tags or (), match_all)
        for kind in (notifications.TOOLS_CHANGED, notifications.PROMPTS_CHANGED, notifications.RESOURCES_CHANGED):
            self._changed(kind)

    # Saying something on the way. These may be called from a `def` body too, without `await`.

    def log(
        self, level: LogLevel, message: Any, logger: str | None = None, *, extra: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        threshold = self._call.log_level
        if threshold is not None and LOG_LEVELS[level] >= LOG_LEVELS[threshold]:
            data = message if extra is None else {"msg": message, "extra": dict(extra)}
            said = notifications.MessageParams(level=level, logger=logger or self._runtime.name, data=data)
            return self._emit(notifications.MESSAGE, said)
        return Sent(self._call.reply)

    def debug(
        self, message: Any, logger: str | None = None, *, extra: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        return self.log("debug", message, logger, extra=extra)

    def info(
        self, message: Any, logger: str | None = None, *, extra: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        return self.log("info", message, logger, extra=extra)

    def warning(
        self, message: Any, logger: str | None = None, *, extra: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        return self.log("warning", message, logger, extra=extra)

    def error(
        self, message: Any, logger: str | None = None, *, extra: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        return self.log("error", message, logger, extra=extra)

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Tell the client how far it is, if it asked to be told. Progress only ever grows; a step back is not sent."""
        token = self._call.progress_token
        if token is not None:
            said = notifications.ProgressParams(progress_token=token, progress=progress, total=total, message=message)
            return self._emit(notifications.PROGRESS, said)
        return Sent(self._call.reply)

    def close_stream(self) -> None:
        """Let go of the connection while the work goes on. A client of 2025-11-25 over HTTP comes back for the answer;
        anywhere else this does nothing."""
        self._call.reply.release()

    # Asking

    @overload
    async def elicit(self, message: str, response_type: type[T], *, key: str | None = None) -> Elicitation[T]: ...
    @overload
    async def elicit(
        self, message: str, response_type: list[T] | tuple[T, ...], *, key: str | None = None
    ) -> Elicitation[T]: ...
    @overload
    async def elicit(
        self, message: str, response_type: dict[str, Any], *, key: str | None = None
    ) -> Elicitation[dict[str, Any]]: ...
    @overload
    async def elicit(
        self, message: str, response_type: None = None, *, key: str | None = None
    ) -> Elicitation[None]: ...
    @overload
    async def elicit(self, message: str, response_type: object, *, key: str | None = None) -> Elicitation[Any]: ...
    async def elicit(self, message: str, response_type: Any = None, *, key: str | None = None) -> Elicitation[Any]:
        """Ask the user, and wait for the answer.

        * **message** – the question.
        * **response_type** – a type of flat fields (a dataclass, a TypedDict, …), the type of a single value, a Literal
          or a list of choices, or the JSON Schema of a form. None asks only for consent.
        * **key** – a name for this question, where a body may ask in another order when it is run again.
        """
        form = elicitation.form(response_type)
        params = ElicitFormParams(message=message, requested_schema=form.schema)
        said: ElicitResult = await self.begin().ask("elicitation/create", params, key)
        check_answer(params, said)
        if said.action != "accept":
            return _OUTCOMES[said.action](said.action)
        return AcceptedElicitation("accept", form.read(said.content or {}))

    async def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Elicitation[None]:
        """Ask the user to open a page, for what must not pass through the client. Accepting is consent, not the end."""
        params = ElicitUrlParams(message=message, url=url, elicitation_id=self._elicitation_id())
        said: ElicitResult = await self.begin().ask("elicitation/create", params, key)
        return _OUTCOMES[said.action](said.action, id=params.elicitation_id)

    def elicitation_complete(self, id: str | None) -> Awaitable[None]:
        """Tell a client of 2025-11-25 that what happened on the page is over; the others have no word for it."""
        if id is not None:
            said = notifications.ElicitationCompleteParams(elicitation_id=id)
            return self._emit(notifications.ELICITATION_COMPLETE, said)
        return Sent(self._call.reply)

    def _elicitation_id(self) -> str | None:
        """2025-11-25 alone gives such a request an id of its own."""
        return new_elicitation_id() if self._call.revision == V2025_11_25 else None

    async def sample(
        self,
        messages: str | Sequence[str | SamplingMessage],
        *,
        system_prompt: str | None = None,
        max_tokens: int = MAX_TOKENS,
        temperature: float | None = None,
        model_preferences: str | Sequence[str] | ModelPreferences | None = None,
        stop_sequences: list[str] | None = None,
        tools: list[Tool] | None = None,
        tool_choice: Literal["auto", "required", "none"] | None = None,
        key: str | None = None,
    ) -> Sample:
        """Ask the client's model."""
        params = CreateMessageParams(
            messages=_conversation(messages),
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            temperature=temperature,
            model_preferences=_preferences(model_preferences),
            stop_sequences=stop_sequences,
            tools=tools,
            tool_choice=ToolChoice(mode=tool_choice) if tool_choice is not None else None,
        )
        said: CreateMessageResult = await self.begin().ask("sampling/createMessage", params, key)
        return Sample(said.content, said.model, said.role, said.stop_reason)

    async def roots(self, *, key: str | None = None) -> list[Root]:
        """The folders the user works in. They are advice about where to look, not permission."""
        said: ListRootsResult = await self.begin().ask("roots/list", None, key)
        # client/roots: a root "MUST be a `file://` URI"; what is none is no folder.
        return [root for root in said.roots if root.uri.lower().startswith("file://")]

    @property
    def is_first_round(self) -> bool:
        """Whether this body has not been run before for the same request: no answer and no step is replayed to it."""
        return not self.begin().replays

    async def detach(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Go on as a task from here, where the client can deal with one. For tools with `TaskConfig(detached=True)`.

        * **settle** – awaited before that, where it happens.
        """
        await self.begin().detach(settle)

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """Do something once, however often the body is run again: `await ctx.step("charge", lambda: charge(card))`."""
        return await self.begin().step(name, fn)

    async def in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        """Run what blocks in one of the threads that `def` bodies have, and wait for it."""
        found: T = await self._runtime.threads.run(fn, args, caller_of(self._call))
        return found

    # Looking around in the same server

    async def list_tools(self) -> list[Any]:
        return await self._list_all("tools/list", ListToolsResult, "tools")

    async def list_resources(self) -> list[Any]:
        return await self._list_all("resources/list", ListResourcesResult, "resources")

    async def list_resource_templates(self) -> list[Any]:
        return await self._list_all("resources/templates/list", ListResourceTemplatesResult, "resource_templates")

    async def list_prompts(self) -> list[Any]:
        return await self._list_all("prompts/list", ListPromptsResult, "prompts")

    async def _list_all(self, method: str, kind: Any, member: str) -> list[Any]:
        return await fetch_all_pages(lambda params: self._within(method, self._inner(method, params)), kind, member)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        return await self._within(name, self._inner("prompts/get", {"name": name, "arguments": arguments or {}}))

    async def read_resource(self, uri: str) -> list[Any]:
        result = await self._within(uri, self._inner("resources/read", {"uri": uri}))
        return cast("list[Any]", result.contents)

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        result = await self._within(name, self._inner("tools/call", {"name": name, "arguments": arguments or {}}))
        if getattr(result, "is_error", False):
            raise ToolError("".join(part.text for part in result.content if isinstance(part, TextContent)))
        return result

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        key: str,
        settle: Settle | None = None,
        handler: Handler | None = None,
        tasks: bool = False,
    ) -> Any:
        """The result of another request, on behalf of the same caller and by the same rules.

        * **method**, **params** – what is asked.
        * **key** – what its questions are known by when this body is run again: the same for the same request.
        * **settle** – makes an async context manager that is put around its questions, each of which may end this run
          of the body: for what must not be cut off.
        * **handler** – who is asked: this server unless said otherwise.
        * **tasks** – whether it is asked as a client of 2026-07-28 does that can deal with tasks: the result may be
          one, or questions, and this body has to see to them.
        """
        answer = self._runtime.server if handler is None else handler
        if tasks:
            return await answer(self._as_task(method, params))
        rounds = None if self._call.reply.asks else self._settled(settle)
        reply = self._call.reply if rounds is None else BodyReply(self._call.reply, rounds=rounds)
        said = self._said(params)
        # Its progress is not that of this call.
        # Read here, once for all who look at it.
        read = (said, METHODS[method].decode(said)) if method in METHODS else None
        inner = replace(self._call, method=method, params=said, reply=reply, progress_token=None, read=read)
        if rounds is None:
            return await answer(inner)
        with rounds.keys.inside_step(key):
            return await answer(inner)

    def _said(self, params: Mapping[str, Any]) -> Raw:
        """The params of a request, with the trace that this call belongs to."""
        if self._trace is None:
            self._trace = trace_of(self._call)
        return Raw(encode({**params, **self._trace} if self._trace else params))

    def _as_task(self, method: str, params: Mapping[str, Any]) -> Call:
        call = self._call
        able = replace(call.capabilities, extensions={**(call.capabilities.extensions or {}), TASKS: {}})
        said = self._said(params)
        # A Reply that does not ask: questions come as a result.
        reply = BodyReply(call.reply, asks=False)
        reply.follows = True
        about = {"method": method, "params": said, "reply": reply, "capabilities": able, "revision": MODERN}
        return replace(call, **about, progress_token=None, read=None)

    def idle(self) -> AbstractAsyncContextManager[None]:
        """While this body waits for another task: if it is one itself, it does not keep that from running."""
        return self.begin().idle()

    async def answer_questions(
        self, asked: InputRequiredResult, *, key: str, settle: Settle | None = None
    ) -> dict[str, Any]:
        """Put the questions of a result to the client: what the request is to be sent again with.

        * **asked** – the result that asks.
        * **key**, **settle** – as for `request`.
        """
        rounds = self._settled(settle)
        questions = asked.input_requests or {}
        answered = await asyncio.gather(
            *(rounds.ask(one.method, one.params, f"{key}/{name}") for name, one in questions.items())
        )
        state = {} if asked.request_state is UNSET else {"requestState": asked.request_state}
        return {"inputResponses": dict(zip(questions, answered, strict=True)), **state}

    def _settled(self, settle: Settle | None) -> Any:
        return self.begin() if settle is None else SettledRounds(self.begin(), settle)

    async def _within(self, name: str, inner: Call) -> Any:
        rounds = rounds_of(inner)
        if rounds is None:
            return await self._runtime.server(inner)
        # What it asks and does has names of its own, so that two calls of one tool are kept apart.
        with rounds.keys.inside_call(name):
            return await self._runtime.server(inner)

    def _inner(self, method: str, params: dict[str, Any]) -> Call:
        asked = Raw(msgspec.json.encode(params))
        reply = self._call.reply
        if not reply.asks:
            reply = BodyReply(reply, rounds=self.begin())
        return replace(self._call, method=method, params=asked, reply=reply)


def context_of(call: Call, runtime: Runtime, params: Any, target: str, arguments: bytes | Raw) -> Context:
    """The Context of a call of a tool, a prompt or a resource; `target` is its name or URI."""
    begin = partial(Rounds, call, runtime.server.seal, target, arguments, params.input_responses, params.request_state)
    context: Context = (runtime.context_class or Context)(call, runtime, begin)
    return context


def create_context(call: Call, runtime: Runtime, begin: Callable[[asyncio.Task[Any]], Rounds]) -> Context:
    """Return a Context of the class that the server has for it."""
    context: Context = (runtime.context_class or Context)(call, runtime, begin)
    return context


def trace_of(call: Call) -> dict[str, Any]:
    """The part of a call's params that says which trace it belongs to, for those that are made on its behalf."""
    said = trace_context(call)
    return {"_meta": said} if said else {}


def _conversation(messages: str | Sequence[str | SamplingMessage]) -> list[SamplingMessage]:
    parts: Sequence[Any] = [messages] if isinstance(messages, str) else messages
    return [_sampling_message(part) for part in parts]


def _sampling_message(part: Any) -> SamplingMessage:
    if isinstance(part, str):
        return SamplingMessage("user", TextContent(text=part))
    if hasattr(part, "model_dump"):
        # Of another library.
        return msgspec.convert(part.model_dump(mode="json", by_alias=True, exclude_none=True), SamplingMessage)
    return cast("SamplingMessage", part)


def _preferences(given: str | Sequence[str] | ModelPreferences | None) -> ModelPreferences | None:
    if given is None or isinstance(given, ModelPreferences):
        return given
    return ModelPreferences(hints=[ModelHint(name) for name in ([given] if isinstance(given, str) else given)])
