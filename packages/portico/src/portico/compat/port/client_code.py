"""Client code: calls of FastMCP's Client that are written differently in Portico, and advice about the rest.

A result is tracked from `x = await client.call_tool(…)` to the uses of `x.data` in the same function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import ParentNodeProvider, PositionProvider, QualifiedNameProvider

# Attributes of values that are not JSON objects, such as dates and numbers; they stay unchanged.
_OF_VALUES = frozenset(
    [
        "year",
        "month",
        "day",
        "hour",
        "minute",
        "second",
        "microsecond",
        "tzinfo",
        "days",
        "seconds",
        "real",
        "imag",
        "hex",
        "int",
    ]
)
_PARAMETERS = {
    "elicitation_handler": (
        1,
        "takes one parameter here, a portico.types.ElicitParams with .message and .requested_schema; return a dict of "
        "the fields to accept, None to decline, or portico.types.ElicitResult(action)",
    ),
    "sampling_handler": (
        1,
        "takes one parameter here, a portico.types.CreateMessageParams with .messages and the settings; return a str",
    ),
    "message_handler": (2, "takes two parameters here: the method and the undecoded params"),
    "log_handler": (1, "takes one parameter here, a portico.types.LogMessage with .level, .logger and .data"),
    "progress_handler": (3, "takes three parameters: progress, total, message"),
}
_METHODS = {
    "list_tools_mcp": "use client.list_tools(), which returns all tools",
    "list_resources_mcp": "use client.list_resources(), which returns all resources",
    "list_resource_templates_mcp": "use client.list_resource_templates(), which returns all templates",
    "list_prompts_mcp": "use client.list_prompts(), which returns all prompts",
    "read_resource_mcp": "use client.read_resource(uri), which returns the contents",
    "get_prompt_mcp": "use client.get_prompt(name, arguments), which returns the whole result",
    "complete_mcp": "use client.complete(ref, name, value)",
    "initialize": "remove it: opening the client initializes the session",
    "set_logging_level": "use client.set_log_level(level)",
    "send_roots_list_changed": "no equivalent: set client.input_handlers.roots before the server requests them",
    "is_connected": "no equivalent: requests reconnect automatically",
    "initialize_result": "use client.server_info, client.server_capabilities and client.instructions",
}
_RENAMED = {"structuredContent": "structured_content", "isError": "is_error"}
# Fields of components and contents that clients list and read.
_FIELDS = {
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "mimeType": "mime_type",
    "uriTemplate": "uri_template",
    "lastModified": "last_modified",
    "readOnlyHint": "read_only_hint",
    "destructiveHint": "destructive_hint",
    "idempotentHint": "idempotent_hint",
    "openWorldHint": "open_world_hint",
}


class ClientNote(NamedTuple):
    """A place that must be changed by hand."""

    line: int
    what: str
    advice: str


class ClientSurvey(cst.CSTVisitor):
    """Finds the clients of a file, their results, and the uses of both."""

    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider, QualifiedNameProvider)

    def __init__(self) -> None:
        self.notes: list[ClientNote] = []
        # `result.data.name`, which becomes `result.data["name"]`.
        self.fields: dict[cst.Attribute, int] = {}
        self.renamed: dict[cst.Attribute, str] = {}
        # Names of the protocol, which only objects of a client have: renamed if the file has a client.
        self._wire_fields: dict[cst.Attribute, str] = {}
        self.raw_calls: set[cst.Call] = set()
        # By function, or None for the module: names that hold clients, results, and values of results.
        self._clients: set[str] = set()
        self._results: dict[Any, set[str]] = {}
        self._values: dict[Any, set[str]] = {}
        self._functions: dict[str, cst.FunctionDef] = {}
        self._handlers: list[tuple[str, cst.CSTNode]] = []

    def _is_client(self, node: cst.CSTNode) -> bool:
        metadata = self.get_metadata(QualifiedNameProvider, node, set())
        return any(item.name.partition(".")[0] == "fastmcp" and item.name.endswith(".Client") for item in metadata)

    # Names

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions[node.name.value] = node

    def visit_Param(self, node: cst.Param) -> None:
        if node.annotation is not None and self._is_client(_head(node.annotation.annotation)):
            self._clients.add(node.name.value)

    def visit_AsName(self, node: cst.AsName) -> None:
        item = self.get_metadata(ParentNodeProvider, node)
        if isinstance(item, cst.WithItem) and isinstance(node.name, cst.Name):
            called = item.item
            if (isinstance(called, cst.Call) and self._is_client(called.func)) or (
                isinstance(called, cst.Name) and called.value in self._clients
            ):
                self._clients.add(node.name.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._bind(node, target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node, node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        self._bind_item(node, node.target, node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._bind_item(node, node.target, node.iter)

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> None:
        # The loop variable is bound after the element that uses it.
        self.visit_CompFor(node.for_in)

    def visit_ListComp(self, node: cst.ListComp) -> None:
        self.visit_CompFor(node.for_in)

    def visit_SetComp(self, node: cst.SetComp) -> None:
        self.visit_CompFor(node.for_in)

    def visit_DictComp(self, node: cst.DictComp) -> None:
        self.visit_CompFor(node.for_in)

    def _bind(self, node: cst.CSTNode, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if not isinstance(target, cst.Name):
            return
        scope, name = self._scope(node), target.value
        for bindings in (self._results, self._values):
            bindings.setdefault(scope, set()).discard(name)
        awaited = value.expression if isinstance(value, cst.Await) else value
        if isinstance(awaited, cst.Call) and self._is_client(awaited.func):
            self._clients.add(name)
        elif isinstance(value, cst.Await) and self._gives_result(awaited):
            self._results.setdefault(scope, set()).add(name)
        elif self._is_value(value):
            self._values.setdefault(scope, set()).add(name)

    def _bind_item(self, node: cst.CSTNode, target: cst.BaseExpression, over: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name) and self._is_value(over):
            self._values.setdefault(self._scope(node), set()).add(target.value)

    def _gives_result(self, node: cst.BaseExpression) -> bool:
        """Return whether this is a tool call whose result has untyped data."""
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return False
        typed = any(arg.keyword is not None and arg.keyword.value == "result_type" for arg in node.args)
        return node.func.attr.value in ("call_tool", "call_tool_mcp") and not typed

    def _is_value(self, node: cst.BaseExpression) -> bool:
        """Return whether this is the data of a result, or a part of it."""
        if isinstance(node, cst.Name):
            return self._is_client_name(self._values, node)
        if isinstance(node, cst.Subscript):
            return self._is_value(node.value)
        if isinstance(node, cst.Attribute):
            if node.attr.value == "data":
                of = node.value
                if isinstance(of, cst.Name) and self._is_client_name(self._results, of):
                    return True
                if isinstance(of, cst.Await) and self._gives_result(of.expression):
                    return True
            return self._is_value(node.value)
        return False

    def _is_client_name(self, bindings: dict[Any, set[str]], node: cst.Name) -> bool:
        scope: Any = self._scope(node)
        while scope is not None:
            if node.value in bindings.get(scope, ()):
                return True
            scope = self._scope(scope)
        return node.value in bindings.get(None, ())

    def _scope(self, node: cst.CSTNode) -> cst.CSTNode | None:
        parent = self.get_metadata(ParentNodeProvider, node, None)
        while parent is not None and not isinstance(parent, cst.FunctionDef | cst.Lambda):
            parent = self.get_metadata(ParentNodeProvider, parent, None)
        return parent

    # Uses

    def visit_Attribute(self, node: cst.Attribute) -> None:
        name = node.attr.value
        if isinstance(node.value, cst.Name) and node.value.value in self._clients:
            if name == "session":
                self._add_note(node, "client.session", "no equivalent: use the methods of the Client")
            elif name in _METHODS:
                self._add_note(node, f"client.{name}", _METHODS[name])
        if name in _FIELDS:
            self._wire_fields[node] = _FIELDS[name]
        if name in _RENAMED and isinstance(node.value, cst.Name) and self._is_client_name(self._results, node.value):
            self.renamed[node] = _RENAMED[name]
        parent = self.get_metadata(ParentNodeProvider, node, None)
        called = isinstance(parent, cst.Call) and parent.func is node
        if not called and name not in _OF_VALUES and self._is_value(node.value):
            self.fields[node] = self._line(node)

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "call_tool_mcp":
            self.raw_calls.add(node)
        if isinstance(node.func, cst.Name | cst.Attribute) and self._is_client(node.func):
            for arg in node.args:
                if arg.keyword is not None and arg.keyword.value in _PARAMETERS:
                    self._handlers.append((arg.keyword.value, arg.value))

    def leave_Module(self, original_node: cst.Module) -> None:
        """Check the handlers, which may be defined after the client that uses them."""
        if self._clients:
            self.renamed |= {node: name for node, name in self._wire_fields.items() if not self._is_value(node.value)}
        for option, handler in self._handlers:
            expected_parameters, advice = _PARAMETERS[option]
            made: Any = handler
            if isinstance(handler, cst.Name):
                made = self._functions.get(handler.value)
            params = getattr(made, "params", None)
            if isinstance(params, cst.Parameters) and not params.star_kwarg and _count(params) != expected_parameters:
                if isinstance(params.star_arg, cst.Param):
                    continue
                self._add_note(made, option, advice)

    def _add_note(self, node: cst.CSTNode, subject: str, advice: str) -> None:
        self.notes.append(ClientNote(self._line(node), subject, advice))

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    def field_notes(self) -> Iterator[ClientNote]:
        """Yield the fields to change by hand, for a file that is not rewritten."""
        for node, line in self.fields.items():
            name = node.attr.value
            yield ClientNote(
                line,
                f".{name}",
                f'`data` is a dict here: write ["{name}"], or pass result_type=TYPE',
            )


def _count(params: cst.Parameters) -> int:
    every = [*params.posonly_params, *params.params]
    names = [item for item in every if item.default is None]
    return len(names) - (1 if names and names[0].name.value == "self" else 0)


def _head(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return `Client` of `Client[Transport]`."""
    return node.value if isinstance(node, cst.Subscript) else node
