"""Contracts out of whatever holds one: a lock, a file of specifications, a list of tools, a definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from portico.definitions import LockFileError
from portico.extend import decode_bounded
from portico_services.contracts import lockfile, spec_parser
from portico_services.contracts.definitions import Contract, Definition, contract_of


class UnreadableContract(ValueError):
    """It holds no contract; the text says why."""


def from_text(text: str) -> Contract:
    """Markdown or JSON, told by how it begins."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return from_value(decode_bounded(text))
        except (msgspec.DecodeError, RecursionError) as failure:
            raise UnreadableContract(f"this is no JSON: {failure}") from None
    found = spec_parser.contract(text)
    if not found.tools:
        raise UnreadableContract("this is neither JSON nor a specification: no tool is named in it")
    return found


def from_value(value: Any) -> Contract:
    """A lock, the result of `tools/list`, the list in it, or one entry of it."""
    if isinstance(value, list):
        return _listed(value)
    if not isinstance(value, Mapping):
        raise UnreadableContract("a definition, a list of them, a lock or a specification is expected")
    if "lock" in value:
        try:
            return lockfile.read(msgspec.json.encode(value))
        except LockFileError as failure:
            raise UnreadableContract(str(failure)) from None
    result = value.get("result", value)
    if isinstance(result, Mapping) and isinstance(result.get("tools"), list):
        info = value.get("serverInfo")
        info = info if isinstance(info, Mapping) else {}
        return _listed(result["tools"], str(info.get("name", "")), str(info.get("version", "")))
    if "inputSchema" in value and isinstance(value.get("name"), str):
        return _listed([value])
    raise UnreadableContract("this has no `tools`, and is no definition of one: `name` and `inputSchema` are missing")


def _listed(entries: list[Any], server: str = "", version: str = "") -> Contract:
    found = contract_of(entries, server=server, version=version)
    if not found.tools and entries:
        raise UnreadableContract("none of these is the definition of a tool: each has a `name`, and an `inputSchema`")
    return found


def pair(old: Any, new: Any, now: Contract) -> tuple[Contract, Contract]:
    """What is to be compared with what. A name stands for a tool of `now`, and so does nothing at all for `new`."""
    before = _given(old, now)
    if new is not None:
        after = _given(new, now)
    elif len(before.tools) > 1:
        after = now
    else:
        names = {name for tool in before.tools for name in (tool.name, tool.invocation)}
        after = only(now, *(tool for tool in now.tools if tool.name in names or tool.invocation in names))
    if len(before.tools) == len(after.tools) == 1:
        # Two definitions, whatever they are called: they were given to be compared.
        called, like = after.tools[0], before.tools[0]
        after = only(after, replace(called, name=like.name, invocation=like.invocation))
    return before, after


def only(contract: Contract, *tools: Definition) -> Contract:
    """These tools of a contract, and nothing about the server as such."""
    return Contract(server=contract.server, version=contract.version, tools=tools, in_full=contract.in_full)


def _given(value: Any, now: Contract) -> Contract:
    if not isinstance(value, str):
        return from_value(value)
    found = now.find(value)
    return from_text(value) if found is None else only(now, found)
