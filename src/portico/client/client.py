"""The Client: talks to a server, wherever it is and whatever revision it speaks."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from itertools import count
from types import UnionType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple, replace

from portico._lazy import load_module
from portico._options import explained
from portico.client import results
from portico.client.cache import CACHEABLE, Cache
from portico.client.inputs import (
    FORMS,
    ElicitationHandler,
    ElicitationMode,
    Inputs,
    Roots,
    SamplingHandler,
    UnfitAnswer,
)
from portico.client.listen import ChangeListener
from portico.client.results import BrokenPromise, CallToolResult, Promise, T
from portico.client.tasks import RemoteTask, handle
from portico.rpc.call import Call, Handler, Listening
from portico.transport.greeting import ClientIdentity
from portico.transport.http_client.pool import Pool
from portico.transport.http_client.streamable import RequestSender
from portico.transport.link import Link, Trace
from portico.transport.targets import Target, names_several, target_of
from portico.transport.upstream import RETRIES, TIMEOUT_SECONDS, Upstream
from portico.wire import notices
from portico.wire.capabilities import TASK_CALLS, declares
from portico.wire.completion import Completion
from portico.wire.content import Contents, EmptyResult
from portico.wire.errors import (
    Error,
    HeaderMismatch,
    InvalidParams,
    MissingCapability,
    ProtocolError,
    ToolError,
    UsageError,
)
from portico.wire.inputs import ElicitResult, InputRequest, InputRequiredResult
from portico.wire.jsonrpc import encode
from portico.wire.meta import CLIENT_CAPABILITIES, Implementation, LogLevel, ServerCapabilities
from portico.wire.methods import ASKABLE, METHODS, plainly
from portico.wire.prompts import GetPromptResult, Prompt
from portico.wire.resources import Resource, ResourceTemplate
from portico.wire.revisions import REVISIONS, V2025_06_18, V2025_11_25, Revision
from portico.wire.subscriptions import Filter
from portico.wire.tasks import EXTENSION
from portico.wire.tools import ReceivedToolResult, Tool

if TYPE_CHECKING:
    from portico.client.authorization import Auth
    from portico.transport.http_client.authorizer import Visitor

MOST_ROUNDS = 10
# What one answer may be made of, besides the bytes that it may have.
MOST_VALUES = 5_000_000
# What is listed at once has an end, whatever the server says: so many entries, so many bytes a page and in all.
MOST_LISTED = 100_000
LONGEST_PAGE = 16 * 1024 * 1024
LONGEST_LIST = 32 * 1024 * 1024
MOST_PAGES = 10_000
MOST_EMPTY = 100
# What a server may ask at once, and how many of its notices may be in the hands of handlers.
MOST_QUESTIONS = 100
MOST_HANDLED = 1000
MOST_FOLLOWED = 10_000
GOODBYE_SECONDS = 2.0

log = logging.getLogger("portico")

LogHandler = Callable[[notices.MessageParams], Any]
ProgressHandler = Callable[[float, float | None, str | None], Any]
MessageHandler = Callable[[str, Raw], Any]


class _Progress(Struct, frozen=True):
    """The progress token of a call, the same in all its rounds, and what is told of its progress."""

    token: int
    handler: ProgressHandler


class _Kind(Struct):
    # A missing resultType counts as "complete": older servers do not say it.
    result_type: str = msgspec.field(default="complete", name="resultType")


class _ToolName(Struct):
    name: str


class _NamesPage(Struct, rename="camel"):
    """A page of the tools, of which only the names are read."""

    tools: list[_ToolName]
    next_cursor: str | UnsetType | None = UNSET


class _RawPage(Struct):
    tools: list[Raw]


def _sender(auth: Auth, target: Target, browser: Visitor | None) -> RequestSender | None:
    # All that OAuth takes is imported by those who use it.
    if auth is None:
        return None
    sender: RequestSender | None = load_module("portico.client.authorization").sender_for(auth, target, browser)
    return sender


class Client:
    """A client of one server: `async with Client(target) as client: …`.

    It opens a connection, finds out which revision the server speaks, and makes the connection again when it breaks.
    It is a Handler too: `server.mount(client)` makes the server that it talks to a part of another one.

    * **target** – what to talk to: a URL, a command (a list of words, or one text), a `module:object` or
      `file.py:object`, an mcp.json (`file.json:name`) or an entry of one, a Server or any Handler.
    * **revision** – the protocol revision to speak, to see a server as an older client does. Otherwise it is the
      newest one that both know.
    * **undeclared** – whether to ask the server also for what it has not declared that it has. Otherwise that is a
      MethodNotFound, and nothing is sent.
    * **name**, **version** – what the server is told about this client.
    * **sampling_handler** – answers a server that wants text from a model: gets the params, returns a text or a
      `CreateMessageResult`. May be `async`, as all handlers may.
    * **elicitation_handler** – answers a server that asks the user: gets the params, returns the fields of the form
      (accepted), None (declined) or an `ElicitResult`.
    * **elicitation_modes** – what the elicitation handler can show: a "form", the page of a "url", or both.
    * **sampling_tools** – whether the sampling handler can deal with tools.
    * **roots** – the folders that the server may work in, as paths, `file://` URIs or Roots.
    * **log_handler** – gets each log message of the server.
    * **log_level** – the level from which the server should send log messages.
    * **progress_handler** – gets `(progress, total, message)` of every call that has no `on_progress` of its own.
    * **message_handler** – gets every notification of the server: its method, and its params undecoded.
    * **timeout** – how many seconds a request may take, retries included; None for no limit.
    * **retries** – how often a request that was not heard is sent again.
    * **trust_annotations** – whether a tool that says of itself that it is read-only or idempotent is called again when
      the connection breaks in the middle of its call. Every server can say so: this is for those that you trust.
    * **validate** – whether structured results are checked against the tool's output schema.
    * **extensions** – the protocol extensions to declare, with their settings.
    * **principal** – who the calls are from, for a Server or Handler in this process.
    * **env**, **cwd** – the environment variables and the working directory of a command.
    * **headers** – HTTP headers of every request to a URL.
    * **auth** – a bearer token, "oauth" to log in with a browser, or a Grant or OAuth of `portico.auth`.
    * **browser** – shows the login page, and returns the URL that it led to. The default opens the user's browser.
    * **tls** – the SSLContext for `https` URLs.
    * **trace** – is shown every message: "sent" or "received", and its bytes.
    """

    @explained
    def __init__(
        self,
        target: Handler | Sequence[str] | str | Mapping[str, Any],
        *,
        revision: Revision | None = None,
        undeclared: bool = False,
        name: str = "portico",
        version: str = "0",
        sampling_handler: SamplingHandler | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        elicitation_modes: Collection[ElicitationMode] = FORMS,
        sampling_tools: bool = False,
        roots: Roots | None = None,
        log_handler: LogHandler | None = None,
        log_level: LogLevel | None = None,
        progress_handler: ProgressHandler | None = None,
        message_handler: MessageHandler | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        trust_annotations: bool = False,
        validate: bool = True,
        extensions: dict[str, Any] | None = None,
        principal: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth = None,
        browser: Visitor | None = None,
        tls: ssl.SSLContext | None = None,
        trace: Trace | None = None,
    ) -> None:
        if revision is not None and revision not in REVISIONS:
            raise UsageError(f"there is no revision {revision!r}; there are {', '.join(REVISIONS)}")
        if names_several(target):
            # What a gateway needs is loaded by those who talk to several servers.
            target = load_module("portico.gateway.gateway").Gateway.of(target)
        place = target_of(target, env=env, cwd=cwd, headers=headers)
        self.inputs = Inputs(
            sampling_handler, elicitation_handler, roots, modes=elicitation_modes, sampling_tools=sampling_tools
        )
        able = replace(self.inputs.capabilities, extensions=extensions or None)
        self.timeout = timeout
        self._validate = validate
        self._trusts_annotations = trust_annotations
        self._upstream = Upstream(
            place,
            self._answer,
            ClientIdentity(Implementation(name, version), able, log_level),
            revision=revision,
            undeclared=undeclared,
            timeout=timeout,
            retries=retries,
            auth=_sender(auth, place, browser),
            pool=partial(Pool, tls),
            principal=principal,
            trace=trace,
            on_reopened=self._on_reopened,
            on_gap=self._on_gap,
        )
        self._log_handler = log_handler
        self._progress = progress_handler
        self._messages = message_handler
        self._tokens = count(1)
        # What the server says on the way to a result is heard like all else that it says.
        self._listening = Listening(self._notice)
        self._handling: set[asyncio.Task[None]] = set()
        self._listeners: set[ChangeListener] = set()
        self._news: dict[str, asyncio.Event] = {}
        self._subscribed: dict[str, int] = {}
        self._cache = Cache(time.monotonic)
        # What the tools promise, as far as they were looked at; and whether others need not be looked for.
        self._promises: dict[str, Promise] = {}
        self._knows_all = False

    # Who is there

    @property
    def revision(self) -> Revision:
        return self._upstream.greeting.revision

    @property
    def server_info(self) -> Implementation | None:
        return self._upstream.greeting.server

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._upstream.greeting.capabilities

    @property
    def instructions(self) -> str | None:
        return self._upstream.greeting.instructions

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks 2026-07-28."""
        return self._upstream.modern

    @property
    def upstream(self) -> Upstream:
        """The connection below it."""
        return self._upstream

    # Opening and closing, from any task

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The time in which a server has it mounted. A client that is open already stays so."""
        if self._upstream.is_open:
            yield
            return
        async with self:
            yield

    async def open(self) -> None:
        if self._upstream.is_open:
            raise UsageError("the client is open already")
        try:
            await self._upstream.open()
            await self._tell_log_level()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for listener in list(self._listeners):
            await listener.close(polite=False)
        await self._upstream.close()
        for task in self._handling:
            task.cancel()

    async def _on_reopened(self) -> None:
        """The server is a new one, and does not know what we told the old one."""
        self._cache.clear()
        self._forget_promises()
        if not self._upstream.modern:
            await self._tell_log_level()
            for uri in list(self._subscribed):
                try:
                    await self._result("resources/subscribe", {"uri": uri})
                except ProtocolError as failure:
                    log.warning("%s: %s is not subscribed to again: %s", self._name, uri[:200], failure)
        for listener in list(self._listeners):
            listener.reopened()

    def _on_gap(self) -> None:
        """Notifications may have been missed, or will be until the next request mends the connection."""
        self._forget_promises()
        for listener in list(self._listeners):
            listener.lost()

    def _forget_promises(self) -> None:
        self._promises, self._knows_all = {}, False

    async def _tell_log_level(self) -> None:
        """The level that was wished for at the start. A server that has no logs is not asked for any."""
        level = self._upstream.identity.log_level
        if level is not None and self.server_capabilities.logging is not None:
            await self.set_log_level(level)

    # What the server says to us

    def _answer(self, call: Call) -> Any:
        if call.id is None:
            self._notice(call.method, call.params)
            return None
        return EmptyResult() if call.method == "ping" else self._answer_question(call)

    async def _answer_question(self, call: Call) -> Any:
        """A question of a session. It has no caller here who could be told of the handler's mistake, so the log is."""
        try:
            return await self.inputs.answer(call.method, call.params, self.revision)
        except UnfitAnswer as mistake:
            log.error("%s: %s", self._name, mistake)
            return ElicitResult("cancel")

    def _notice(self, method: str, params: Raw, on_progress: ProgressHandler | None = None) -> None:
        """Handle a notification. What a handler raises is logged, never passed on."""
        try:
            waiting = [one for one in self._heard(method, params, on_progress) if isawaitable(one)]
        except InvalidParams as failure:
            log.debug("%s: %s", method, failure.message)
        except Exception:
            log.exception("error in %s", method)
        else:
            if waiting:
                self._wait_for(method, waiting)

    def _heard(self, method: str, params: Raw, on_progress: ProgressHandler | None) -> list[Any]:
        """Returns what the handlers returned, which may have to be waited for."""
        told = []
        uri = None
        if method == notices.PROGRESS and on_progress is not None:
            progress = METHODS[method].decode(params)
            told.append(on_progress(progress.progress, progress.total, progress.message))
        elif method == notices.MESSAGE and self._log_handler is not None:
            told.append(self._log_handler(METHODS[method].decode(params)))
        elif method == notices.TOOLS_CHANGED:
            self._forget_promises()
        elif method == notices.RESOURCE_UPDATED:
            uri = METHODS[method].decode(params).uri
        elif method in (notices.TASK, notices.TASK_STATUS):
            news = self._news.get(METHODS[method].decode(params).task_id)
            if news is not None:
                news.set()
        self._cache.invalidate(method, uri)
        for listener in list(self._listeners) if not self._upstream.modern else ():
            listener.hear(method, params)
        if self._messages is not None:
            told.append(self._messages(method, params))
        return told

    def _wait_for(self, method: str, waiting: list[Any]) -> None:
        """Handlers may be slow, and a server may have much to say: what cannot be kept up with is not handled."""
        if len(self._handling) >= MOST_HANDLED:
            for one in waiting:
                if isinstance(one, Coroutine):
                    one.close()
            return

        async def wait() -> None:
            try:
                for one in waiting:
                    await one
            except Exception:
                log.exception("error in %s", method)

        task = asyncio.get_running_loop().create_task(wait())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    # What we say to it

    async def __call__(self, call: Call) -> Any:
        """Pass a Call on to the server, and give its result as it came.

        What belongs to the Call goes to its Reply; questions of a session are answered by the handlers of this client.
        """
        return await self._upstream(call)

    async def notify(self, method: str, params: Any = None) -> None:
        await self._upstream(Call(method=method, params=Raw(b"" if params is None else encode(params))))

    async def request(
        self, method: str, params: dict[str, Any], *, timeout: float | None = None, repeatable: bool | None = None
    ) -> Raw:
        """Any request, answered with the undecoded result. Questions of the server are answered on the way.

        `repeatable`: it is sent again when the connection breaks. The default is yes, except for a tool's call.
        """
        return await self._rounds(method, params, timeout, repeatable)

    def _call(self, method: str, params: dict[str, Any], progress: _Progress | None = None) -> Call:
        body = Raw(encode(params))
        if progress is None:
            return Call(method=method, params=body, id=0, reply=self._listening)
        reply = Listening(partial(self._notice, on_progress=progress.handler))
        return Call(method=method, params=body, id=0, progress_token=progress.token, reply=reply)

    async def _rounds(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None,
        repeatable: bool | None,
        wanted: Collection[str] = ("complete",),
        progress: _Progress | None = None,
        first: Raw | None = None,
    ) -> Raw:
        """The first result of a kind that is wanted. `first`: what the first round has given already."""
        repeatable = method != "tools/call" if repeatable is None else repeatable
        asked = params
        for _ in range(MOST_ROUNDS + 1):
            said = first
            if said is None:
                said = await self._upstream.ask(self._call(method, asked, progress), self._limit(timeout), repeatable)
            first = None
            kind = self._kind(method, said)
            if kind in wanted:
                return said
            if kind != "input_required" or method not in ASKABLE:
                raise ProtocolError(f"{self._name}: {method} gave a result of an unknown kind: {kind[:100]}")
            # Each round carries its own answers only; what came before is in the state, which is the server's affair.
            asked = {**params, **await self._answers(method, said)}
        raise ProtocolError(f"{self._name}: {method} still asks after {MOST_ROUNDS} rounds")

    def _limit(self, timeout: float | None) -> float | None:
        return self.timeout if timeout is None else None if timeout == math.inf else timeout

    def _kind(self, method: str, said: Raw) -> str:
        # A value takes two bytes there, and here thirty times as much.
        if len(bytes(said)) > 2 * MOST_VALUES and results.has_more_values(bytes(said), MOST_VALUES):
            raise ProtocolError(f"{self._name}: {method} gave more than {MOST_VALUES} values at once")
        kind: str = self._decoded(method, said, _Kind).result_type
        return kind

    @property
    def _name(self) -> str:
        name = self._upstream.name
        return name if name != Link.name or self.server_info is None else self.server_info.name[:100]

    async def _answers(self, method: str, said: Raw) -> dict[str, Any]:
        asked: InputRequiredResult = self._decoded(method, said, InputRequiredResult)
        again: dict[str, Any] = {}
        if asked.input_requests is not UNSET:
            if len(asked.input_requests) > MOST_QUESTIONS:
                raise ProtocolError(f"{self._name}: {method} asks {len(asked.input_requests)} questions at once")
            again["inputResponses"] = {key: await self._reply(method, one) for key, one in asked.input_requests.items()}
        if asked.request_state is not UNSET:
            again["requestState"] = asked.request_state
        if not again:
            raise ProtocolError(f"{self._name}: {method} asks for input, and says not for which")
        return again

    async def _reply(self, method: str, asked: InputRequest) -> Any:
        if not self.inputs.can_answer(asked.method, self.revision):
            raise ProtocolError(f"{self._name}: {method} asks for {asked.method[:100]}, for which there is no handler")
        try:
            return await self.inputs.answer(asked.method, Raw(encode(asked.params or {})), self.revision)
        except (InvalidParams, RecursionError) as failure:
            raise ProtocolError(f"{self._name}: {method} asks what cannot be answered: {failure}") from None

    async def _result(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None = None,
        *,
        repeatable: bool = True,
        progress: _Progress | None = None,
    ) -> Any:
        """The result, decoded. Its type has the kind that is wanted in it, so it is looked for only if that fails."""
        limit = self.timeout if timeout is None else self._limit(timeout)
        said = await self._upstream.ask(self._call(method, params, progress), limit, repeatable)
        try:
            if len(bytes(said)) <= MOST_VALUES:
                return msgspec.json.decode(said, type=METHODS[method].result)
        except (msgspec.DecodeError, RecursionError):
            pass
        said = await self._rounds(method, params, timeout, repeatable, progress=progress, first=said)
        return self._decoded(method, said)

    def _decoded(self, method: str, said: Raw, type: Any = None) -> Any:
        """A result as its method has it, or as this type."""
        try:
            return msgspec.json.decode(said, type=METHODS[method].result if type is None else type)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise ProtocolError(f"{self._name} gave an invalid result of {method}: {plainly(failure)}") from None

    async def _cached(self, method: str, params: dict[str, Any], *, fresh: bool = False) -> Any:
        return self._decoded(method, await self._cached_raw(method, params, fresh=fresh))

    async def _cached_raw(self, method: str, params: dict[str, Any], *, fresh: bool = False) -> Raw:
        """A result that may be cached, undecoded. Answers that questions led to are not."""
        if not self._upstream.modern or method not in CACHEABLE:
            return await self.request(method, params)
        said = None if fresh else self._cache.get(method, params, self._upstream.link.identity)
        if said is None:
            since = self._cache.changes
            said = await self._upstream.ask(self._call(method, params), self.timeout, True)
            if self._kind(method, said) != "complete":
                return await self._rounds(method, params, None, True, first=said)
            self._cache.put(method, params, self._upstream.link.identity, said, since)
        return said

    # Tools

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressHandler | None = None,
        raise_on_error: bool = True,
        returns: type[T] | UnionType | None = None,
        repeatable: bool | None = None,
    ) -> CallToolResult[T]:
        """Call a tool. What it refuses is raised as ToolError, unless `raise_on_error` is off.

        `returns`: the type that `result.data` is to have. `repeatable`: it may be called again when the connection
        breaks in the middle; the default is no, or with `trust_annotations` what the tool says of itself.
        """
        if not self._upstream.modern and await self._task_support(name, timeout) == "required":
            task = await self.start_task(name, arguments, timeout=timeout)
            return await task.result(timeout=self._limit(timeout), returns=returns, raise_on_error=raise_on_error)
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if repeatable is None:
            known = self._promises.get(name) if self._trusts_annotations else None
            repeatable = known is not None and known.repeatable
        handler = on_progress or self._progress
        progress = None if handler is None else _Progress(next(self._tokens), handler)
        try:
            said = await self._result("tools/call", params, timeout, repeatable=repeatable, progress=progress)
        except HeaderMismatch:
            if not self._upstream.modern:
                raise
            # The headers follow the tool's schema, so the schema must have changed (basic/transports).
            await self.list_tools(fresh=True)
            said = await self._result("tools/call", params, timeout, repeatable=repeatable, progress=progress)
        except MissingCapability as missing:
            if EXTENSION not in missing.extensions:
                raise
            task = await self.start_task(name, arguments, timeout=timeout)
            return await task.result(timeout=self._limit(timeout), returns=returns, raise_on_error=raise_on_error)
        return await self._read(name, said, returns, raise_on_error, timeout)

    async def _read(
        self, tool: str, said: ReceivedToolResult, returns: Any, raise_on_error: bool, timeout: float | None = None
    ) -> CallToolResult[Any]:
        """A tool's result, as its caller wants it."""
        promised = self._promises.get(tool)
        if promised is None and said.structured_content is not UNSET and (self._validate or returns is None):
            promised = await self._promised(tool, timeout)
        read = partial(results.read, said, returns, name=f"{self._name}: {tool}", validate=self._validate)
        try:
            result = read(promised)
        except BrokenPromise:
            # The server may have been upgraded since its tools were listed.
            self._forget_promises()
            result = read(await self._promised(tool, timeout, fresh=True) or promised)
        if result.is_error and raise_on_error:
            raise ToolError(result.text)
        return result

    # Tasks

    async def start_task(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> RemoteTask:
        """Call a tool that takes long, as a task: `task.result()` waits for it, `task.id` finds it again later.

        `ttl`: for how many seconds it should be kept; 2026-07-28 leaves that to the server. Where the server has no
        tasks, or the tool does not run as one, it is a plain call, and the task is over when it is returned. `meta`:
        what else the `_meta` of the call says.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if meta:
            params["_meta"] = dict(meta)
        if self.is_modern:
            params["_meta"] = {**(meta or {}), **self._declaring(EXTENSION)}
        elif await self._task_support(name, timeout) in ("optional", "required"):
            params["task"] = {} if ttl is None else {"ttl": int(ttl * 1000)}
        said = await self._rounds("tools/call", params, timeout, None, ("complete", "task"))
        return handle(self, name, said)

    async def _task_support(self, name: str, timeout: float | None) -> str:
        """2025-11-25, basic/utilities/tasks, Tool-Level Negotiation: the server has to have them, and then the tool."""
        if self.server_capabilities.tasks is None or self.revision != V2025_11_25:
            return "forbidden"
        if not declares(self.server_capabilities, TASK_CALLS):
            return "forbidden"
        promised = await self._promised(name, timeout)
        return "forbidden" if promised is None else promised.task_support

    def task(self, id: str, tool: str = "") -> RemoteTask:
        """A task that was started before, perhaps by another process."""
        return RemoteTask(self, id, tool)

    def _declaring(self, extension: str) -> dict[str, Any]:
        """The `_meta` of a request that declares an extension besides what is always declared."""
        return {CLIENT_CAPABILITIES: self._upstream.identity.able_with(extension)}

    def _news_of(self, task: str) -> asyncio.Event:
        """Is set when a task is heard of."""
        if len(self._news) >= MOST_FOLLOWED:
            self._news.clear()
        return self._news.setdefault(task, asyncio.Event())

    async def _promised(self, name: str, timeout: float | None = None, *, fresh: bool = False) -> Promise | None:
        """What a tool has promised. To know that, it has to be found among the tools, page by page."""
        if name not in self._promises and not self._knows_all:
            try:
                async with asyncio.timeout(self._limit(timeout)):
                    tool = await self._started_over(lambda: self._find_tool(name, fresh=fresh))
            except (Error, TimeoutError) as failure:
                log.debug("%s: what its tools promise is not known: %s", self._name, failure)
                tool = None
            if tool is None:
                self._knows_all = True
            else:
                self._promises[name] = results.promise(tool)
        return self._promises.get(name)

    async def _find_tool(self, name: str, *, fresh: bool) -> Tool | None:
        """Of the tools before it only the names are read."""
        async for page, said in self._pages("tools/list", _NamesPage, fresh=fresh):
            for at, one in enumerate(page.tools):
                if one.name == name:
                    found = self._decoded("tools/list", self._decoded("tools/list", said, _RawPage).tools[at], Tool)
                    return next(iter(self._upstream.link.usable_tools([found])), None)
        return None

    # Lists: `list_…` gives all, `iter_…` gives them as they come

    async def _pages(self, method: str, kind: Any = None, *, fresh: bool = False) -> AsyncIterator[tuple[Any, Raw]]:
        """Every page, as its method has it or as this kind, and undecoded. Only a missing cursor ends a list; an empty
        one is a cursor."""
        params: dict[str, Any] = {}
        seen: set[str] = set()
        empty = 0
        while True:
            said = await self._page(method, params, fresh=fresh)
            if len(bytes(said)) > LONGEST_PAGE:
                raise ProtocolError(f"{self._name}: {method} gave more than {LONGEST_PAGE} bytes at once")
            page = self._decoded(method, said, kind)
            yield page, said
            cursor = page.next_cursor
            if cursor is UNSET or cursor is None:
                return
            empty = 0 if any(isinstance(one, list) and one for one in astuple(page)) else empty + 1
            if cursor in seen or empty > MOST_EMPTY:
                what = "the same cursor again and again" if cursor in seen else "one empty page after the other"
                raise ProtocolError(f"{self._name}: {method} gives {what}")
            if len(seen) < MOST_PAGES:
                seen.add(cursor)
            params = {"cursor": cursor}

    async def _page(self, method: str, params: dict[str, Any], *, fresh: bool) -> Raw:
        try:
            return await self._cached_raw(method, params, fresh=fresh)
        except InvalidParams:
            # The page before may have been kept for longer than its cursor was good (server/utilities/caching).
            if params:
                self._cache.forget(method)
            raise

    async def _started_over(self, look: Callable[[], Awaitable[T]]) -> T:
        """What looking through a list gives; once more from its beginning, if a page has led nowhere."""
        changes = self._cache.changes
        try:
            return await look()
        except InvalidParams:
            if self._cache.changes == changes:
                raise
            return await look()

    async def _all(self, method: str, member: str, *, fresh: bool = False) -> list[Any]:
        return await self._started_over(lambda: self._gathered(method, member, fresh=fresh))

    async def _gathered(self, method: str, member: str, *, fresh: bool) -> list[Any]:
        found: list[Any] = []
        pages = total = 0
        async for page, said in self._pages(method, fresh=fresh):
            found += self._entries(method, page, member)
            pages += 1
            total += len(bytes(said))
            if len(found) > MOST_LISTED or total > LONGEST_LIST or pages > MOST_PAGES:
                raise ProtocolError(
                    f"{self._name}: {method} has no end: {len(found)} entries, and more to come. Use the iterator."
                )
        return found

    async def _each(self, method: str, member: str) -> AsyncIterator[Any]:
        async for page, _ in self._pages(method):
            for one in self._entries(method, page, member):
                yield one

    def _entries(self, method: str, page: Any, member: str) -> list[Any]:
        found: list[Any] = getattr(page, member)
        return self._upstream.link.usable_tools(found) if method == "tools/list" else found

    async def list_tools(self, *, fresh: bool = False) -> list[Tool]:
        """All tools. `fresh`: not from what was kept."""
        tools = await self._all("tools/list", "tools", fresh=fresh)
        self._promises, self._knows_all = {tool.name: results.promise(tool) for tool in tools}, True
        return tools

    async def list_resources(self) -> list[Resource]:
        return await self._all("resources/list", "resources")

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return await self._all("resources/templates/list", "resource_templates")

    async def list_prompts(self) -> list[Prompt]:
        return await self._all("prompts/list", "prompts")

    def iter_tools(self) -> AsyncIterator[Tool]:
        return self._each("tools/list", "tools")

    def iter_resources(self) -> AsyncIterator[Resource]:
        return self._each("resources/list", "resources")

    def iter_resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        return self._each("resources/templates/list", "resource_templates")

    def iter_prompts(self) -> AsyncIterator[Prompt]:
        return self._each("prompts/list", "prompts")

    # The rest, one method for each thing

    async def ping(self) -> None:
        """Whether the server answers. 2026-07-28 has no ping, so there it is asked who it is."""
        await self._result("server/discover" if self._upstream.modern else "ping", {})

    async def read_resource(self, uri: str) -> list[Contents]:
        said = await self._cached("resources/read", {"uri": uri})
        return said.contents  # type: ignore[no-any-return]

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> GetPromptResult:
        said = await self._result("prompts/get", {"name": name, "arguments": arguments or {}})
        return said  # type: ignore[no-any-return]

    async def complete(
        self, ref: dict[str, str], argument: str, value: str, context: dict[str, str] | None = None
    ) -> Completion:
        """Values for an argument of `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`.

        `context`: the arguments that are known already. Before 2025-06-18 there is no way to say it.
        """
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context is not None and self.revision >= V2025_06_18:
            params["context"] = {"arguments": context}
        said = await self._result("completion/complete", params)
        return said.completion  # type: ignore[no-any-return]

    async def set_log_level(self, level: LogLevel) -> None:
        """How much the server should say: for the session, or with each request from now on."""
        self._upstream.set_log_level(level)
        if not self._upstream.modern:
            await self._result("logging/setLevel", {"level": level})

    async def subscribe(self, uri: str) -> None:
        if self._upstream.modern:
            raise UsageError("2026-07-28 has no resources/subscribe: use `listen`")
        self._subscribed[uri] = self._subscribed.get(uri, 0) + 1
        if self._subscribed[uri] > 1:
            return
        try:
            await self._result("resources/subscribe", {"uri": uri})
        except BaseException:
            self._release(uri)
            raise

    async def unsubscribe(self, uri: str) -> None:
        if self._upstream.modern:
            raise UsageError("2026-07-28 has no resources/unsubscribe: leave `listen`")
        if self._release(uri):
            await self._result("resources/unsubscribe", {"uri": uri})

    def _release(self, uri: str) -> bool:
        """Whether that was the last subscription of this client."""
        left = self._subscribed.pop(uri, 1) - 1
        if left > 0:
            self._subscribed[uri] = left
        return left <= 0

    async def _unsubscribe_quietly(self, uri: str) -> None:
        """Unsubscribe if the server is there to be told; it is not started again for it, nor waited for long."""
        if self._release(uri) and not self._upstream.modern and not self._upstream.link.closed:
            try:
                await self._result("resources/unsubscribe", {"uri": uri}, GOODBYE_SECONDS)
            except Error as failure:
                log.debug("%s: %s", self._name, failure)

    @explained
    def listen(
        self,
        wanted: Filter | None = None,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> ChangeListener:
        """Hear of changes: `async with client.listen(tools=True) as changes: async for change in changes: …`."""
        wanted = wanted or Filter(tools, prompts, resources, list(uris) or None)
        return ChangeListener(
            self._upstream,
            wanted,
            self._listeners,
            self._notice,
            self.subscribe,
            self._unsubscribe_quietly,
            self.timeout,
        )
