"""The Client: talks to a server, wherever it is and whatever revision it speaks."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import UNSET, Raw, Struct

from portico._lazy import load_module
from portico.client import results
from portico.client.cache import CACHEABLE, Cache
from portico.client.inputs import ElicitationHandler, Inputs, Roots, SamplingHandler
from portico.client.listen import Listener
from portico.client.results import CallToolResult, Promise
from portico.client.tasks import Task, handle
from portico.rpc.call import Call, Handler
from portico.transport.greeting import ClientIdentity
from portico.transport.http_client.pool import Pool
from portico.transport.http_client.streamable import Sender
from portico.transport.link import Link, Trace
from portico.transport.targets import Here, Target, target_of
from portico.transport.upstream import Upstream
from portico.wire import notices
from portico.wire.completion import Completion
from portico.wire.content import Contents, EmptyResult
from portico.wire.errors import Error, HeaderMismatch, InvalidParams, ProtocolError, ToolError, UsageError
from portico.wire.inputs import InputRequest, InputRequiredResult
from portico.wire.meta import CLIENT_CAPABILITIES, Implementation, LogLevel, ServerCapabilities
from portico.wire.methods import ASKABLE, METHODS, plainly
from portico.wire.prompts import GetPromptResult, Prompt
from portico.wire.resources import Resource, ResourceTemplate
from portico.wire.revisions import REVISIONS, Revision
from portico.wire.subscriptions import Filter
from portico.wire.tasks import EXTENSION
from portico.wire.tools import Tool

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


class _Kind(Struct):
    # A missing resultType counts as "complete": older servers do not say it.
    result_type: str = msgspec.field(default="complete", name="resultType")


def _sender(auth: Auth, target: Target, browser: Visitor | None) -> Sender | None:
    # All that OAuth takes is imported when somebody has a use for it.
    if auth is None:
        return None
    found: Sender | None = load_module("portico.client.authorization").sender_for(auth, target, browser)
    return found


class _Incoming:
    """What the server says to a client: a Handler for its notifications and its questions."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        """Notifications are taken at once, so that they are not overtaken by the response that follows them."""
        client = self._client
        if call.id is None:
            waiting = client._heard(call)
            return client._wait_for(waiting) if waiting else None
        return EmptyResult() if call.method == "ping" else client.inputs.answer(call.method, call.params)


class Client:
    """`async with Client(target) as client`.

    The target is a URL, a command (a list of words, or one text), a `module:object`, an entry of an mcp.json, a Server
    or any Handler. The revision may be chosen, to see a server as an older client does; otherwise it is the newest that
    both know.
    """

    def __init__(
        self,
        target: Handler | Sequence[str] | str | Mapping[str, Any],
        *,
        revision: Revision | None = None,
        name: str = "portico",
        version: str = "0",
        sampling_handler: SamplingHandler | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        roots: Roots | None = None,
        log_handler: LogHandler | None = None,
        log_level: LogLevel | None = None,
        progress_handler: ProgressHandler | None = None,
        message_handler: MessageHandler | None = None,
        timeout: float | None = 60.0,
        retries: int = 4,
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
        self._target = target_of(target, env=env, cwd=cwd, headers=headers)
        self.inputs = Inputs(sampling_handler, elicitation_handler, roots)
        able = self.inputs.capabilities
        able = msgspec.structs.replace(able, extensions=extensions) if extensions else able
        self._identity = ClientIdentity(Implementation(name, version), able, log_level)
        self.timeout = timeout
        self._validate = validate
        self._connection = Upstream(
            self._target,
            _Incoming(self),
            self._identity,
            revision=revision,
            timeout=timeout,
            retries=retries,
            auth=_sender(auth, self._target, browser),
            pool=lambda: Pool(tls),
            principal=principal,
            trace=trace,
            reopened=self._reopened,
            gap=self._gap,
        )
        self._log_handler = log_handler
        self._progress = progress_handler
        self._messages = message_handler
        self._tokens: dict[int | str, ProgressHandler] = {}
        self._last_token = 0
        self._handling = 0
        self._listeners: set[Listener] = set()
        self._news: dict[str, asyncio.Event] = {}
        self._subscribed: dict[str, int] = {}
        self._cache = Cache(time.monotonic)
        # What the tools promise; None until somebody has looked.
        self._promises: dict[str, Promise] | None = None
        self._host: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    # Who is there

    @property
    def revision(self) -> Revision:
        return self._connection.greeting.revision

    @property
    def server_info(self) -> Implementation | None:
        return self._connection.greeting.server

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._connection.greeting.capabilities

    @property
    def instructions(self) -> str | None:
        return self._connection.greeting.instructions

    # Opening and closing, from any task

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        if self._connection.is_open:
            raise UsageError("the client is open already")
        await self._enter_lifespan()
        try:
            await self._connection.open()
            await self._tell_log_level()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for listener in list(self._listeners):
            await listener.close(polite=False)
        await self._connection.close()
        host, self._host = self._host, None
        if host is not None:
            self._leave.set()
            await host

    async def _enter_lifespan(self) -> None:
        """A server in this process begins and ends in a task of its own, so that we may be closed from another one."""
        lifespan = getattr(self._target.handler, "lifespan", None) if isinstance(self._target, Here) else None
        if lifespan is None:
            return
        self._leave.clear()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def host() -> None:
            try:
                async with lifespan():
                    ready.set_result(None)
                    await self._leave.wait()
            except BaseException as failure:
                if ready.done():
                    raise
                ready.set_exception(failure)

        self._host = asyncio.get_running_loop().create_task(host())
        try:
            await ready
        except BaseException:
            self._host = None
            raise

    async def _reopened(self) -> None:
        """The server is a new one, and does not know what we told the old one."""
        self._cache.clear()
        self._promises = None
        if not self._connection.modern:
            await self._tell_log_level()
            for uri in list(self._subscribed):
                try:
                    await self._result("resources/subscribe", {"uri": uri})
                except ProtocolError as failure:
                    log.warning("%s: %s is not subscribed to again: %s", self._name, uri[:200], failure)
        for listener in list(self._listeners):
            listener.reopened()

    def _gap(self) -> None:
        """Nothing was heard for a while, or nothing will be until somebody asks."""
        self._promises = None
        for listener in list(self._listeners):
            listener.lost()

    async def _tell_log_level(self) -> None:
        """What was wished for at the start. A server that has no logs is not asked for any."""
        if self._identity.log_level is not None and self.server_capabilities.logging is not None:
            await self.set_log_level(self._identity.log_level)

    # What the server says to us

    def _heard(self, call: Call) -> list[Any]:
        """Take a notice. What handlers want to be waited for is returned."""
        told = []
        if call.method == notices.PROGRESS:
            said = METHODS[call.method].decode(call.params)
            handler = self._tokens.get(said.progress_token)
            told += [handler(said.progress, said.total, said.message)] if handler is not None else []
        elif call.method == notices.MESSAGE and self._log_handler is not None:
            told.append(self._log_handler(METHODS[call.method].decode(call.params)))
        elif call.method == notices.TOOLS_CHANGED:
            self._promises = None
        elif call.method in (notices.TASK, notices.TASK_STATUS):
            news = self._news.get(METHODS[call.method].decode(call.params).task_id)
            if news is not None:
                news.set()
        self._heed(call)
        for listener in list(self._listeners):
            listener.hear(call.method, call.params)
        if self._messages is not None:
            told.append(self._messages(call.method, call.params))
        return [one for one in told if isawaitable(one)]

    async def _wait_for(self, waiting: list[Any]) -> None:
        """Handlers may be slow, and a server may have much to say: what cannot be kept up with is not heard."""
        if self._handling >= MOST_HANDLED:
            for one in waiting:
                if isinstance(one, Coroutine):
                    one.close()
            return
        self._handling += 1
        try:
            for one in waiting:
                await one
        finally:
            self._handling -= 1

    def _heed(self, call: Call) -> None:
        uri = METHODS[call.method].decode(call.params).uri if call.method == notices.RESOURCE_UPDATED else None
        self._cache.heed(call.method, uri)

    # What we say to it

    async def notify(self, method: str, params: Any = None) -> None:
        link = await self._connection.alive()
        await link.notify(method, params)

    async def request(
        self, method: str, params: dict[str, Any], *, timeout: float | None = None, repeatable: bool | None = None
    ) -> Raw:
        """Any request, answered with the undecoded result. Questions of the server are answered on the way.

        `repeatable`: it is asked again when the connection breaks. Everything is, unless it is said, but a tool's call.
        """
        return await self._rounds(method, params, timeout, repeatable)

    async def _rounds(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None,
        repeatable: bool | None,
        wanted: Collection[str] = ("complete",),
    ) -> Raw:
        repeatable = method != "tools/call" if repeatable is None else repeatable
        timeout = self.timeout if timeout is None else None if timeout == math.inf else timeout
        asked = params
        for _ in range(MOST_ROUNDS + 1):
            said = await self._ask(method, asked, timeout, repeatable)
            kind = self._kind(method, said)
            if kind in wanted:
                return said
            if kind != "input_required" or method not in ASKABLE:
                raise ProtocolError(f"{self._name}: {method} gave a result of an unknown kind: {kind[:100]}")
            # Each round carries its own answers only; what came before is in the state, which is the server's affair.
            asked = {**params, **await self._answers(method, said)}
        raise ProtocolError(f"{self._name}: {method} still asks after {MOST_ROUNDS} rounds")

    async def _ask(self, method: str, params: dict[str, Any], timeout: float | None, repeatable: bool) -> Raw:
        said = await self._connection.request(method, params, timeout=timeout, repeatable=repeatable)
        # A value takes two bytes there, and here thirty times as much.
        if len(bytes(said)) > 2 * MOST_VALUES and results.has_more_values(bytes(said), MOST_VALUES):
            raise ProtocolError(f"{self._name}: {method} gave more than {MOST_VALUES} values at once")
        return said

    def _kind(self, method: str, said: Raw) -> str:
        try:
            return msgspec.json.decode(said, type=_Kind).result_type
        except (msgspec.DecodeError, RecursionError) as failure:
            raise self._invalid(method, failure) from None

    def _invalid(self, method: str, failure: Exception) -> ProtocolError:
        return ProtocolError(f"{self._name} gave an invalid result of {method}: {plainly(failure)}")

    @property
    def _name(self) -> str:
        name = self._connection.name
        return name if name != Link.name or self.server_info is None else self.server_info.name[:100]

    async def _answers(self, method: str, said: Raw) -> dict[str, Any]:
        try:
            asked = msgspec.json.decode(said, type=InputRequiredResult)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise self._invalid(method, failure) from None
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
        if not self.inputs.can_answer(asked.method):
            raise ProtocolError(f"{self._name}: {method} asks for {asked.method[:100]}, which nobody here answers")
        try:
            return await self.inputs.answer(asked.method, Raw(msgspec.json.encode(asked.params or {})))
        except (InvalidParams, RecursionError) as failure:
            raise ProtocolError(f"{self._name}: {method} asks what cannot be read: {failure}") from None

    async def _result(
        self, method: str, params: dict[str, Any], timeout: float | None = None, *, repeatable: bool | None = None
    ) -> Any:
        return self._decoded(method, await self.request(method, params, timeout=timeout, repeatable=repeatable))

    def _decoded(self, method: str, said: Raw) -> Any:
        try:
            return msgspec.json.decode(said, type=METHODS[method].result)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise self._invalid(method, failure) from None

    async def _cached(self, method: str, params: dict[str, Any], *, fresh: bool = False) -> Any:
        return self._decoded(method, await self._kept(method, params, fresh=fresh))

    async def _kept(self, method: str, params: dict[str, Any], *, fresh: bool = False) -> Raw:
        """What may be kept, undecoded. Answers that questions led to are not."""
        if not self._connection.modern or method not in CACHEABLE:
            return await self.request(method, params)
        said = None if fresh else self._cache.get(method, params, self._connection.link.identity)
        if said is None:
            since = self._cache.changes
            said = await self._ask(method, params, self.timeout, True)
            if self._kind(method, said) != "complete":
                return await self.request(method, params)
            self._cache.put(method, params, self._connection.link.identity, said, since)
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
        returns: Any = None,
        repeatable: bool | None = None,
    ) -> CallToolResult:
        """Call a tool. What it refuses is raised as ToolError, unless `raise_on_error` is off.

        `returns`: the type that `result.data` is to have. `repeatable`: it may be called again when the connection
        breaks in the middle; if it is not said, tools that say so of themselves are.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if repeatable is None:
            known = (self._promises or {}).get(name)
            repeatable = known is not None and known.repeatable
        async with self._progressing(params, on_progress or self._progress):
            try:
                said = await self._result("tools/call", params, timeout, repeatable=repeatable)
            except HeaderMismatch:
                if not self._connection.modern:
                    raise
                # The headers follow the tool's schema, so the schema must have changed (basic/transports).
                await self.list_tools(fresh=True)
                said = await self._result("tools/call", params, timeout, repeatable=repeatable)
        promised = None
        if said.structured_content is not UNSET or (self._promises is not None and not said.is_error):
            promised = await self._promised(name, timeout)
        result = results.read(said, returns, promised, f"{self._name}: {name}", validate=self._validate)
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
    ) -> Task:
        """Call a tool that takes long, as a task: `task.result()` waits for it, `task.id` finds it again later.

        `ttl`: for how many seconds it should be kept; 2026-07-28 leaves that to the server.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if self.is_modern:
            params["_meta"] = self._declaring(EXTENSION)
        else:
            params["task"] = {} if ttl is None else {"ttl": int(ttl * 1000)}
        said = await self._rounds("tools/call", params, timeout, None, ("complete", "task"))
        try:
            return handle(self, name, said)
        except msgspec.DecodeError as failure:
            raise self._invalid("tools/call", failure) from None

    def task(self, id: str, tool: str = "") -> Task:
        """A task that was started before, perhaps by another process."""
        return Task(self, id, tool)

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks 2026-07-28."""
        return self._connection.modern

    def _declaring(self, extension: str) -> dict[str, Any]:
        """The `_meta` of a request that declares an extension besides what is always declared."""
        able = self._identity.capabilities
        extensions = {**(able.extensions or {}), extension: {}}
        return {CLIENT_CAPABILITIES: msgspec.structs.replace(able, extensions=extensions)}

    def _news_of(self, task: str) -> asyncio.Event:
        """Is set when a task is heard of."""
        if len(self._news) >= MOST_FOLLOWED:
            self._news.clear()
        return self._news.setdefault(task, asyncio.Event())

    async def _read_result(self, tool: str, said: Raw, returns: Any = None) -> CallToolResult:
        """A tool's result, as `call_tool` reads it."""
        try:
            received = msgspec.json.decode(said, type=METHODS["tools/call"].result)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise self._invalid("tools/call", failure) from None
        promised = await self._promised(tool) if received.structured_content is not UNSET else None
        return results.read(received, returns, promised, f"{self._name}: {tool}", validate=self._validate)

    async def _promised(self, name: str, timeout: float | None = None) -> Promise | None:
        """What a tool has promised. To know that, the tools have to be listed once."""
        if self._promises is None:
            try:
                async with asyncio.timeout(self.timeout if timeout is None else timeout):
                    await self.list_tools()
            except (Error, TimeoutError) as failure:
                log.debug("%s: what its tools promise is not known: %s", self._name, failure)
                self._promises = {}
        return (self._promises or {}).get(name)

    @asynccontextmanager
    async def _progressing(self, params: dict[str, Any], handler: ProgressHandler | None) -> AsyncIterator[None]:
        if handler is None:
            yield
            return
        self._last_token += 1
        token = self._last_token
        params["_meta"] = {"progressToken": token}
        self._tokens[token] = handler
        try:
            yield
        finally:
            del self._tokens[token]

    # Lists: `list_…` gives all, `iter_…` gives them as they come

    async def _pages(self, method: str, member: str, *, fresh: bool = False) -> AsyncIterator[tuple[list[Any], int]]:
        """Every page. Only a missing cursor ends a list; an empty one is a cursor."""
        params: dict[str, Any] = {}
        seen: set[str] = set()
        empty = 0
        while True:
            said = await self._kept(method, params, fresh=fresh)
            size = len(bytes(said))
            if size > LONGEST_PAGE:
                raise ProtocolError(f"{self._name}: {method} gave more than {LONGEST_PAGE} bytes at once")
            page = self._decoded(method, said)
            found = getattr(page, member)
            yield (self._connection.link.learn(found) if method == "tools/list" else found), size
            cursor = page.next_cursor
            if cursor is UNSET or cursor is None:
                return
            empty = 0 if found else empty + 1
            if cursor in seen or empty > MOST_EMPTY:
                what = "the same cursor again and again" if cursor in seen else "one empty page after the other"
                raise ProtocolError(f"{self._name}: {method} gives {what}")
            if len(seen) < MOST_PAGES:
                seen.add(cursor)
            params = {"cursor": cursor}

    async def _all(self, method: str, member: str, *, fresh: bool = False) -> list[Any]:
        found: list[Any] = []
        pages = total = 0
        async for page, size in self._pages(method, member, fresh=fresh):
            found += page
            pages += 1
            total += size
            if len(found) > MOST_LISTED or total > LONGEST_LIST or pages > MOST_PAGES:
                raise ProtocolError(
                    f"{self._name}: {method} has no end: {len(found)} entries, and more to come. Use the iterator."
                )
        return found

    async def _each(self, method: str, member: str) -> AsyncIterator[Any]:
        async for page, _ in self._pages(method, member):
            for one in page:
                yield one

    async def list_tools(self, *, fresh: bool = False) -> list[Tool]:
        """All tools. `fresh`: not from what was kept."""
        tools = await self._all("tools/list", "tools", fresh=fresh)
        self._promises = {tool.name: results.promise(tool) for tool in tools}
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
        await self._result("server/discover" if self._connection.modern else "ping", {})

    async def read_resource(self, uri: str) -> list[Contents]:
        said = await self._cached("resources/read", {"uri": uri})
        return said.contents  # type: ignore[no-any-return]

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> GetPromptResult:
        said = await self._result("prompts/get", {"name": name, "arguments": arguments or {}})
        return said  # type: ignore[no-any-return]

    async def complete(
        self, ref: dict[str, str], argument: str, value: str, context: dict[str, str] | None = None
    ) -> Completion:
        """Values for an argument of `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`."""
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": context}
        said = await self._result("completion/complete", params)
        return said.completion  # type: ignore[no-any-return]

    async def set_log_level(self, level: LogLevel) -> None:
        """How much the server should say: for the session, or with each request from now on."""
        self._identity.log_level = level
        if not self._connection.modern:
            await self._result("logging/setLevel", {"level": level})

    async def subscribe(self, uri: str) -> None:
        if self._connection.modern:
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
        if self._connection.modern:
            raise UsageError("2026-07-28 has no resources/unsubscribe: leave `listen`")
        if self._release(uri):
            await self._result("resources/unsubscribe", {"uri": uri})

    def _release(self, uri: str) -> bool:
        """Whether nobody here is subscribed to it any more."""
        left = self._subscribed.pop(uri, 1) - 1
        if left > 0:
            self._subscribed[uri] = left
        return left <= 0

    async def _forsake(self, uri: str) -> None:
        """Unsubscribe, if there is anybody to tell; the server is not started again for it, nor waited for."""
        if self._release(uri) and not self._connection.modern and not self._connection.link.closed:
            try:
                await self._result("resources/unsubscribe", {"uri": uri}, GOODBYE_SECONDS)
            except Error as failure:
                log.debug("%s: %s", self._name, failure)

    def listen(
        self,
        wanted: Filter | None = None,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> Listener:
        """Hear of changes: `async with client.listen(tools=True) as changes: async for change in changes: …`."""
        wanted = wanted or Filter(tools, prompts, resources, list(uris) or None)
        return Listener(_Asking(self), wanted, self._listeners)


class _Asking:
    """What a Listener sees of its client."""

    def __init__(self, client: Client) -> None:
        self.subscribe, self.forsake = client.subscribe, client._forsake
        self.timeout = client.timeout
        self._connection = client._connection
        self.alive, self.dressed, self.bears = (
            self._connection.alive,
            self._connection.dressed,
            self._connection.bears,
        )
        self.declaring = client._declaring

    @property
    def modern(self) -> bool:
        return self._connection.modern
