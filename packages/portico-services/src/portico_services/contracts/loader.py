"""Loading of contracts from lock files, specifications, tool lists and single definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from portico.definitions import LockFileError
from portico.extend import decode_bounded
from portico_services.contracts import lockfile, spec_parser
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot, contract_from_tools


class InvalidContract(ValueError):
    """The input does not contain a contract; the message says why."""


def load_text(text: str) -> ServerContract:
    """Load a contract from Markdown or JSON, detected by the first character."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return load_value(decode_bounded(text))
        except (msgspec.DecodeError, RecursionError) as failure:
            raise InvalidContract(f"invalid JSON: {failure}") from None
    result = spec_parser.contract_from_specification(text)
    if not result.tools:
        raise InvalidContract("expected JSON or a specification that names at least one tool")
    return result


def load_value(value: Any) -> ServerContract:
    """Load a contract from a lock file, a `tools/list` result, its list of tools, or one entry of it."""
    if isinstance(value, list):
        return _contract_from_list(value)
    if not isinstance(value, Mapping):
        raise InvalidContract("expected a tool definition, a list of definitions, a lock file or a specification")
    if "lock" in value:
        try:
            return lockfile.load_lockfile(msgspec.json.encode(value))
        except LockFileError as failure:
            raise InvalidContract(str(failure)) from None
    # A saved JSON-RPC response has the list inside `result`.
    result = value.get("result", value)
    if isinstance(result, Mapping) and isinstance(result.get("tools"), list):
        info = value.get("serverInfo")
        info = info if isinstance(info, Mapping) else {}
        return _contract_from_list(result["tools"], str(info.get("name", "")), str(info.get("version", "")))
    if "inputSchema" in value and isinstance(value.get("name"), str):
        return _contract_from_list([value])
    raise InvalidContract("expected an object with `tools`, or a definition with `name` and `inputSchema`")


def _contract_from_list(entries: list[Any], server: str = "", version: str = "") -> ServerContract:
    result = contract_from_tools(entries, server=server, version=version)
    if not result.tools and entries:
        raise InvalidContract("expected tool definitions with a `name` and an `inputSchema`, found none")
    return result


def load_pair(old: Any, new: Any, now: ServerContract) -> tuple[ServerContract, ServerContract]:
    """Return the two contracts to compare. A string may name a tool of `now`; without `new`, compare with `now`."""
    before = _load_operand(old, now)
    if new is not None:
        after = _load_operand(new, now)
    # Several definitions are a whole contract: a tool that is missing from it is new, and not out of scope.
    elif len(before.tools) > 1:
        after = now
    else:
        names = {name for tool in before.tools for name in (tool.name, tool.invocation)}
        after = select_tools(now, *(tool for tool in now.tools if tool.name in names or tool.invocation in names))
    if len(before.tools) == len(after.tools) == 1:
        # Two single definitions are compared with each other even if their names differ.
        called, like = after.tools[0], before.tools[0]
        after = select_tools(after, replace(called, name=like.name, invocation=like.invocation))
    return before, after


def select_tools(contract: ServerContract, *tools: ToolDefinitionSnapshot) -> ServerContract:
    """Return a contract with only these tools, without server-level information."""
    return ServerContract(server=contract.server, version=contract.version, tools=tools, in_full=contract.in_full)


def _load_operand(value: Any, now: ServerContract) -> ServerContract:
    if not isinstance(value, str):
        return load_value(value)
    # A tool name takes precedence over text; no specification is a valid tool name.
    result = now.find(value)
    return load_text(value) if result is None else select_tools(now, result)
