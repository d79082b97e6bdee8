"""Extensions of the official SDK: objects that describe additions to a server, adapted to a Service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.compat.mcp_sdk.session import RequestContext
from portico.protocol.errors import InvalidParams, MethodNotFound, MissingClientCapability, UsageError
from portico.protocol.meta import RequestParams
from portico.protocol.methods import METHODS, Method, register_method
from portico.protocol.versions import LATEST_PROTOCOL_VERSION, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call, Handler
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico.server.context.context import Context, create_request_context
from portico.server.context.current import CurrentCall
from portico.server.middleware import Middleware, create_middleware_context
from portico.server.registry.service import Component, MethodHandler, Service

CallNext = Callable[[Any], Awaitable[Any]]
HandlerResult = Any

# The prefixes of protocol methods. Extensions may not use them, because access rules and limits depend on them.
_RESERVED = frozenset(method.partition("/")[0] for method in METHODS)


class ServerRequestContext(RequestContext):
    """The context that the SDK passes to method handlers."""

    __slots__ = ("call",)

    def __init__(self, ctx: Context, call: Call) -> None:
        super().__init__(ctx)
        self.call = call

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    @property
    def method(self) -> str:
        return self.call.method

    def client_extension_settings(self, identifier: str) -> dict[str, Any] | None:
        return self._ctx.client_extension_settings(identifier)

    @property
    def params(self) -> dict[str, Any] | None:
        try:
            return None if not self.call.params else msgspec.json.decode(self.call.params)
        except (ValueError, RecursionError) as mistake:
            raise InvalidParams(f"Invalid params for {self.call.method}: {mistake}") from None


def create_sdk_context(call: Call, server: Any) -> ServerRequestContext:
    """Return the SDK's context of a call."""
    return ServerRequestContext(create_request_context(call, server.runtime), call)


class FunctionMiddleware:
    """An SDK middleware function, `async def middleware(ctx, call_next)`, as a middleware of Portico."""

    def __init__(self, function: Callable[..., Awaitable[Any]], server: Any) -> None:
        self._function, self._server = function, server

    def __call__(self, handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            async def call_next(ctx: Any) -> Any:
                return await handler(getattr(ctx, "call", call))

            CurrentCall.enter((call, self._server.runtime))
            is_hooks = isinstance(self._function, Middleware)
            context = (
                create_middleware_context(call, self._server) if is_hooks else create_sdk_context(call, self._server)
            )
            return _encode_result(await self._function(context, call_next))

        return handle


class ToolBinding(Struct):
    """A tool of an extension."""

    fn: Callable[..., Any]
    meta: dict[str, Any] | None = None
    kwargs: dict[str, Any] = {}


class ResourceBinding(Struct):
    """A resource of an extension."""

    resource: Any


class MethodBinding(Struct):
    """A method that an extension handles: `async def handler(ctx, params)`."""

    method: str
    params_type: Any
    handler: Callable[..., Awaitable[Any]]
    protocol_versions: frozenset[str] | None = None


class Extension:
    """A bundle with an `identifier`: tools, resources, methods, and a wrapper around every tool call."""

    identifier: str = ""

    def settings(self) -> dict[str, Any]:
        return {}

    def tools(self) -> Sequence[ToolBinding]:
        return ()

    def resources(self) -> Sequence[ResourceBinding]:
        return ()

    def methods(self) -> Sequence[MethodBinding]:
        return ()


ServerExtension = Extension
"""FastMCP's word for the same."""


class ExtensionService(Service):
    """Adapter from an SDK extension to a Service."""

    def __init__(self, extension: Any) -> None:
        if not getattr(extension, "identifier", ""):
            raise UsageError(f"an extension must have an identifier, got {extension!r}")
        super().__init__(extension.identifier)
        self._extension = extension
        self._server: Any = None
        for tool in extension.tools():
            self._register(Tool(tool.fn, meta=tool.meta, **tool.kwargs))
        for bound in extension.resources():
            self._register(_resource(bound.resource))
        self._bindings = list(extension.methods())
        for binding in self._bindings:
            if binding.method.partition("/")[0] in _RESERVED:
                raise UsageError(f"{binding.method!r} is a protocol method; an extension must use its own prefix")

    def on_added(self, server: Any) -> None:
        self._server = server

    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        return {self._extension.identifier: self._extension.settings()}

    def methods(self) -> Mapping[str, Callable[[Call], Awaitable[Any]]]:
        for binding in self._bindings:
            if binding.method not in METHODS:
                register_method(
                    Method(
                        binding.method,
                        "to server",
                        SUPPORTED_PROTOCOL_VERSIONS[0],
                        LATEST_PROTOCOL_VERSION,
                        RequestParams,
                        Any,
                    )
                )
        return {binding.method: self._make_handler(binding) for binding in self._bindings}

    def _make_handler(self, binding: Any) -> Callable[[Call], Awaitable[Any]]:
        async def answer(call: Call) -> Any:
            if binding.protocol_versions is not None and call.protocol_version not in binding.protocol_versions:
                raise MethodNotFound.of(call.method)
            params = _params(binding.params_type, call)
            return _encode_result(await binding.handler(create_sdk_context(call, self._server), params))

        return answer

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        intercept = getattr(self._extension, "intercept_tool_call", None)
        if method != "tools/call" or intercept is None:
            return handler

        async def call_intercepted(call: Call) -> Any:
            async def call_next(context: Any = None) -> Any:
                result = handler(call)
                return await result if isinstance(result, Awaitable) else result

            return _encode_result(
                await intercept(call.decode_params(), create_sdk_context(call, self._server), call_next)
            )

        return call_intercepted


def require_client_extension(ctx: Any, identifier: str) -> None:
    """Raise MissingClientCapability if the client did not declare an extension."""
    declared = getattr(ctx, "_ctx", ctx).capabilities
    if identifier not in (declared.extensions or {}):
        raise MissingClientCapability({"extensions": {identifier: {}}})


def _resource(resource: Any) -> Component:
    if isinstance(resource, Resource):
        return resource
    return Resource(
        resource.read,
        str(resource.uri),
        name=resource.name,
        mime_type=resource.mime_type,
        description=resource.description,
    )


def _params(kind: Any, call: Call) -> Any:
    try:
        params = msgspec.json.decode(call.params or b"{}")
        if hasattr(kind, "model_validate"):
            return kind.model_validate(params)
        return msgspec.convert(params, kind)
    except (ValueError, RecursionError) as mistake:
        raise InvalidParams(f"Invalid params: {str(mistake)[:500]}") from None


def _encode_result(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return Raw(msgspec.json.encode(value.model_dump(mode="json", by_alias=True, exclude_none=True)))
    return Raw(msgspec.json.encode(value)) if isinstance(value, dict) else value
