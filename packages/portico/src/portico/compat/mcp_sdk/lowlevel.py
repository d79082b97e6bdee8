"""The official SDK's low-level Server: one function for each method, which answers it as it likes.

    server = LowLevelServer("bookshop", on_list_tools=list_tools, on_call_tool=call_tool)

The functions take `(ctx, params)`; those that are registered with the decorators of the SDK's first major version,
`@server.list_tools()` and the others, take what they took there. Results are ours, dicts, or objects of `mcp.types`.
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
from portico.compat.mcp_sdk.extension import ServerRequestContext, request_context
from portico.compat.unsupported import Unsupported, reject_options
from portico.jsonschema import SchemaError, complaints
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
from portico.server.server import CAPABILITIES

log = logging.getLogger("portico.server")

Answers = Callable[..., Awaitable[Any]]

# The keyword for each method's function: the method, what comes of it, and the capability that it is part of.
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
# What Portico answers itself, for every revision: functions for it are not called, which is logged.
_OURS = frozenset(
    {"on_set_logging_level", "on_subscribe_resource", "on_unsubscribe_resource", "on_ping", "on_progress",
     "on_roots_list_changed", "on_subscriptions_listen"}
)  # fmt: skip


_RUN_UNSUPPORTED = {
    "raise_exceptions": Unsupported("use Client(server) in tests: exceptions are in the log", accepted=(None, False)),
    "stateless": Unsupported("use run('http', stateless=True)", accepted=(None, False)),
}


class NotificationOptions(Struct):
    """What the SDK has to be told, and ours says by itself."""

    prompts_changed: bool = False
    resources_changed: bool = False
    tools_changed: bool = False


class InitializationOptions(Struct):
    """The same: a server's name and version are its own."""

    server_name: str = ""
    server_version: str = ""
    capabilities: Any = None
    instructions: str | None = None


class ReadResourceContents(Struct):
    """One part of what `@server.read_resource()` returns."""

    content: str | bytes
    mime_type: str | None = None
    meta: dict[str, Any] | None = None


# What such functions list, under names that are not those of what servers register.
ToolDefinition = Tool
PromptDefinition = Prompt
ResourceDefinition = Resource
ResourceTemplateDefinition = ResourceTemplate


class _StandardStreams:
    """What `stdio_server` gives: `server.run` opens standard input and output itself."""


@asynccontextmanager
async def stdio_server() -> AsyncIterator[tuple[_StandardStreams, _StandardStreams]]:
    """`async with stdio_server() as (read, write): await server.run(read, write, …)`"""
    yield _StandardStreams(), _StandardStreams()


class _Functions(Service):
    """The functions of a low-level server, by method."""

    def __init__(self, server: LowLevelServer) -> None:
        # Rules know what it answers by the name of the server.
        super().__init__(server.name)
        self.answers: dict[str, Callable[[Call], Awaitable[Any]]] = {}

    def methods(self) -> Mapping[str, Callable[[Call], Awaitable[Any]]]:
        return self.answers


class LowLevelServer(CompatServer):
    """A server whose methods are answered by functions of its author. Its other options are those of a Server.

    * **on_list_tools**, **on_call_tool**, **on_list_resources**, **on_list_resource_templates**,
      **on_read_resource**, **on_list_prompts**, **on_get_prompt**, **on_completion** – `async def (ctx, params)`, which
      returns the result.
    """

    context_class = Context

    def __init__(self, name: str, version: str | None = None, instructions: str | None = None, **options: Any) -> None:
        functions = {key: options.pop(key) for key in tuple(options) if key in _METHODS or key in _OURS}
        said = {"version": version} if version else {}
        super().__init__(name, instructions, **{"capabilities": {"logging": {}}, **said, **options})
        self._functions = _Functions(self)
        self.add(self._functions)
        for key, fn in functions.items():
            if fn is not None and key in _METHODS:
                self._answer_with(key, partial(_with_params, fn, _params_type(fn)))
            elif fn is not None:
                _warn_not_called(key)

    def _answer_with(self, key: str, fn: Answers) -> None:
        method, result, feature = _METHODS[key]
        self._functions.answers[method] = partial(self._answered, fn, result)
        self.capabilities = msgspec.structs.replace(self.capabilities, **{feature: CAPABILITIES[feature]})
        self._extend()

    async def _answered(self, fn: Answers, result: type[Struct], call: Call) -> Any:
        call.typed()  # params that do not fit are refused here: the functions are not written for them
        context = request_context(call, self)
        CurrentCall.enter(context)
        return _result(await fn(context, call), result, self.methods.hints)

    # Registering as the SDK's first major version does it

    def _decorator(self, key: str, answer: Callable[..., Awaitable[Any]]) -> Callable[[Answers], Answers]:
        def register(fn: Answers) -> Answers:
            self._answer_with(key, partial(answer, fn))
            return fn

        return register

    def list_tools(self) -> Any:
        return self._decorator("on_list_tools", partial(_listed, "tools"))

    def list_resources(self) -> Any:
        return self._decorator("on_list_resources", partial(_listed, "resources"))

    def list_resource_templates(self) -> Any:
        return self._decorator("on_list_resource_templates", partial(_listed, "resourceTemplates"))

    def list_prompts(self) -> Any:
        return self._decorator("on_list_prompts", partial(_listed, "prompts"))

    def call_tool(self, *, validate_input: bool = True) -> Any:  # type: ignore[override]
        return self._decorator("on_call_tool", partial(self._call_by_name, validate_input))

    async def _call_by_name(self, validate: bool, fn: Answers, ctx: Any, call: Call) -> Any:
        said = ctx.params or {}
        name, arguments = said["name"], said.get("arguments") or {}
        if validate:
            await self._check(ctx, call, name, arguments)
        value = await fn(name, arguments)
        if isinstance(value, tuple) and len(value) == 2:
            blocks, structured = value
            made: Any = to_result(list(blocks), uri="")
            return msgspec.structs.replace(made, structured_content=structured)
        return to_result(list(value) if _is_many(value) else value, uri="")

    async def _check(self, ctx: Any, call: Call, name: str, arguments: Any) -> None:
        lists = self._functions.answers.get("tools/list")
        if lists is None:
            return
        listed = await lists(msgspec.structs.replace(call, method="tools/list", params=msgspec.Raw(b"{}"), read=None))
        for tool in listed.tools:
            wrong = _complaints(tool.input_schema, arguments) if tool.name == name else ()
            if wrong:
                raise ToolError("Invalid arguments: " + "; ".join(f"{one.path}: {one.message}" for one in wrong))

    def read_resource(self) -> Any:  # type: ignore[override]
        async def read(fn: Answers, ctx: Any, call: Call) -> Any:
            uri = (ctx.params or {})["uri"]
            value = await fn(_uri(fn, uri))
            parts = list(value) if _is_many(value) else [value]
            contents = [
                one
                for part in parts
                for one in to_contents(getattr(part, "content", part), uri, getattr(part, "mime_type", None))
            ]
            return ReadResourceResult(contents=contents)

        return self._decorator("on_read_resource", read)

    def get_prompt(self) -> Any:  # type: ignore[override]
        async def get(fn: Answers, ctx: Any, call: Call) -> Any:
            said = ctx.params or {}
            return await fn(said["name"], said.get("arguments") or {})

        return self._decorator("on_get_prompt", get)

    def completion(self) -> Any:  # type: ignore[override]
        async def complete(fn: Answers, ctx: Any, call: Call) -> Any:
            params = call.typed()
            found = await fn(params.ref, params.argument, getattr(params, "context", None))
            return {"completion": {"values": []} if found is None else _plain(found)}

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
        """Of the request that is being answered. Raises LookupError outside of one."""
        found = CurrentCall.found()
        if not isinstance(found, ServerRequestContext):
            raise LookupError("there is no request that is being answered")
        return found

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
        if not isinstance(read, _StandardStreams):
            raise UsageError("run takes what stdio_server() of portico gives, or a transport: server.run('http')")
        reject_options("run", options, _RUN_UNSUPPORTED)
        return self.run_async("stdio")


# The SDK's name.
Server = LowLevelServer


def _warn_not_called(what: str) -> None:
    log.warning("%s: Portico handles this itself for every protocol version; the function is not called", what)


def _not_called(what: str) -> Callable[[Answers], Answers]:
    def register(fn: Answers) -> Answers:
        _warn_not_called(what)
        return fn

    return register


def _complaints(schema: dict[str, Any], value: Any) -> list[Any]:
    try:
        return complaints(schema, value)
    except SchemaError as missing:
        log.warning("arguments are not held against the schema of their tool: %s", missing)
        return []


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple) or inspect.isgenerator(value)


async def _listed(member: str, fn: Answers, ctx: Any, call: Call) -> Any:
    found = await (fn(ctx.call.typed()) if _takes_one(fn) else fn())
    return found if not isinstance(found, list | tuple) else {member: [_plain(one) for one in found]}


def _takes_one(fn: Answers) -> bool:
    return bool(inspect.signature(fn).parameters)


def _uri(fn: Answers, uri: str) -> Any:
    """A URI as the function wants it: pydantic's AnyUrl, if it says so."""
    kind = next(iter(_hints(fn).values()), str)
    return kind(uri) if isinstance(kind, type) and kind.__module__.startswith("pydantic") else uri


def _hints(fn: Any) -> dict[str, Any]:
    try:
        return get_type_hints(fn)
    except (NameError, TypeError):
        return {}


def _params_type(fn: Any) -> Any:
    """The class of `mcp.types` that the second parameter is annotated with; None for none."""
    names = list(inspect.signature(fn).parameters)
    kind = _hints(fn).get(names[1]) if len(names) > 1 else None
    return next((one for one in (kind, *get_args(kind)) if hasattr(one, "model_validate")), None)


class SdkRequestParams:
    """The params of a request: its members, by the names that Python gives them."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def __getattr__(self, name: str) -> Any:
        head, *rest = name.split("_")
        return self._params.get(head + "".join(part.title() for part in rest))


async def _with_params(fn: Answers, kind: Any, ctx: Any, call: Call) -> Any:
    said = ctx.params or {}
    if kind is None:
        return await fn(ctx, SdkRequestParams(said))
    try:
        params = kind.model_validate({name: value for name, value in said.items() if name != "_meta"})
    except ValueError as mistake:
        raise InvalidParams(f"Invalid params for {call.method}: {str(mistake)[:300]}") from None
    return await fn(ctx, params)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return msgspec.to_builtins(value)


def _result(value: Any, kind: type[Struct], hints: Mapping[str, Any]) -> Any:
    if not isinstance(value, kind | InputRequiredResult):
        said = _plain(value)
        if not isinstance(said, dict):
            raise TypeError(f"the function returned {type(value).__name__}, and owes a {kind.__name__}")
        said = {"isError": False, **said} if kind is CallToolResult else said
        asks = said.get("resultType") == "input_required" or "inputRequests" in said
        value = msgspec.convert(
            {**said, "resultType": "input_required" if asks else "complete"}, InputRequiredResult if asks else kind
        )
    if hasattr(value, "ttl_ms") and value.ttl_ms is msgspec.UNSET:
        value = msgspec.structs.replace(value, **hints)
    return value
