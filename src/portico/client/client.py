"""The Client: talks to any Handler in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.client.inputs import ElicitationHandler, Inputs, Roots, SamplingHandler
from portico.rpc.call import Call, Handler, hand_over
from portico.rpc.channel import Channel
from portico.transport.memory import Memory
from portico.transport.process import Process
from portico.wire import meta as metas
from portico.wire import notices
from portico.wire.completion import Completion
from portico.wire.content import Contents, EmptyResult, TextContent
from portico.wire.errors import (
    Closed,
    HeaderMismatch,
    MissingCapability,
    ProtocolError,
    ToolError,
    UnsupportedVersion,
    UsageError,
)
from portico.wire.inputs import InputRequiredResult
from portico.wire.meta import Implementation, LogLevel, ServerCapabilities
from portico.wire.methods import METHODS, plainly
from portico.wire.prompts import GetPromptResult, Prompt
from portico.wire.resources import Resource, ResourceTemplate
from portico.wire.revisions import HANDSHAKE, LATEST, MODERN, NEWEST_HANDSHAKE, Revision
from portico.wire.subscriptions import Filter
from portico.wire.tools import WRAPPED, ReceivedToolResult, Tool

MOST_ROUNDS = 10
# How long a server that may never have heard of the question is waited for.
PROBE = 10.0
# -32020 to -32022 are only said by servers that know 2026-07-28.
MODERN_CODES = frozenset({HeaderMismatch.code, MissingCapability.code, UnsupportedVersion.code})

LogHandler = Callable[[notices.MessageParams], Any]
ProgressHandler = Callable[[float, float | None, str | None], Any]
MessageHandler = Callable[[str, Raw], Any]


class Link(Protocol):
    """A Channel to a server, however it is reached."""

    channel: Channel

    async def close(self) -> None: ...


def is_command(target: Any) -> bool:
    return isinstance(target, list | tuple) and bool(target) and all(isinstance(word, str) for word in target)


class CallToolResult(Struct):
    """What a tool gave: blocks for a model, `structured` for programs."""

    content: list[Any]
    structured: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None
    # None may be what the tool gave.
    has_structured: bool = False
    wrapped: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, TextContent))

    @property
    def data(self) -> Any:
        """The value itself: the structured one, taken out of the object older revisions put around it, or the text."""
        if not self.has_structured:
            return self.text or None
        return self.structured["result"] if self.wrapped else self.structured


class _Kind(Struct):
    # A missing resultType counts as "complete": older servers do not say it.
    result_type: str = msgspec.field(default="complete", name="resultType")


def _kind(method: str, said: Raw) -> str:
    try:
        return msgspec.json.decode(said, type=_Kind).result_type
    except msgspec.DecodeError as failure:
        raise ProtocolError(f"Invalid result of {method}: {plainly(failure)}") from None


class Client:
    """`async with Client(server) as client`: a Server or any Handler in this process, or the command of one.

    The revision may be chosen, to see a server as an older client does. Otherwise it is the newest that both know.
    """

    def __init__(
        self,
        target: Handler | Sequence[str],
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
        principal: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        if not callable(target) and not is_command(target):
            raise UsageError(f"cannot talk to {target!r}: not a Server, not a Handler, and not a command as a list")
        self.revision = revision or LATEST
        self._pinned = revision is not None
        self._env, self._cwd = env, cwd
        self.info = Implementation(name, version)
        self.inputs = Inputs(sampling_handler, elicitation_handler, roots)
        self.timeout = timeout
        self.server_info: Implementation | None = None
        self.server_capabilities = ServerCapabilities()
        self.instructions: str | None = None
        self._target = target
        self._log_handler = log_handler
        self._log_level = log_level
        self._progress = progress_handler
        self._messages = message_handler
        self._principal = principal
        self._tokens: dict[int | str, ProgressHandler] = {}
        self._last_token = 0
        self._acknowledged: dict[str, Callable[[], None]] = {}
        self._wrapping: set[str] | None = None
        self._stack = AsyncExitStack()
        self._link: Link | None = None

    # Opening and closing

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            lifespan = getattr(self._target, "lifespan", None)
            if lifespan is not None:
                await stack.enter_async_context(lifespan())
            stack.push_async_callback(self._disconnect)
            await self._connect()
            await self._greet()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _connect(self) -> None:
        if callable(self._target):
            self._link = Memory(self._target, self._answer, principal=self._principal)
            return
        process = Process(self._target, self._answer, env=self._env, cwd=self._cwd)
        self._link = process
        await process.start()

    async def _disconnect(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _greet(self) -> None:
        """Which revision it is. A child we know nothing of is asked in the newest way first (basic/lifecycle)."""
        if self.revision in HANDSHAKE:
            await self._initialize()
        elif self._pinned or callable(self._target):
            await self._discover()
        elif not await self._is_modern():
            self.revision = NEWEST_HANDSHAKE
            await self._initialize()

    async def _is_modern(self) -> bool:
        """Servers from before answer the question with all kinds of errors, with silence, or by ending."""
        try:
            async with asyncio.timeout(PROBE):
                await self._discover()
        except ProtocolError as refusal:
            if refusal.code in MODERN_CODES:
                raise
            return False
        except Closed:
            await self._disconnect()
            await self._connect()
            return False
        except TimeoutError:
            return False
        return True

    async def _initialize(self) -> None:
        params = {
            "protocolVersion": self.revision,
            "capabilities": self.inputs.capabilities,
            "clientInfo": self.info,
        }
        said = await self._result("initialize", params)
        self.revision = said.protocol_version
        self.server_info, self.server_capabilities = said.server_info, said.capabilities
        self.instructions = said.instructions
        self.notify(notices.INITIALIZED)
        if self._log_level is not None:
            await self.set_log_level(self._log_level)

    async def _discover(self) -> None:
        said = await self._result("server/discover", {})
        self.server_capabilities, self.instructions = said.capabilities, said.instructions
        if said.meta is not UNSET and metas.SERVER_INFO in said.meta:
            self.server_info = msgspec.convert(said.meta[metas.SERVER_INFO], Implementation)

    # What the server says to us

    async def _answer(self, call: Call) -> Any:
        await hand_over(call)
        if call.id is None:
            return self._heard(call)
        if call.method == "ping":
            return EmptyResult()
        return await self.inputs.answer(call.method, call.params)

    def _heard(self, call: Call) -> None:
        if call.method == notices.PROGRESS:
            said = METHODS[call.method].decode(call.params)
            handler = self._tokens.get(said.progress_token)
            if handler is not None:
                handler(said.progress, said.total, said.message)
        elif call.method == notices.MESSAGE and self._log_handler is not None:
            self._log_handler(METHODS[call.method].decode(call.params))
        elif call.method == notices.TOOLS_CHANGED:
            self._wrapping = None
        elif call.method == notices.ACKNOWLEDGED:
            for acknowledge in self._acknowledged.values():
                acknowledge()
        if self._messages is not None:
            self._messages(call.method, call.params)

    # What we say to it

    def notify(self, method: str, params: Any = None) -> None:
        self._open.channel.emit(method, params)

    async def request(self, method: str, params: dict[str, Any], *, timeout: float | None = None) -> Raw:
        """Any request, answered with the undecoded result. Questions of the server are answered on the way."""
        params = self._with_meta(params)
        said = await self._send(method, params, timeout)
        for _ in range(MOST_ROUNDS):
            kind = _kind(method, said)
            if kind == "complete":
                return said
            if kind != "input_required":
                raise ProtocolError(f"{method} gave a result of an unknown kind: {kind}")
            answers, state = await self._answered(said)
            again = {**params, "inputResponses": answers}
            if state is not UNSET:
                again["requestState"] = state
            said = await self._send(method, again, timeout)
        raise ProtocolError(f"{method} still asks after {MOST_ROUNDS} rounds")

    async def _answered(self, said: Raw) -> tuple[dict[str, Any], Any]:
        asked = msgspec.json.decode(said, type=InputRequiredResult)
        questions = {} if asked.input_requests is UNSET else asked.input_requests
        answers = {
            key: await self.inputs.answer(one.method, Raw(msgspec.json.encode(one.params or {})))
            for key, one in questions.items()
        }
        return answers, asked.request_state

    async def _send(self, method: str, params: dict[str, Any], timeout: float | None) -> Raw:
        return await self._open.channel.request(method, params, timeout=timeout or self.timeout)

    async def _result(self, method: str, params: dict[str, Any], timeout: float | None = None) -> Any:
        said = await self.request(method, params, timeout=timeout)
        try:
            return msgspec.json.decode(said, type=METHODS[method].result)
        except msgspec.DecodeError as failure:
            raise ProtocolError(f"Invalid result of {method}: {plainly(failure)}") from None

    def _with_meta(self, params: dict[str, Any]) -> dict[str, Any]:
        """2026-07-28 wants to know everything each time; the others know it from the handshake."""
        if self.revision < MODERN:
            return params
        meta: dict[str, Any] = {
            metas.PROTOCOL_VERSION: self.revision,
            metas.CLIENT_CAPABILITIES: self.inputs.capabilities,
            metas.CLIENT_INFO: self.info,
        }
        if self._log_level is not None:
            meta[metas.LOG_LEVEL] = self._log_level
        return {**params, "_meta": {**meta, **params.get("_meta", {})}}

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise UsageError("the client is not open: use it inside `async with`")
        return self._link

    # One method for each thing

    async def ping(self) -> None:
        """Whether the server answers. 2026-07-28 has no ping, so there it is asked who it is."""
        await self._result("ping" if self.revision < MODERN else "server/discover", {})

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressHandler | None = None,
        raise_on_error: bool = True,
    ) -> CallToolResult:
        """Call a tool. What it refuses is raised as ToolError, unless `raise_on_error` is off."""
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        async with self._progressing(params, on_progress or self._progress):
            said: ReceivedToolResult = await self._result("tools/call", params, timeout)
        given = said.structured_content is not UNSET
        result = CallToolResult(
            said.content,
            said.structured_content if given else None,
            said.is_error,
            None if said.meta is UNSET else said.meta,
            given,
            given and await self._wraps(name, said.structured_content),
        )
        if result.is_error and raise_on_error:
            raise ToolError(result.text)
        return result

    async def _wraps(self, tool: str, structured: Any) -> bool:
        """Whether `{"result": …}` is only the wrapping of a value that is no object: the tool's schema says so."""
        if self.revision >= MODERN or not isinstance(structured, dict) or structured.keys() != {"result"}:
            return False
        if self._wrapping is None:
            try:
                listed = await self.list_tools()
            except ProtocolError:
                return False
            self._wrapping = {one.name for one in listed if (one.output_schema or {}).get(WRAPPED)}
        return tool in self._wrapping

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

    async def _all(self, method: str, member: str) -> list[Any]:
        """Every page. Only a missing cursor ends a list; an empty one is a cursor."""
        found: list[Any] = []
        params: dict[str, Any] = {}
        while True:
            page = await self._result(method, params)
            found.extend(getattr(page, member))
            if page.next_cursor is UNSET or page.next_cursor is None:
                return found
            params = {"cursor": page.next_cursor}

    async def list_tools(self) -> list[Tool]:
        return await self._all("tools/list", "tools")

    async def list_resources(self) -> list[Resource]:
        return await self._all("resources/list", "resources")

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return await self._all("resources/templates/list", "resource_templates")

    async def list_prompts(self) -> list[Prompt]:
        return await self._all("prompts/list", "prompts")

    async def read_resource(self, uri: str) -> list[Contents]:
        said = await self._result("resources/read", {"uri": uri})
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
        self._log_level = level
        if self.revision < MODERN:
            await self._result("logging/setLevel", {"level": level})

    async def subscribe(self, uri: str) -> None:
        if self.revision >= MODERN:
            raise UsageError("2026-07-28 has no resources/subscribe: use `listen`")
        await self._result("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        if self.revision >= MODERN:
            raise UsageError("2026-07-28 has no resources/unsubscribe: leave `listen`")
        await self._result("resources/unsubscribe", {"uri": uri})

    @asynccontextmanager
    async def listen(self, wanted: Filter) -> AsyncIterator[None]:
        """Hear of changes for as long as the block lasts; they go to the `message_handler`. 2026-07-28 only."""
        acknowledged = asyncio.Event()
        key = str(id(acknowledged))
        self._acknowledged[key] = acknowledged.set
        params = self._with_meta({"notifications": wanted})
        task = asyncio.ensure_future(self._open.channel.request("subscriptions/listen", params))
        waiting = asyncio.ensure_future(acknowledged.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            yield
        finally:
            del self._acknowledged[key]
            waiting.cancel()
            task.cancel()
            await asyncio.wait({task, waiting})
