"""Runner of scripts that call tools, inside the sandbox. Standard library only.

The channel is the only connection to the outside. Calls and timers are numbered and sent when the script has nothing
else to do, so concurrent ones travel together; answers are delivered one by one, each when the script is waiting again.
The behaviour of a script thus depends only on the answers and their order, not on timing: with the same answers in the
same order, it does the same again. For this reason the only clock comes with the answers, and all randomness from the
seed.

    ← [{"n": 1, "tool": "add", "arguments": {…}}, {"n": 2, "seconds": 0.5}]
    → [{"n": 1, "at": 1760000000.5, "value": 3}, {"n": 2, "at": 1760000001.0}]
    → [{"n": 3, "at": 1760000001.2, "error": {"text": "…", "kind": "…", "details": …, "retryable": false}}]
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import inspect
import json
import linecache
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol

from portico_services.livepython.sandbox.deterministic import ScriptClock, seed_random
from portico_services.livepython.sandbox.display import format_exception, replace_surrogates, to_json_or_none, to_text
from portico_services.livepython.sandbox.framing import MAX_ARGUMENTS_BYTES, MAX_JSON_DEPTH, is_too_deep
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.script_loop import ScriptLoop, ToolCallRejected, ToolChannel, encode_json
from portico_services.livepython.sandbox.source_tracking import register_failure

# By module and Python name: the listed name of the tool, and its parameters in order.
ToolTableJson = Mapping[str, Mapping[str, tuple[str, list[str]]]]


class ScriptHost(Protocol):
    """The parts of the interpreter that a script needs."""

    namespace: dict[str, Any]
    limits: SandboxLimits
    pending_requests: int

    def _add_source(self, expression: str) -> str: ...
    def _execute(self, code: Any) -> Any: ...


def run_script(image: ScriptHost, code: str, tools: ToolTableJson, data: Any, seed: str, at: float) -> dict[str, Any]:
    """Run a script and return its result, or the exception that it raised."""
    channel = ToolChannel(image.pending_requests, ScriptClock(at))
    # Before any code of the script runs, which could otherwise read the real clock or randomness.
    channel.clock.install()
    seed_random(seed)
    asyncio.events.new_event_loop = asyncio.new_event_loop = lambda: ScriptLoop(channel)
    install_tools(channel, tools)
    image.namespace.update(data=data, asyncio=asyncio, json=json, ToolError=ScriptToolError)
    name = image._add_source(code)
    try:
        value, has_value = _evaluate(image, "".join(linecache.cache[name][2]), name)  # type: ignore[misc]
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as failure:
        register_failure(name, failure)
        return {
            "failure": format_exception(failure),
            **({"error": failure.said} if isinstance(failure, ScriptToolError) else {}),
        }
    finally:
        channel.close()
    return _result(value, image.limits) if has_value else {}


def warm_up() -> None:
    """Exercise the code paths that every script uses.

    A worker shares memory with the fork server until it writes to it: pages copied now, while it is idle, cost the
    script no time.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile("await asyncio.sleep(0)", "<warm-up>", "exec", flags | ast.PyCF_ONLY_AST)
    compile(tree, "<warm-up>", "exec", flags)
    with asyncio.Runner(loop_factory=lambda: ScriptLoop(ToolChannel(0, ScriptClock(0.0)))) as runner:
        runner.run(asyncio.sleep(0))


def _result(value: Any, limits: SandboxLimits) -> dict[str, Any]:
    text = to_json_or_none(value, limits.max_value_bytes)
    if text is not None:
        return {"value": text}
    display_text = value if isinstance(value, str) else to_text(value, limits)
    return {
        "text": replace_surrogates(display_text[: limits.max_text_chars]),
        "type": replace_surrogates(type(value).__qualname__)[:200],
    }


# The script itself


def _evaluate(image: ScriptHost, source: str, name: str) -> tuple[Any, bool]:
    """Run the script and return its `return` value, or else the value of its last expression."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    if any(isinstance(node, ast.Return) for node in _statements(tree.body)):
        # These statements are only allowed at module level.
        first = [node for node in tree.body if _is_outside(node)]
        tree.body = [node for node in tree.body if node not in first]
        image._execute(compile(ast.Module(first, []), name, "exec", dont_inherit=True))
        return _await_if_needed(image, image._execute(_as_function(tree, name))), True
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        # Assigned in place, so that the script stays in one piece: with an `await` in it, all of it runs in the loop.
        assignment = ast.Assign(targets=[ast.Name("__value__", ast.Store())], value=last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(assignment, last))
    image._execute(compile(tree, name, "exec", flags, dont_inherit=True))
    if not isinstance(last, ast.Expr):
        return None, False
    return _await_if_needed(image, image.namespace.pop("__value__")), True


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a script, without those inside functions and classes."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def _is_outside(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*")


def _as_function(tree: ast.Module, name: str) -> Any:
    """Return an expression that calls the script, wrapped in a function because it uses `return`."""
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    body = ast.AsyncFunctionDef(name="script", args=empty, body=tree.body, decorator_list=[])
    if "type_params" in ast.AsyncFunctionDef._fields:
        setattr(body, "type_params", [])  # noqa: B010 - since 3.12
    module_node = ast.Module(body=[body], type_ignores=[])
    ast.fix_missing_locations(module_node)
    functions: dict[str, Any] = {}
    exec(compile(module_node, name, "exec", dont_inherit=True), sys.modules["__main__"].__dict__, functions)
    sys.modules["__main__"].__dict__["__script__"] = functions["script"]
    return compile("await __script__()", "<script>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _await_if_needed(image: ScriptHost, value: Any) -> Any:
    """Await the value if it is awaitable: the author most likely forgot to."""
    if not inspect.isawaitable(value):
        return value
    image.namespace["__value__"] = value
    return image._execute(compile("await __value__", "<value>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))


# Tools as modules


class ToolFunction:
    """A tool as an async function."""

    def __init__(self, channel: ToolChannel, name: str, tool: str, parameters: list[str]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"The tool {tool!r}: {', '.join(parameters) or 'no arguments'}."
        self._channel, self._tool, self._parameters = channel, tool, parameters
        self._named = encode_json(tool)

    def __repr__(self) -> str:
        return f"<tool {self._tool}({', '.join(self._parameters)})>"

    async def __call__(self, /, *values: Any, **arguments: Any) -> Any:
        encoded = self._encode_arguments(self._bind_arguments(values, arguments))
        try:
            return await self._channel.call(self._named, encoded)
        except ToolCallRejected as refusal:
            details = refusal.details
        # Raised outside of the `except` block, so that the internal exception is not chained.
        raise ScriptToolError(self._tool, details)

    def _bind_arguments(self, values: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
        names = self._parameters
        only = values[0] if len(values) == 1 and not arguments else None
        # A single dict of named arguments; an empty dict is the first argument instead.
        if isinstance(only, dict) and only and only.keys() <= set(names):
            return only
        if len(values) > len(names):
            raise TypeError(f"{self.__name__} takes {len(names)} arguments, got {len(values)}")
        doubled = [name for name in names[: len(values)] if name in arguments]
        if doubled:
            raise TypeError(f"{self.__name__} got multiple values for argument {doubled[0]!r}")
        return dict(zip(names, values, strict=False)) | arguments

    def _encode_arguments(self, arguments: dict[str, Any]) -> bytes:
        try:
            text = encode_json(arguments)
        except (TypeError, ValueError) as failure:
            raise TypeError(f"the arguments of {self.__name__} are not JSON: {failure}") from None
        except RecursionError:
            text = None
        if text is None or is_too_deep(text):
            raise ValueError(f"the arguments of {self.__name__} are nested more than {MAX_JSON_DEPTH} deep")
        if len(text) > MAX_ARGUMENTS_BYTES:
            raise ValueError(f"the arguments of {self.__name__} must be at most 1 MiB, got {len(text):,} bytes")
        return text


class ScriptToolError(Exception):
    """Error of a tool, with its own message. Scripts know it as `ToolError`."""

    def __init__(self, tool: str, error: Mapping[str, Any]) -> None:
        super().__init__(error.get("text") or f"{tool} failed")
        self.said = {"tool": tool, **error}
        self.tool, self.kind, self.details = tool, error.get("kind"), error.get("details")
        self.retryable = bool(error.get("retryable"))


ScriptToolError.__module__, ScriptToolError.__name__, ScriptToolError.__qualname__ = "tools", "ToolError", "ToolError"


def install_tools(channel: ToolChannel, table: ToolTableJson) -> None:
    """Install the module `tools`, with a submodule for each owner."""
    top = _module("tools", channel, table.get("", {}))
    top.__path__ = []
    vars(top)["ToolError"] = ScriptToolError
    for owner, functions in table.items():
        if owner:
            module = _module(f"tools.{owner}", channel, functions)
            vars(module)["__tool__"] = vars(top).get(owner)
            vars(top)[owner] = module


class ToolModule(ModuleType):
    """Module with the tools of one owner. If a tool has the same name as the owner, the module is callable, too."""

    def __call__(self, /, *values: Any, **arguments: Any) -> Any:
        tool = vars(self).get("__tool__")
        if tool is None:
            raise TypeError(f"{self.__name__} is a module of tools, not a tool")
        return tool(*values, **arguments)


def _module(name: str, channel: ToolChannel, functions: Mapping[str, Any]) -> ToolModule:
    module = ToolModule(name, "Tools: call them with `await`.")
    for function, (tool, parameters) in functions.items():
        vars(module)[function] = ToolFunction(channel, function, tool, parameters)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        suggestions = difflib.get_close_matches(
            attribute, [var for var in vars(module) if not var.startswith("_")], 3, 0.5
        )
        hint = f"; did you mean {', '.join(suggestions)}?" if suggestions else "; find_tools lists the available tools"
        # Not an AttributeError: `from tools import …` would replace the message.
        raise ImportError(f"{name} has no {attribute!r}{hint}")

    vars(module)["__getattr__"] = missing
    sys.modules[name] = module
    return module
