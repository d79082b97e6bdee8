"""A script that calls tools: what runs in the jail. Plain Python and the standard library.

The only way out is the channel. Calls and timers are numbered and sent when nothing else is left to do, so those that
are made side by side travel together; the answers come back one by one, each when the script is waiting again. So what
a script does depends on the answers and their order alone, and not on how long anything took: with the same answers, in
the same order, it does the same again. For this there is no clock here but the one that comes with the answers, and no
chance but the one that was given at the start.

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

from portico_services.livepython.sandbox.deterministic import ScriptClock, install_chance
from portico_services.livepython.sandbox.display import clean, json_of, text_of, told
from portico_services.livepython.sandbox.framing import DEEPEST_JSON, LONGEST_ARGUMENTS, is_too_deep
from portico_services.livepython.sandbox.limits import Limits
from portico_services.livepython.sandbox.script_loop import ScriptLoop, ToolChannel, ToolRefusal, encoded
from portico_services.livepython.sandbox.source_tracking import failed_at

# Of a name: the listed name of the tool, and its parameters in their order.
NameTable = Mapping[str, Mapping[str, tuple[str, list[str]]]]


class RunsScripts(Protocol):
    """What a script needs of the image that runs it."""

    namespace: dict[str, Any]
    limits: Limits
    asked: int

    def _remember(self, expression: str) -> str: ...
    def _execute(self, code: Any) -> Any: ...


def run(image: RunsScripts, code: str, tools: NameTable, data: Any, seed: str, at: float) -> dict[str, Any]:
    """Run a script to its end. What it raises is part of the result."""
    channel = ToolChannel(image.asked, ScriptClock(at))
    channel.clock.install()
    install_chance(seed)
    asyncio.events.new_event_loop = asyncio.new_event_loop = lambda: ScriptLoop(channel)
    install_tools(channel, tools)
    image.namespace.update(data=data, asyncio=asyncio, json=json, ToolError=ToolFailure)
    name = image._remember(code)
    try:
        value, has_value = _evaluated(image, "".join(linecache.cache[name][2]), name)  # type: ignore[misc]
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as failure:
        failed_at(name, failure)
        return {"failure": told(failure), **({"error": failure.said} if isinstance(failure, ToolFailure) else {})}
    finally:
        channel.close()
    return _result(value, image.limits) if has_value else {}


def warm_up() -> None:
    """Do once what every script does. A worker shares its memory with the fork server until it writes to it: what is
    written to now, while it waits for a script, costs that script no time."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile("await asyncio.sleep(0)", "<warm-up>", "exec", flags | ast.PyCF_ONLY_AST)
    compile(tree, "<warm-up>", "exec", flags)
    with asyncio.Runner(loop_factory=lambda: ScriptLoop(ToolChannel(0, ScriptClock(0.0)))) as runner:
        runner.run(asyncio.sleep(0))


def _result(value: Any, limits: Limits) -> dict[str, Any]:
    text = json_of(value, limits.value)
    if text is not None:
        return {"value": text}
    shown = value if isinstance(value, str) else text_of(value, limits)
    return {"text": clean(shown[: limits.text]), "type": clean(type(value).__qualname__)[:200]}


# The script itself


def _evaluated(image: RunsScripts, source: str, name: str) -> tuple[Any, bool]:
    """The value that it returns, or else that of its last expression."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    if any(isinstance(node, ast.Return) for node in _statements(tree.body)):
        # These have their place outside of functions only.
        first = [node for node in tree.body if _is_outside(node)]
        tree.body = [node for node in tree.body if node not in first]
        image._execute(compile(ast.Module(first, []), name, "exec", dont_inherit=True))
        return _awaited(image, image._execute(_as_function(tree, name))), True
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        # Kept where it stands, so that all of the script is one piece: with an `await` in it, it runs in the loop.
        kept = ast.Assign(targets=[ast.Name("__value__", ast.Store())], value=last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    image._execute(compile(tree, name, "exec", flags, dont_inherit=True))
    if not isinstance(last, ast.Expr):
        return None, False
    return _awaited(image, image.namespace.pop("__value__")), True


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements of a script, without those of its functions and classes."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def _is_outside(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*")


def _as_function(tree: ast.Module, name: str) -> Any:
    """A script that returns, as the expression that calls it."""
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    body = ast.AsyncFunctionDef(name="script", args=empty, body=tree.body, decorator_list=[])
    if "type_params" in ast.AsyncFunctionDef._fields:
        setattr(body, "type_params", [])  # noqa: B010 - since 3.12
    whole = ast.Module(body=[body], type_ignores=[])
    ast.fix_missing_locations(whole)
    functions: dict[str, Any] = {}
    exec(compile(whole, name, "exec", dont_inherit=True), sys.modules["__main__"].__dict__, functions)
    sys.modules["__main__"].__dict__["__script__"] = functions["script"]
    return compile("await __script__()", "<script>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _awaited(image: RunsScripts, value: Any) -> Any:
    """A value that would have to be awaited is meant to be."""
    if not inspect.isawaitable(value):
        return value
    image.namespace["__value__"] = value
    return image._execute(compile("await __value__", "<value>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))


# Tools as modules


class ToolFunction:
    """A tool, to be called with `await`."""

    def __init__(self, channel: ToolChannel, name: str, tool: str, parameters: list[str]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"The tool {tool!r}: {', '.join(parameters) or 'no arguments'}."
        self._channel, self._tool, self._parameters = channel, tool, parameters
        self._named = encoded(tool)

    def __repr__(self) -> str:
        return f"<tool {self._tool}({', '.join(self._parameters)})>"

    async def __call__(self, /, *values: Any, **arguments: Any) -> Any:
        given = self._encoded(self._bound(values, arguments))
        try:
            return await self._channel.call(self._named, given)
        except ToolRefusal as refusal:
            said = refusal.said
        raise ToolFailure(self._tool, said)

    def _bound(self, values: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
        names = self._parameters
        only = values[0] if len(values) == 1 and not arguments else None
        # All arguments in one; an empty one is the first of them.
        if isinstance(only, dict) and only and only.keys() <= set(names):
            return only
        if len(values) > len(names):
            raise TypeError(f"{self.__name__} takes {len(names)} arguments, and {len(values)} were given")
        doubled = [name for name in names[: len(values)] if name in arguments]
        if doubled:
            raise TypeError(f"{self.__name__} got several values for {doubled[0]!r}")
        return dict(zip(names, values, strict=False)) | arguments

    def _encoded(self, arguments: dict[str, Any]) -> bytes:
        try:
            text = encoded(arguments)
        except (TypeError, ValueError) as failure:
            raise TypeError(f"the arguments of {self.__name__} are not JSON: {failure}") from None
        except RecursionError:
            text = None
        if text is None or is_too_deep(text):
            raise ValueError(f"the arguments of {self.__name__} are nested more than {DEEPEST_JSON} deep")
        if len(text) > LONGEST_ARGUMENTS:
            raise ValueError(f"the arguments of {self.__name__} take {len(text):,} bytes, and a call has 1 MiB")
        return text


class ToolFailure(Exception):
    """A tool that refused or failed, in its own words. Scripts know it as ToolError."""

    def __init__(self, tool: str, said: Mapping[str, Any]) -> None:
        super().__init__(said.get("text") or f"{tool} failed")
        self.said = {"tool": tool, **said}
        self.tool, self.kind, self.details = tool, said.get("kind"), said.get("details")
        self.retryable = bool(said.get("retryable"))


ToolFailure.__module__, ToolFailure.__name__, ToolFailure.__qualname__ = "tools", "ToolError", "ToolError"


def install_tools(channel: ToolChannel, table: NameTable) -> None:
    """Put the module `tools` where `import` finds it, with a module in it for each owner."""
    top = _module("tools", channel, table.get("", {}))
    top.__path__ = []
    vars(top)["ToolError"] = ToolFailure
    for owner, functions in table.items():
        if owner:
            module = _module(f"tools.{owner}", channel, functions)
            vars(module)["__tool__"] = vars(top).get(owner)
            vars(top)[owner] = module


class ToolModule(ModuleType):
    """The tools of one owner. A tool may have the same name as the owner of others: then this is both."""

    def __call__(self, /, *values: Any, **arguments: Any) -> Any:
        tool = vars(self).get("__tool__")
        if tool is None:
            raise TypeError(f"{self.__name__} is a module of tools, and no tool")
        return tool(*values, **arguments)


def _module(name: str, channel: ToolChannel, functions: Mapping[str, Any]) -> ToolModule:
    module = ToolModule(name, "Tools: call them with `await`.")
    for one, (tool, parameters) in functions.items():
        vars(module)[one] = ToolFunction(channel, one, tool, parameters)

    def missing(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        near = difflib.get_close_matches(wanted, [one for one in vars(module) if not one.startswith("_")], 3, 0.5)
        said = f"; did you mean {', '.join(near)}?" if near else "; find_tools says what there is"
        # Not an AttributeError: `from tools import …` would put other words in the place of these.
        raise ImportError(f"{name} has no {wanted!r}{said}")

    vars(module)["__getattr__"] = missing
    sys.modules[name] = module
    return module
