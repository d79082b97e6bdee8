"""The service that bounds the results of a server's tools.

It wraps the methods that return tool results, so a server and a gateway share it, views and tool search obey it, and
other methods cost nothing. Nested calls, such as those of a script in code mode, return complete results: their reader
is a program.
"""

from __future__ import annotations

import logging
import os
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from types import CoroutineType
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, Meta, Raw, Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.jsonschema import SchemaError
from portico.jsonschema.validation import create_validator
from portico.protocol import jsonrpc
from portico.protocol.content import BlobResourceContents, TextContent, TextResourceContents
from portico.protocol.errors import InternalError, ResourceNotFound, ToolError
from portico.protocol.notifications import TASK_UPDATED
from portico.protocol.tasks import CreateTaskResult, DetailedTask, TaskHandle, TaskNotificationParams
from portico.protocol.tools import CallToolResult, Tool
from portico.protocol.versions import LATEST_PROTOCOL_VERSION
from portico.rpc.call import Call, RelayedReply
from portico.rpc.fair_queue import FairPlaces, get_caller_key
from portico.rpc.identity import client_network, principal_id
from portico.rpc.supervision import BackgroundTasks
from portico.rpc.visible_tools import ToolPage, VisibleTools
from portico.server.components.results import ToolResult
from portico.server.components.runtime import ThreadPool
from portico.server.context.current import CurrentCall
from portico.server.policy.interfaces import RESULTS_OWNER
from portico.server.registry.service import MethodHandler, Service
from portico.server.results.json_text import MAX_PATH_CHARS, ShortenOptions
from portico.server.results.reading import (
    MAX_ID_CHARS,
    MAX_OFFSET,
    MAX_PATTERN_CHARS,
    SCHEME,
    THREAD_BYTES,
    ReadRequest,
    parse_address,
    read_piece,
)
from portico.server.results.settings import (
    DEFAULT_MAX_TOKENS,
    MAX_RESULT_SIZE_CHARS,
    MAX_RESULT_SIZE_META_KEY,
    READ_RESULT_TOOL,
    RESULTS_META_KEY,
    ResultSettings,
    declares_bounding,
    parse_options,
)
from portico.server.results.shortening import (
    LargeResult,
    Link,
    Validate,
    is_within_budget,
    parse_result,
    shorten_result,
    to_parts,
)
from portico.server.results.storage import MAX_PARTS, MAX_RESULT_BYTES, Part, ResultStore, StoredResult, create_id
from portico.store.errors import StoreError
from portico.tokens import MAX_TOKENS_PER_BYTE

log = logging.getLogger("portico")

# Results above `THREAD_BYTES` that are processed at the same time, in all and of one caller, and that wait for that.
MAX_CONCURRENT_LARGE_RESULTS, MAX_CONCURRENT_LARGE_RESULTS_PER_CALLER = 2, 1
MAX_WAITING_LARGE_RESULTS = 1_000
LARGE_RESULT_WAIT_SECONDS = 300.0
# `resources/read` has no paging.
MAX_RESOURCE_BYTES = 8 * 1024 * 1024
# Tools of running tasks that are remembered, to find their output schemas.
MAX_REMEMBERED_TASKS = 10_000
MAX_TASK_HANDLE_BYTES = 4096
# Clients that accept the size of results that a tool declares.
_HONOURING_CLIENTS = ("claude-code",)

_UNKNOWN = "Unknown or expired result {}. Call the tool that returned it again."


class _BoundedTool(Struct, rename="camel"):
    name: str = ""
    output_schema: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")


_tool_decoder = msgspec.json.Decoder(_BoundedTool)


class Prepared(Struct):
    """A result above its budget, and what is stored of it."""

    result: LargeResult
    parts: list[Part]
    id: str


class ResultLimits(Service):
    """Bounds the results of a server's tools: `server.add(ResultLimits(max_tokens=20_000))`.

    A larger result is shortened, its rest is summarized, and a link leads to the complete result, which the tool
    `read_result` reads in pieces.

    * **max_tokens** – the budget of a result in estimated tokens; 0 for no limit.
    * **tools**, **clients** – budgets by tool (patterns of `owner.name`) and by client name; 0 for no limit.
    * **max_age** – seconds for which complete results are stored.
    * **max_results_per_caller**, **max_bytes_per_caller**, **max_bytes** – limits of the stored results.
    """

    name = RESULTS_OWNER
    internal = True
    outermost = True

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS, **options: Any) -> None:
        super().__init__()
        self._server: Any = None
        # Budgets of upstreams by alias; a gateway has them.
        self.upstream_tokens: Callable[[], Mapping[str, int | None]] = dict
        self.settings = ResultSettings()
        self._store = ResultStore(lambda: None if self._server is None else self._server.store, self.settings.storage)
        self.configure(parse_options({"max_tokens": max_tokens, **options}))
        self._large = _create_slots()
        self._threads = ThreadPool(MAX_CONCURRENT_LARGE_RESULTS)
        # Sessions without an id of their own, such as those on stdio.
        self._connections: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._task_tools: LruCache[str, str] = LruCache(MAX_REMEMBERED_TASKS)
        self._background = BackgroundTasks()
        self._listed: VisibleTools[dict[str, _BoundedTool]] | None = None
        self.tool(
            name=READ_RESULT_TOOL,
            annotations={"readOnlyHint": True, "openWorldHint": False},
            meta={RESULTS_META_KEY: True},
            structured_output=False,
        )(self.read_result)
        self.resource(
            SCHEME + "{+id}",
            name="complete-result",
            description="Complete result of a tool",
            meta={RESULTS_META_KEY: True},
            security=None,
        )(self.read_resource)

    def configure(self, settings: ResultSettings) -> None:
        """Replace the settings. Can be called while the server is running."""
        self.settings = settings
        self._store.limits = settings.storage
        self.refresh()

    def refresh(self) -> None:
        """Update the size below which no result is examined, after a budget was changed."""
        settings = self.settings
        budgets = [settings.max_tokens, *settings.tools.values(), *settings.clients.values()]
        budgets += [tokens for tokens in self.upstream_tokens().values() if tokens is not None]
        # Without any budget, no result is large.
        self._small_bytes = min((small_bytes(tokens) for tokens in budgets if tokens), default=2**62)

    def on_added(self, server: Any) -> None:
        self._server = server
        self.upstream_tokens = getattr(server, "upstream_result_tokens", dict)
        self.refresh()
        self._listed = VisibleTools(server, _index_tools)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        # Bound to the event loop that runs the server.
        self._large = _create_slots()
        try:
            yield
        finally:
            await self._background.close()
            await self._store.close()

    # Bounding

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        if method == "tools/call":
            return partial(self._call_tool, handler)
        if method == "subscriptions/listen":
            return partial(self._listen, handler)
        return partial(self._call_task_method, handler) if method in ("tasks/result", "tasks/get") else handler

    def _call_tool(self, handler: MethodHandler, call: Call) -> Any:
        # A function or a script that calls a tool needs the whole result.
        is_nested = CurrentCall.get() is not None
        result = handler(call)
        if is_nested:
            return result
        if type(result) is CoroutineType:
            return self._finish(call, result)
        return result if is_small(result, self._small_bytes) else self._bound(call, result)

    async def _finish(self, call: Call, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        result = await coroutine
        if type(result) is not CallToolResult and (type(result) is not Raw or call.capabilities.extensions is not None):
            self._remember_task(call, result)
        return result if is_small(result, self._small_bytes) else await self._bound(call, result)

    async def _bound(self, call: Call, result: Any) -> Any:
        name = call.decode_params().name
        return result if name == READ_RESULT_TOOL else await self.bound_result(call, name, result)

    def _remember_task(self, call: Call, result: Any) -> None:
        """Remember the tool of a call that became a task, whose result comes later."""
        id = ""
        if isinstance(result, CreateTaskResult):
            id = result.task.task_id
        elif isinstance(result, TaskHandle):
            id = result.task_id
        elif type(result) is Raw and is_small(result, MAX_TASK_HANDLE_BYTES) and b'"taskId"' in bytes(result):
            try:
                id = msgspec.json.decode(result, type=_TaskId).taskId
            except msgspec.DecodeError:
                return  # a result that mentions the member elsewhere
        if id:
            self._task_tools[id] = call.decode_params().name

    async def _call_task_method(self, handler: MethodHandler, call: Call) -> Any:
        result = handler(call)
        result = await result if type(result) is CoroutineType else result
        payload = result.result if isinstance(result, DetailedTask) else result
        if type(payload) not in (Raw, CallToolResult) or is_small(payload, self._small_bytes):
            return result
        name = self._task_tools.get(msgspec.json.decode(call.params, type=_TaskId).taskId)
        # Tasks of 2025-11-25 have their result in the format of that version already.
        bounded = await self.bound_result(call, name, payload)
        if isinstance(result, DetailedTask):
            encoded = bounded if type(bounded) is Raw else Raw(jsonrpc.encode(bounded))
            return result if bounded is payload else replace(result, result=encoded)
        return bounded

    def _listen(self, handler: MethodHandler, call: Call) -> Any:
        """Answer subscriptions/listen. Notifications of tasks have their results."""
        if not call.decode_params().notifications.task_ids:
            return handler(call)
        return handler(replace(call, reply=RelayedReply(call.reply, partial(self._notify_listener, call))))

    def _notify_listener(self, call: Call, method: str, params: Any) -> None:
        if method != TASK_UPDATED or type(params.result) is not Raw or is_small(params.result, self._small_bytes):
            call.reply.notify(method, params)
        else:
            # The last notification of a task, so none overtakes it.
            self._background.start(self._notify_bounded(call, params))

    async def _notify_bounded(self, call: Call, params: TaskNotificationParams) -> None:
        result = await self.bound_result(call, self._task_tools.get(params.task_id), params.result)
        call.reply.notify(TASK_UPDATED, replace(params, result=result))

    def bound_own_tool(self, call: Call, definition: Tool, result: Any) -> Any:
        """Return the result of a tool that a handler in front of the server has itself, such as tool search."""
        if type(result) is CoroutineType or not is_small(result, self._small_bytes):
            return self._bound_own_tool(call, definition, result)
        return result

    async def _bound_own_tool(self, call: Call, definition: Tool, result: Any) -> Any:
        result = await result if type(result) is CoroutineType else result
        if is_small(result, self._small_bytes):
            return result
        return await self.bound_result(call, definition.name, result, definition)

    async def bound_result(self, call: Call, name: str | None, result: Any, definition: Tool | None = None) -> Any:
        """Return a tool's result within the budget of its caller. `name` is None if the tool is unknown."""
        if declares_bounding(call.capabilities):
            return result
        if definition is None:
            tool = await self._find_tool(call, name, result)
        else:
            tool = _BoundedTool(definition.name, definition.output_schema, definition.meta)
        tokens, text_chars = self._budget(call, name, tool)
        if not tokens:
            return result
        # The id is derived from the contents and the owner, so a task that is polled is stored once.
        owner = self.owner_key(call)
        key = self._server.state_sealer.derive_key(b"stored results")
        version = call.protocol_version or LATEST_PROTOCOL_VERSION
        async with self._slot(call, result):
            prepared = await self._run(call, result, _prepare, result, tokens, text_chars, owner, key)
            if prepared is None:
                return result
            link = await self._save(owner, prepared)
            validate = _create_validate(tool, is_known=name is not None)
            return await self._run(call, result, shorten_result, prepared.result, tokens, link, validate, version)

    def _slot(self, call: Call, result: Any) -> Any:
        return _NO_SLOT if is_small(result, THREAD_BYTES) else self._large.hold(call)

    async def _run(self, call: Call, result: Any, fn: Callable[..., Any], *arguments: Any) -> Any:
        return fn(*arguments) if is_small(result, THREAD_BYTES) else await self._run_in_thread(call, fn, *arguments)

    async def _run_in_thread(self, call: Call, fn: Callable[..., Any], *arguments: Any) -> Any:
        # Separate threads: a client that disconnects cannot stop its own, and could occupy those of the event loop.
        return await self._threads.run(fn, arguments, get_caller_key(call))

    async def _find_tool(self, call: Call, name: str | None, result: Any) -> _BoundedTool | None:
        """Return a tool as the caller sees it, in the format of the result."""
        if name is None or self._listed is None:
            return None
        # Our own results are translated later; those of upstreams have the client's version.
        own = type(result) is CallToolResult
        version = LATEST_PROTOCOL_VERSION if own else call.protocol_version or LATEST_PROTOCOL_VERSION
        try:
            # The list of the request, without parts that belong to the call.
            pages = await self._listed.pages(replace(call, method="tools/list", read=None, answer=None), version)
        except Exception as failure:
            log.debug("the tools of a large result could not be listed: %s", failure)
            return None
        canonical = self._server.canonical_name("tool", name) or name
        tools = _index_tools(pages)
        return tools.get(name) or tools.get(canonical)

    def _budget(self, call: Call, name: str | None, tool: _BoundedTool | None) -> tuple[int, int]:
        """Return the budget of a result in tokens, and the characters of text that the host accepts in any case."""
        settings = self.settings
        explicit = None if name is None else self._explicit_tokens(name)
        client = call.client.name if call.client is not None else ""
        of_client = settings.clients.get(client)
        if explicit is not None:
            # A tool may be allowed more than a client can take.
            return (min(explicit, of_client) if explicit and of_client else of_client or explicit), 0
        tokens = settings.max_tokens if of_client is None else of_client
        chars = 0
        if tool is not None and client in _HONOURING_CLIENTS and isinstance(tool.meta, dict):
            declared = tool.meta.get(MAX_RESULT_SIZE_META_KEY)
            if isinstance(declared, int) and not isinstance(declared, bool):
                chars = max(min(declared, MAX_RESULT_SIZE_CHARS), 0)
        return tokens, chars

    def _explicit_tokens(self, name: str) -> int | None:
        """Return the budget of a tool or of its upstream, or None if neither has its own."""
        if not self.settings.tools and not self.upstream_tokens():
            return None
        owner, local = self._server.qualified_name("tool", name)
        for pattern, tokens in self.settings.tools.items():
            if fnmatchcase(f"{owner}.{local}", pattern) or pattern == name:
                return tokens
        return self.upstream_tokens().get(owner)

    # Owners

    def owner_key(self, call: Call) -> str:
        """Return the key of the caller that stored results belong to.

        The principal; without one the session or connection; and for independent anonymous requests the network of the
        client, where the id is what others cannot know.
        """
        identity = principal_id(call.principal)
        if identity is not None:
            return f"principal {identity}"
        connection = call.reply.connection
        if connection is not None:
            session = getattr(connection, "session_id", "") or self._connections.get(connection)
            if session is None:
                session = self._connections[connection] = os.urandom(16).hex()
            return f"session {session}"
        return "local" if call.address is None else f"network {client_network(call.address)}"

    async def _save(self, owner: str, prepared: Prepared) -> Link | None:
        """Store a result and return its link, or None if it cannot be stored."""
        size = sum(part.size for part in prepared.parts)
        if size > MAX_RESULT_BYTES or len(prepared.parts) > MAX_PARTS:
            return None
        try:
            stored = await self._store.put(_hash(owner), prepared.id, prepared.parts)
        except StoreError as failure:
            log.error("a large result could not be stored: %s", failure)
            return None
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stored.expires_at))
        return Link(stored.id, SCHEME + stored.id, until)

    # Reading

    async def _find(self, call: Call, id: str) -> tuple[StoredResult, int | None] | None:
        address = parse_address(id)
        if address is None:
            return None
        try:
            stored = await self._store.find(_hash(self.owner_key(call)), address.id)
        except StoreError as failure:
            log.error("a stored result could not be read: %s", failure)
            raise InternalError("The store of results is not available") from None
        return None if stored is None else (stored, address.part)

    async def read_result(
        self,
        id: Annotated[str, Meta(max_length=MAX_ID_CHARS, description="Id of the result, as in its summary")],
        offset: Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="First character, or element with path")] = 0,
        limit: Annotated[
            int, Meta(ge=0, le=MAX_OFFSET, description="Maximum characters, elements or matches; 0: as many as fit")
        ] = 0,
        path: Annotated[
            str, Meta(max_length=MAX_PATH_CHARS, description="Value in JSON: $ for the whole, or items[0].name")
        ] = "",
        pattern: Annotated[
            str, Meta(max_length=MAX_PATTERN_CHARS, description="Text to search, ignoring case; * is any text, | is or")
        ] = "",
    ) -> ToolResult:
        """Read more of a result that was shortened: text from an offset, a JSON value, or matches of a text."""
        call: Call = CurrentCall.call()
        found = await self._find(call, id)
        if found is None:
            raise ToolError(_UNKNOWN.format(repr(id[:MAX_ID_CHARS])), error_type="ResourceNotFound")
        stored, part = found
        tokens = self._budget(call, READ_RESULT_TOOL, None)[0] or DEFAULT_MAX_TOKENS
        # Empty values stand for absent ones: a nullable schema would cost every client more tokens.
        request = ReadRequest(part or 0, offset, limit or None, path or None, pattern or None)
        size = stored.parts[request.part].bytes if request.part < len(stored.parts) else 0
        try:
            # A path needs the whole document in memory.
            async with self._large.hold(call) if path and size > THREAD_BYTES else _NO_SLOT:
                run = partial(self._run_in_thread, call)
                return ToolResult(content=await read_piece(self._store, stored, request, tokens, run))
        except StoreError as failure:
            log.warning("a stored result could not be read: %s", failure)
            raise ToolError(_UNKNOWN.format(repr(id[:MAX_ID_CHARS])), error_type="ResourceNotFound") from None

    async def read_resource(self, id: str) -> list[TextResourceContents | BlobResourceContents]:
        """Return all parts of a stored result, or one of them."""
        uri = SCHEME + id
        found = await self._find(CurrentCall.call(), id)
        if found is None or (found[1] is not None and found[1] >= len(found[0].parts)):
            raise ResourceNotFound(uri)
        stored, part = found
        numbers = range(len(stored.parts)) if part is None else (part,)
        size = sum(stored.parts[number].bytes for number in numbers)
        if size > MAX_RESOURCE_BYTES:
            raise InternalError(
                f"The result has {size:,} bytes, and a resource at most {MAX_RESOURCE_BYTES:,}: read it with the tool "
                f"{READ_RESULT_TOOL}"
            )
        contents: list[TextResourceContents | BlobResourceContents] = []
        for number in numbers:
            info = stored.parts[number]
            try:
                data = await self._store.read_bytes(stored, number)
            except StoreError:
                raise ResourceNotFound(uri) from None
            part_uri = uri if len(numbers) == 1 else f"{SCHEME}{stored.id}/{number}"
            if info.kind in ("text", "json"):
                contents.append(TextResourceContents(uri=part_uri, mime_type=info.mime_type, text=data.decode()))
            else:
                contents.append(
                    BlobResourceContents(uri=part_uri, mime_type=info.mime_type, blob=b64encode(data).decode())
                )
        return contents


class _TaskId(Struct):
    taskId: str


def _create_slots() -> FairPlaces:
    return FairPlaces(
        MAX_CONCURRENT_LARGE_RESULTS,
        MAX_CONCURRENT_LARGE_RESULTS_PER_CALLER,
        waiting=MAX_WAITING_LARGE_RESULTS,
        waiting_total=10 * MAX_WAITING_LARGE_RESULTS,
        seconds=LARGE_RESULT_WAIT_SECONDS,
    )


class _NoSlot:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exception: object) -> None: ...


_NO_SLOT = _NoSlot()


def _hash(owner: str) -> str:
    # Identities contain issuer and subject, which need not be readable in the store.
    return sha256(owner.encode(errors="replace")).hexdigest()


def _index_tools(pages: Any) -> dict[str, _BoundedTool]:
    tools: dict[str, _BoundedTool] = {}
    page: ToolPage
    for page in pages:
        for entry in page.entries:
            try:
                tool = _tool_decoder.decode(entry)
            except (msgspec.DecodeError, RecursionError):
                continue
            tools.setdefault(tool.name, tool)
    return tools


def _prepare(result: Any, tokens: int, text_chars: int, owner: str, key: bytes) -> Prepared | None:
    """Return a result above its budget with its parts, or None if it is within the budget."""
    large = parse_result(result)
    if large is None or is_within_budget(large, tokens, text_chars):
        return None
    parts = to_parts(large)
    return Prepared(large, parts, create_id(key, owner, parts))


# Keywords that a value may violate although a longer one does not.
_RESTRICTING_KEYWORDS = tuple(
    f'"{name}"'.encode()
    for name in (
        *("minItems", "minLength", "pattern", "format", "const", "enum", "contains", "minContains", "prefixItems"),
        *("oneOf", "not", "if", "$dynamicRef", "contentEncoding", "contentSchema", "unevaluatedItems"),
    )
)


def _create_validate(tool: _BoundedTool | None, *, is_known: bool) -> Validate | None:
    """Return a function that validates structured content, or None if the tool has no output schema."""
    schema = None if tool is None else tool.output_schema
    if schema is None:
        # The schema of an unknown tool cannot be obeyed, so nothing is shortened within it.
        return None if is_known else lambda data, options: False
    try:
        validator = create_validator(schema)
    except SchemaError:
        return lambda data, options: False
    if validator.validator is None:
        # jsonschema-rs is not installed. With all members and types, only these keywords can reject a shorter value.
        encoded = jsonrpc.encode(schema)
        is_open = not any(keyword in encoded for keyword in _RESTRICTING_KEYWORDS)
        return lambda data, options: is_open and not options.members

    def validate(data: bytes, options: ShortenOptions) -> bool:
        try:
            return validator.is_valid(msgspec.json.decode(data))
        except (SchemaError, msgspec.DecodeError, RecursionError):
            return False

    return validate


def is_small(result: Any, max_bytes: int) -> bool:
    """Return whether a result is certainly within a budget of `max_bytes * MAX_TOKENS_PER_BYTE` tokens.

    It decodes and copies nothing: the lengths are known.
    """
    kind = type(result)
    if kind is Raw:
        return memoryview(result).nbytes <= max_bytes
    if kind is not CallToolResult:
        return True
    structured = result.structured_content
    if structured is UNSET:
        size = 0
    elif type(structured) is Raw:
        size = memoryview(structured).nbytes
    else:
        return False
    for block in result.content:
        if type(block) is not TextContent:
            return False
        text = block.text
        size += len(text) if text.isascii() else 4 * len(text)
    return size <= max_bytes


def small_bytes(tokens: int) -> int:
    """Return the size in bytes below which every result is within a budget."""
    return int(tokens / MAX_TOKENS_PER_BYTE)
