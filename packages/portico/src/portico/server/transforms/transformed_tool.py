"""Tools derived from other tools: other names, arguments and descriptions, or a wrapping function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter
from types import CoroutineType
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from portico.protocol.content import TextContent
from portico.protocol.errors import ToolError, UsageError
from portico.protocol.tools import CallToolParams, CallToolResult
from portico.rpc.call import Call
from portico.server.components.results import ToolResult
from portico.server.components.runtime import Runtime
from portico.server.components.tools import Tool, validate_tool_name
from portico.server.components.validation import build_meta
from portico.server.transforms.arguments import ArgumentMapping


class WrappedCall(NamedTuple):
    """The call that a `transform_fn` is answering, with the arguments that the function has no parameters for."""

    tool: TransformedTool
    call: Call
    params: CallToolParams
    runtime: Runtime
    extra_arguments: dict[str, Any]


_behind: ContextVar[WrappedCall] = ContextVar("portico_behind")


class TransformedTool(Tool):
    """A tool derived from another one. Created by `Tool.from_tool`."""

    def __init__(
        self,
        parent: Tool | Callable[..., Any],
        *,
        name: str | None = None,
        title: str | UnsetType | None = UNSET,
        description: str | UnsetType | None = UNSET,
        tags: set[str] | None = None,
        meta: Mapping[str, Any] | UnsetType | None = UNSET,
        annotations: Any = UNSET,
        version: str | None = None,
        transform_args: Mapping[str, Any] | None = None,
        transform_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.parent = parent = parent if isinstance(parent, Tool) else Tool(parent)
        self.argument_mapping = ArgumentMapping(parent.name, parent.definition.input_schema, transform_args or {})
        self._around = None if transform_fn is None else _named_part(transform_fn)
        super().__init__(
            self._around or parent.fn,
            name=validate_tool_name(name or parent.name),
            version=version or parent.version,
            scopes=parent.scopes,
            annotations=parent.definition.annotations if annotations is UNSET else annotations,
        )
        if transform_fn is None:
            # Without a wrapping function a call runs the parent, with the parent's checks. With
            # one, the parent is called through `forward` and checks then.
            self.runner, self.auth, self.task = parent.runner, parent.auth, parent.task
        definition = self.definition
        definition.title = parent.definition.title if title is UNSET else title
        inherited = definition.description if transform_fn is not None else None
        definition.description = (inherited or parent.definition.description) if description is UNSET else description
        definition.icons = parent.definition.icons
        definition.input_schema = self._input_schema()
        own = dict(parent.definition.meta or {}) if meta is UNSET else dict(meta or {})
        definition.meta = {**own, **(build_meta({"tags": tags}) if tags is not None else {})} or None
        if transform_fn is None:
            definition.output_schema = parent.definition.output_schema
        # Headers mirror arguments by their original names, which a transformed tool may hide or
        # rename.
        self.header_params = ()

    def _input_schema(self) -> dict[str, Any]:
        if self._around is None:
            return self.argument_mapping.schema
        own = self.runner.signature.input_schema
        if not getattr(self._around, "takes_rest", False):
            return own
        properties = {**self.argument_mapping.schema.get("properties", {}), **own.get("properties", {})}
        named = own.get("properties", {})
        required = [item for item in self.argument_mapping.schema.get("required", ()) if item not in named]
        needed = [*required, *own.get("required", ())]
        defined = {**self.argument_mapping.schema.get("$defs", {}), **own.get("$defs", {})}
        return {
            **self.argument_mapping.schema,
            "properties": properties,
            **({"required": needed} if needed else {}),
            **({"$defs": defined} if defined else {}),
        }

    def start(self, call: Call, params: CallToolParams, runtime: Runtime, *, authorized: bool = False) -> Any:
        if self._around is None:
            return self.parent.start(call, self._to_parent_params(params), runtime, authorized=authorized)
        arguments = _read(params.arguments)
        named = self.runner.signature.input_schema.get("properties", {})
        takes = getattr(self._around, "takes_rest", False)
        rest = {name: value for name, value in arguments.items() if takes and name not in named}
        # Set before the coroutine is created, so that the function's task inherits it.
        _behind.set(WrappedCall(self, call, params, runtime, rest))
        if rest:
            own = {name: value for name, value in arguments.items() if name not in rest}
            params = msgspec.structs.replace(params, arguments=Raw(msgspec.json.encode(own)))
        return super().start(call, params, runtime, authorized=authorized)

    async def validate_call(self, call: Call, params: CallToolParams, runtime: Runtime) -> None:
        if self._around is None:
            await self.parent.validate_call(call, self._to_parent_params(params), runtime)
        else:
            await super().validate_call(call, params, runtime)

    def _to_parent_params(self, params: CallToolParams) -> CallToolParams:
        return msgspec.structs.replace(
            params, name=self.parent.name, arguments=self.argument_mapping.to_original_json(params.arguments)
        )


def transform_tool(tool: Tool | Callable[..., Any], **options: Any) -> TransformedTool:
    """Return a tool derived from another one; see `TransformedTool`. Raises UsageError for unknown options."""
    option_names = set(inspect.signature(TransformedTool.__init__).parameters) - {"self", "parent"}
    unknown = sorted(set(options) - option_names)
    if unknown:
        raise UsageError(
            f"from_tool: unknown option {unknown[0]!r} (expected one of {', '.join(sorted(option_names))})"
        )
    return TransformedTool(tool, **options)


async def forward(**arguments: Any) -> ToolResult:
    """Call the wrapped tool from inside a `transform_fn`, with the new argument names. Raises ToolError if it fails."""
    behind = _behind.get(None)
    if behind is None:
        raise RuntimeError("forward() can only be called inside a function passed as transform_fn")
    return await _call_parent(behind, behind.tool.argument_mapping.to_original(arguments))


async def forward_raw(**arguments: Any) -> ToolResult:
    """Call the wrapped tool from inside a `transform_fn`, with its original argument names."""
    behind = _behind.get(None)
    if behind is None:
        raise RuntimeError("forward_raw() can only be called inside a function passed as transform_fn")
    return await _call_parent(behind, arguments)


async def _call_parent(behind: WrappedCall, arguments: dict[str, Any]) -> ToolResult:
    parent = behind.tool.parent
    params = CallToolParams(name=parent.name, arguments=Raw(msgspec.json.encode(arguments)))
    try:
        result = parent.start(behind.call, params, behind.runtime)
        if type(result) is CoroutineType:
            result = await result
    finally:
        # The parent may be a transformed tool too, which has set the variable for itself.
        _behind.set(behind)
    if not isinstance(result, CallToolResult):
        raise ToolError(f"The tool {parent.name!r} requested input from the client, which forward() does not support.")
    if result.is_error:
        raise ToolError("".join(item.text for item in result.content if isinstance(item, TextContent)))
    structured = result.structured_content
    if isinstance(structured, Raw):
        structured = msgspec.json.decode(structured)
    return ToolResult(result.content, structured_content=structured)


def _named_part(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without its `**kwargs`, which receive the wrapped tool's arguments that it does not name."""
    signature = inspect.signature(fn)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
    if len(named) == len(signature.parameters):
        return fn

    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def body(*args: Any, **kwargs: Any) -> Any:
            return await fn(*args, **{**_behind.get().extra_arguments, **kwargs})
    else:

        @wraps(fn)
        def body(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **{**_behind.get().extra_arguments, **kwargs})

    body.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    body.takes_rest = True  # type: ignore[attr-defined]
    return body


def _read(arguments: bytes | Raw) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(arguments or b"{}")
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}
