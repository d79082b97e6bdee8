"""A tool made of another one: other names, arguments and descriptions, or a function put around it."""

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
from portico.server.components.tools import Tool, checked_name
from portico.server.components.validation import described_meta
from portico.server.transforms.arguments import ArgumentShape


class Behind(NamedTuple):
    """The tool behind a function of `transform_fn`, while that runs; and the arguments that it did not name itself."""

    tool: TransformedTool
    call: Call
    params: CallToolParams
    runtime: Runtime
    rest: dict[str, Any]


_behind: ContextVar[Behind] = ContextVar("portico_behind")


class TransformedTool(Tool):
    """Another tool in another shape. `Tool.from_tool` makes one."""

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
        self.shape = ArgumentShape(parent.name, parent.definition.input_schema, transform_args or {})
        self._around = None if transform_fn is None else _named_part(transform_fn)
        super().__init__(
            self._around or parent.fn,
            name=checked_name(name or parent.name),
            version=version or parent.version,
            scopes=parent.scopes,
            annotations=parent.definition.annotations if annotations is UNSET else annotations,
        )
        if transform_fn is None:
            self.body, self.auth, self.task = parent.body, parent.auth, parent.task
        definition = self.definition
        definition.title = parent.definition.title if title is UNSET else title
        inherited = definition.description if transform_fn is not None else None
        definition.description = (inherited or parent.definition.description) if description is UNSET else description
        definition.icons = parent.definition.icons
        definition.input_schema = self._input_schema()
        own = dict(parent.definition.meta or {}) if meta is UNSET else dict(meta or {})
        definition.meta = {**own, **(described_meta({"tags": tags}) if tags is not None else {})} or None
        if transform_fn is None:
            definition.output_schema = parent.definition.output_schema
        self.mirrors = ()

    def _input_schema(self) -> dict[str, Any]:
        if self._around is None:
            return self.shape.schema
        own = self.body.signature.input_schema
        if not getattr(self._around, "takes_rest", False):
            return own
        properties = {**self.shape.schema.get("properties", {}), **own.get("properties", {})}
        named = own.get("properties", {})
        required = [one for one in self.shape.schema.get("required", ()) if one not in named]
        needed = [*required, *own.get("required", ())]
        defined = {**self.shape.schema.get("$defs", {}), **own.get("$defs", {})}
        return {
            **self.shape.schema,
            "properties": properties,
            **({"required": needed} if needed else {}),
            **({"$defs": defined} if defined else {}),
        }

    def start(self, call: Call, params: CallToolParams, runtime: Runtime, *, allowed: bool = False) -> Any:
        if self._around is None:
            return self.parent.start(call, self._inward(params), runtime, allowed=allowed)
        said = _read(params.arguments)
        named = self.body.signature.input_schema.get("properties", {})
        takes = getattr(self._around, "takes_rest", False)
        rest = {name: value for name, value in said.items() if takes and name not in named}
        _behind.set(Behind(self, call, params, runtime, rest))
        if rest:
            own = {name: value for name, value in said.items() if name not in rest}
            params = msgspec.structs.replace(params, arguments=Raw(msgspec.json.encode(own)))
        return super().start(call, params, runtime, allowed=allowed)

    async def check(self, call: Call, params: CallToolParams, runtime: Runtime) -> None:
        if self._around is None:
            await self.parent.check(call, self._inward(params), runtime)
        else:
            await super().check(call, params, runtime)

    def _inward(self, params: CallToolParams) -> CallToolParams:
        return msgspec.structs.replace(params, name=self.parent.name, arguments=self.shape.encoded(params.arguments))


def from_tool(tool: Tool | Callable[..., Any], **options: Any) -> TransformedTool:
    """A tool made of another one; see `TransformedTool`."""
    known = set(inspect.signature(TransformedTool.__init__).parameters) - {"self", "parent"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"from_tool has no option {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return TransformedTool(tool, **options)


async def forward(**arguments: Any) -> ToolResult:
    """Inside `transform_fn`: call the tool behind it, by the new names of its arguments."""
    behind = _behind.get(None)
    if behind is None:
        raise RuntimeError("forward() is for functions that were given as transform_fn")
    return await _ask(behind, behind.tool.shape.inward(arguments))


async def forward_raw(**arguments: Any) -> ToolResult:
    """The same by the names that the tool has for them itself."""
    behind = _behind.get(None)
    if behind is None:
        raise RuntimeError("forward_raw() is for functions that were given as transform_fn")
    return await _ask(behind, arguments)


async def _ask(behind: Behind, arguments: dict[str, Any]) -> ToolResult:
    parent = behind.tool.parent
    said = CallToolParams(name=parent.name, arguments=Raw(msgspec.json.encode(arguments)))
    try:
        result = parent.start(behind.call, said, behind.runtime)
        if type(result) is CoroutineType:
            result = await result
    finally:
        # The parent may be such a tool too, and have left what is behind itself.
        _behind.set(behind)
    if not isinstance(result, CallToolResult):
        raise ToolError(f"The tool {parent.name!r} asks something, which cannot be passed on from here.")
    if result.is_error:
        raise ToolError("".join(one.text for one in result.content if isinstance(one, TextContent)))
    structured = result.structured_content
    if isinstance(structured, Raw):
        structured = msgspec.json.decode(structured)
    return ToolResult(result.content, structured_content=None if structured is UNSET else structured)


def _named_part(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its `**kwargs`, which are the arguments of the tool behind it that it does not name."""
    signature = inspect.signature(fn)
    named = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    if len(named) == len(signature.parameters):
        return fn

    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def body(*args: Any, **kwargs: Any) -> Any:
            return await fn(*args, **{**_behind.get().rest, **kwargs})
    else:

        @wraps(fn)
        def body(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **{**_behind.get().rest, **kwargs})

    body.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    body.takes_rest = True  # type: ignore[attr-defined]
    return body


def _read(arguments: bytes | Raw) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(arguments or b"{}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
