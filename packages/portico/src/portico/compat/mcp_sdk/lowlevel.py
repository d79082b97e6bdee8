"""The low-level Server of the official SDK: one function per method.

    server = LowLevelServer("bookshop", on_list_tools=list_tools, on_call_tool=call_tool)

The functions take `(ctx, params)`. Functions registered with the decorators of the SDK's first major version, such as
`@server.list_tools()`, take the parameters of that version. Results are Portico's types, dicts, or objects of
`mcp.types`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from portico.compat.base import CompatServer
from portico.compat.mcp_sdk.context import Context
from portico.compat.mcp_sdk.extension import ServerRequestContext, create_sdk_context
from portico.compat.unsupported import UnsupportedFeature, reject_options
from portico.jsonschema import SchemaError, validate
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.completion import CompleteResult
from portico.protocol.errors import InvalidParams, ToolError, UsageError
from portico.protocol.prompts import GetPromptResult, ListPromptsResult, Prompt
from portico.protocol.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from portico.protocol.tools import CallToolResult, ListToolsResult, Tool
from portico.rpc.call import Call
from portico.server.components.resources import to_contents
from portico.server.components.results import to_result
from portico.server.context.current import CurrentCall
from portico.server.registry.service import Service
from portico.server.server import DEFAULT_CAPABILITIES

log = logging.getLogger("portico.server")

Answers = Callable[..., Awaitable[Any]]

# The constructor keyword of each method's function: the method, its result type, and its capability.
_METHODS: dict[str, tuple[str, type[Struct], str]] = {
    "on_list_tools": ("tools/list", ListToolsResult, "tools"),
    "on_call_tool": ("tools/call", CallToolResult, "tools"),
    "on_list_resources": ("resources/list", ListResourcesResult, "resources"),
    "on_list_resource_templates": ("resources/templates/list", ListResourceTemplatesResult, "resources"),
    "on_read_resource": ("resources/read", ReadResourceResult, "resources"),
    "on_list_prompts": ("prompts/list", ListPromptsResult, "prompts"),
    "on_get_prompt": ("prompts/get", GetPromptResult, "prompts"),
    "on_completion": ("completion/complete", CompleteResult, "completions"),
}
# Portico answers these itself, for every protocol version: functions for them are not called, which is logged.
_OURS = frozenset(
    {"on_set_logging_level", "on_subscribe_resource", "on_unsubscribe_resource", "on_ping", "on_progress",
     "on_roots_list_changed", "on_subscriptions_listen"}
)  # fmt: skip


_RUN_UNSUPPORTED = {
    "raise_exceptions": UnsupportedFeature(
        "use Client(server) in tests: exceptions are in the log", accepted=(None, False)
    ),
    "stateless": UnsupportedFeature("use run('http', stateless=True)", accepted=(None, False)),
}


class NotificationOptions(Struct):
    """Options that the SDK requires; Portico determines them itself."""

    prompts_changed: bool = False
    resources_changed: bool = False
    tools_changed: bool = False


class InitializationOptions(Struct):
    """Options that the SDK requires; Portico uses the server's own name and version."""

    server_name: str = ""
    server_version: str = ""
    capabilities: Any = None
    instructions: str | None = None


class ReadResourceContents(Struct):
    """One part of the return value of `@server.read_resource()`."""

    content: str | bytes
    mime_type: str | None = None
    meta: dict[str, Any] | None = None


# The types that list functions return, under names that differ from the classes of registered components.
ToolDefinition = Tool
PromptDefinition = Prompt
ResourceDefinition = Resource
ResourceTemplateDefinition = ResourceTemplate


class _StandardStreams:
    """Placeholder for the streams of `stdio_server`: `server.run` opens standard input and output itself."""


@asynccontextmanager
async def stdio_server() -> AsyncIterator[tuple[_StandardStreams, _StandardStreams]]:
    """Provide the streams for `async with stdio_server() as (read, write): await server.run(read, write, …)`."""
    yield _StandardStreams(), _StandardStreams()


class _Functions(Service):
    """The functions of a low-level server, by method."""

    def __init__(self, server: LowLevelServer) -> None:
        # Access rules refer to these components by the name of the server.
        super().__init__(server.name)
        self.answers: dict[str, Callable[[Call], Awaitable[Any]]] = {}

    def methods(self) -> Mapping[str, Callable[[Call], Awaitable[Any]]]:
        return self.answers


class LowLevelServer(CompatServer):
    """A server whose methods are implemented by functions. Takes the other options of a Server.

    * **on_list_tools**, **on_call_tool**, **on_list_resources**, **on_list_resource_templates**,
      **on_read_resource**, **on_list_prompts**, **on_get_prompt**, **on_completion** – `async def (ctx, params)`, which
      returns the result.
    """

    context_class = Context

    def __init__(self, name: str, version: str | None = None, instructions: str | None = None, **options: Any) -> None:
        functions = {key: options.pop(key) for key in tuple(options) if key in _METHODS or key in _OURS}
        version_option = {"version": version} if version else {}
        # Capabilities of the other features are added with their functions: the SDK derives them
        # from the registered handlers too.
        super().__init__(name, instructions, **{"capabilities": {"logging": {}}, **version_option, **options})
        self._functions = _Functions(self)
        self.add(self._functions)
        for key, fn in functions.items():
            if fn is not None and key in _METHODS:
                self._answer_with(key, partial(_with_params, fn, _params_type(fn)))
            elif fn is not None:
                _warn_not_called(key)

    def _answer_with(self, key: str, fn: Answers) -> None:
        method, result, feature = _METHODS[key]
        self._functions.answers[method] = partial(self._call_handler, fn, result)
        self.capabilities = msgspec.structs.replace(self.capabilities, **{feature: DEFAULT_CAPABILITIES[feature]})
        self._extend()

    async def _call_handler(self, fn: Answers, result: type[Struct], call: Call) -> Any:
        call.decode_params()  # reject invalid params here: the functions do not expect them
        context = create_sdk_context(call, self)
        CurrentCall.enter(context)
        return _result(await fn(context, call), result, self.methods.cache_hints)

    # Decorators of the SDK's first major version

    def _decorator(self, key: str, answer: Callable[..., Awaitable[Any]]) -> Callable[[Answers], Answers]:
        def register(fn: Answers) -> Answers:
            self._answer_with(key, partial(answer, fn))
            return fn

        return register

    def list_tools(self) -> Any:
        return self._decorator("on_list_tools", partial(_list_entries, "tools"))

    def list_resources(self) -> Any:
        return self._decorator("on_list_resources", partial(_list_entries, "resources"))

    def list_resource_templates(self) -> Any:
        return self._decorator("on_list_resource_templates", partial(_list_entries, "resourceTemplates"))

    def list_prompts(self) -> Any:
        return self._decorator("on_list_prompts", partial(_list_entries, "prompts"))

    def call_tool(self, *, validate_input: bool = True) -> Any:  # type: ignore[override]
        return self._decorator("on_call_tool", partial(self._call_by_name, validate_input))

    async def _call_by_name(self, validate: bool, fn: Answers, ctx: Any, call: Call) -> Any:
        params = ctx.params or {}
        name, arguments = params["name"], params.get("arguments") or {}
        if validate:
            await self._check(ctx, call, name, arguments)
        value = await fn(name, arguments)
        # The SDK's combined result: content blocks for the model and structured content for
        # programs.
        if isinstance(value, tuple) and len(value) == 2:
            blocks, structured = value
            result: Any = to_result(list(blocks), uri="")
            return msgspec.structs.replace(result, structured_content=structured)
        return to_result(list(value) if _is_many(value) else value, uri="")

    async def _check(self, ctx: Any, call: Call, name: str, arguments: Any) -> None:
        lists = self._functions.answers.get("tools/list")
        if lists is None:
            return
        # The schema is known to the list function only, so it is called for each validation, as the
        # SDK does when its cache is empty.
        listed = await lists(msgspec.structs.replace(call, method="tools/list", params=msgspec.Raw(b"{}"), read=None))
        for tool in listed.tools:
            wrong = _validate(tool.input_schema, arguments) if tool.name == name else ()
            if wrong:
                raise ToolError("Invalid arguments: " + "; ".join(f"{item.path}: {item.message}" for item in wrong))

    def read_resource(self) -> Any:  # type: ignore[override]
        async def read(fn: Answers, ctx: Any, call: Call) -> Any:
            uri = (ctx.params or {})["uri"]
            value = await fn(_uri(fn, uri))
            parts = list(value) if _is_many(value) else [value]
            contents = [
                to_content
                for part in parts
                for to_content in to_contents(getattr(part, "content", part), uri, getattr(part, "mime_type", None))
            ]
            return ReadResourceResult(contents=contents)

        return self._decorator("on_read_resource", read)

    def get_prompt(self) -> Any:  # type: ignore[override]
        async def get(fn: Answers, ctx: Any, call: Call) -> Any:
            params = ctx.params or {}
            return await fn(params["name"], params.get("arguments") or {})

        return self._decorator("on_get_prompt", get)

    def completion(self) -> Any:  # type: ignore[override]
        async def complete(fn: Answers, ctx: Any, call: Call) -> Any:
            params = call.decode_params()
            result = await fn(params.ref, params.argument, getattr(params, "context", None))
            return {"completion": {"values": []} if result is None else _to_jsonable(result)}

        return self._decorator("on_completion", complete)

    def set_logging_level(self) -> Callable[[Answers], Answers]:
        return _not_called("set_logging_level")

    def subscribe_resource(self) -> Callable[[Answers], Answers]:
        return _not_called("subscribe_resource")

    def unsubscribe_resource(self) -> Callable[[Answers], Answers]:
        return _not_called("unsubscribe_resource")

    def progress_notification(self) -> Callable[[Answers], Answers]:
        return _not_called("progress_notification")

    # Running

    @property
    def request_context(self) -> ServerRequestContext:
        """Return the context of the current request. Raises LookupError outside of a request."""
        result = CurrentCall.get()
        # A LookupError, because the SDK implements it with a ContextVar and code may catch that.
        if not isinstance(result, ServerRequestContext):
            raise LookupError("no request is being handled")
        return result

    def create_initialization_options(
        self, notification_options: Any = None, experimental_capabilities: Mapping[str, Any] | None = None
    ) -> InitializationOptions:
        """Return the options that the SDK passes to `run`. Portico advertises notifications by itself."""
        capabilities = self.get_capabilities(notification_options, experimental_capabilities)
        return InitializationOptions(self.name, self.version, capabilities, self.instructions)

    def get_capabilities(
        self, notification_options: Any = None, experimental_capabilities: Mapping[str, Any] | None = None
    ) -> Any:
        if experimental_capabilities:
            self.capabilities = msgspec.structs.replace(self.capabilities, experimental=dict(experimental_capabilities))
        return self.capabilities

    def run(  # type: ignore[override]
        self, read: Any = "stdio", write: Any = None, initialization_options: Any = None, **options: Any
    ) -> Any:
        """Serve: `await server.run(read, write, …)` with the streams of `stdio_server()`, or `server.run("http")`."""
        if isinstance(read, str):
            return super().run(read, **options)
        # Streams of the real SDK would bypass our transport and with it limits, logging and
        # shutdown.
        if not isinstance(read, _StandardStreams):
            raise UsageError("run expects the streams of portico's stdio_server(), or a transport: server.run('http')")
        reject_options("run", options, _RUN_UNSUPPORTED)
        return self.run_async("stdio")


# The SDK's name.
Server = LowLevelServer


def _warn_not_called(subject: str) -> None:
    log.warning("%s: Portico handles this itself for every protocol version; the function is not called", subject)


def _not_called(subject: str) -> Callable[[Answers], Answers]:
    def register(fn: Answers) -> Answers:
        _warn_not_called(subject)
        return fn

    return register


def _validate(schema: dict[str, Any], value: Any) -> list[Any]:
    try:
        return validate(schema, value)
    except SchemaError as missing:
        log.warning("arguments are not validated against the tool's schema: %s", missing)
        return []


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple) or inspect.isgenerator(value)


async def _list_entries(member: str, fn: Answers, ctx: Any, call: Call) -> Any:
    result = await (fn(ctx.call.decode_params()) if _takes_one(fn) else fn())
    return result if not isinstance(result, list | tuple) else {member: [_to_jsonable(item) for item in result]}


def _takes_one(fn: Answers) -> bool:
    return bool(inspect.signature(fn).parameters)


def _uri(fn: Answers, uri: str) -> Any:
    """Return a URI in the type that the function is annotated with, such as pydantic's AnyUrl."""
    kind = next(iter(_hints(fn).values()), str)
    return kind(uri) if isinstance(kind, type) and kind.__module__.startswith("pydantic") else uri


def _hints(fn: Any) -> dict[str, Any]:
    try:
        return get_type_hints(fn)
    except (NameError, TypeError):
        return {}


def _params_type(fn: Any) -> Any:
    """Return the class of `mcp.types` that the second parameter is annotated with, or None."""
    names = list(inspect.signature(fn).parameters)
    kind = _hints(fn).get(names[1]) if len(names) > 1 else None
    return next((item for item in (kind, *get_args(kind)) if hasattr(item, "model_validate")), None)


class SdkRequestParams:
    """Request params with snake_case attributes."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def __getattr__(self, name: str) -> Any:
        # `protocol_version` reads `protocolVersion`: the SDK's models accept both spellings.
        head, *rest = name.split("_")
        return self._params.get(head + "".join(part.title() for part in rest))


async def _with_params(fn: Answers, kind: Any, ctx: Any, call: Call) -> Any:
    request_params = ctx.params or {}
    if kind is None:
        return await fn(ctx, SdkRequestParams(request_params))
    try:
        params = kind.model_validate({name: value for name, value in request_params.items() if name != "_meta"})
    except ValueError as mistake:
        raise InvalidParams(f"Invalid params for {call.method}: {str(mistake)[:300]}") from None
    return await fn(ctx, params)


def _to_jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return msgspec.to_builtins(value)


def _result(value: Any, kind: type[Struct], hints: Mapping[str, Any]) -> Any:
    if not isinstance(value, kind | InputRequiredResult):
        content = _to_jsonable(value)
        if not isinstance(content, dict):
            raise TypeError(f"the function must return a {kind.__name__}, got {type(value).__name__}")
        content = {"isError": False, **content} if kind is CallToolResult else content
        # Dicts of 2025 code have no `resultType`; 2026-07-28 requires it in every result.
        asks = content.get("resultType") == "input_required" or "inputRequests" in content
        value = msgspec.convert(
            {**content, "resultType": "input_required" if asks else "complete"}, InputRequiredResult if asks else kind
        )
    if hasattr(value, "ttl_ms") and value.ttl_ms is msgspec.UNSET:
        value = msgspec.structs.replace(value, **hints)
    return value
