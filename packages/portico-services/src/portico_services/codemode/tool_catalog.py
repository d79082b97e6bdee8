"""Catalog of the tools that a script can call, with their Python names and parameters."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from unicodedata import normalize

import msgspec
from msgspec import Raw, Struct

from portico.extend import WRAP_RESULT_KEY
from portico.jsonschema import get_properties, get_types, resolve_references
from portico.types import ToolAnnotations
from portico_services.codemode.journal import digest

_WORD = re.compile(r"[^\W\d]\w*")
_INVALID_CHARS = re.compile(r"\W+", re.ASCII)
# Other names exported by the module `tools`.
RESERVED_IDENTIFIERS = frozenset({"ToolError"})
_PLAIN_HINTS = ToolAnnotations()

# Maps a tool name to its owner and to the name that the owner uses.
OwnerOf = Callable[[str], tuple[str, str]]


class ScriptTool(Struct, dict=True):
    """A tool from a tool list."""

    name: str
    description: str | None = ""
    inputSchema: dict[str, Any] = {}
    outputSchema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    # The owner, and the tool's Python name in the owner's module. Set here, never taken from the list.
    owner: str = ""
    python_name: str = ""
    # Whether the tool must be called as a task, as far as known.
    needs_task: bool = False

    @property
    def hints(self) -> ToolAnnotations:
        return self.annotations or _PLAIN_HINTS

    @cached_property
    def is_read_only(self) -> bool:
        """Return whether the tool declares that it is read-only."""
        return self.hints.read_only_hint is True

    @property
    def is_retryable(self) -> bool:
        return self.hints.idempotent_hint is True

    @cached_property
    def wraps_result(self) -> bool:
        """Return whether structured content may be a wrapper around the value, as in older protocol versions."""
        # Without an output schema the structured content is the value itself.
        output = self.outputSchema
        if not output or output.get(WRAP_RESULT_KEY):
            return output is not None
        references = resolve_references(output, output)
        return get_types(references) != ["object"] and not get_properties(references)

    @property
    def parameters(self) -> list[str]:
        """Return the parameter names, required ones first."""
        named = self.inputSchema.get("properties")
        names = [str(item) for item in named] if isinstance(named, dict) else []
        required = self.inputSchema.get("required")
        needed = {item for item in required if isinstance(item, str)} if isinstance(required, list) else set()
        return sorted(names, key=lambda name: name not in needed)

    @property
    def path(self) -> str:
        """Return the name that a script writes: `github.create_issue`, or `add`."""
        return f"{self.owner}.{self.python_name}" if self.owner else self.python_name

    @cached_property
    def digest(self) -> str:
        """Return a digest that changes whenever anything changes that a script may rely on."""
        return digest(self.name, self.description, self.inputSchema, self.outputSchema, self.annotations)


def read_tools(entries: Iterable[Raw]) -> list[ScriptTool]:
    """Decode the entries of a tool list. Invalid entries are skipped."""
    results: list[ScriptTool] = []
    for entry in entries:
        with suppress(msgspec.DecodeError, RecursionError):
            results.append(_tool.decode(entry))
    return results


_tool = msgspec.json.Decoder(ScriptTool)


class ToolCatalog:
    """All tools that one caller is shown. Tools of the owner `own`, the server itself, need no module."""

    def __init__(
        self,
        tools: Sequence[ScriptTool],
        owner_of: OwnerOf,
        own: str,
        hidden: Iterable[str] = (),
        needs_task: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.by_name: dict[str, ScriptTool] = {}
        # Tools by module ("" for top-level) and Python name.
        self.modules: dict[str, dict[str, ScriptTool]] = {"": {}}
        left_out = set(hidden)
        for tool in tools:
            owner, inward = owner_of(tool.name)
            if owner in left_out or tool.name in self.by_name:
                continue
            tool.needs_task = needs_task(tool.name)
            tool.owner = "" if owner in (own, "") else to_identifier(owner)
            self.by_name[tool.name] = tool
            tool.python_name = _add(self.modules.setdefault(tool.owner, {}), to_identifier(inward or tool.name), tool)
        # Aliases: a name without the prefix that repeats its module, and the listed name at top level, unless that is
        # taken.
        for tool in self.by_name.values():
            short = tool.python_name.removeprefix(f"{tool.owner}_")
            if short.isidentifier():
                self.modules[tool.owner].setdefault(short, tool)
            for listed in _normalize_identifier(tool.name):
                if listed not in self.modules[""] and listed not in self.modules:
                    self.modules[""][listed] = tool

    @cached_property
    def to_json(self) -> Raw:
        """Return the catalog for the sandbox: the tool name and the parameters of each Python name."""
        modules = {
            owner: {name: (tool.name, tool.parameters) for name, tool in functions.items()}
            for owner, functions in self.modules.items()
        }
        return Raw(msgspec.json.encode(modules))

    def tools_used_in(self, code: str) -> list[ScriptTool]:
        """Return the tools that a script appears to use: their names occur in the code."""
        # A search for words and not an analysis of the code: it may list too many tools, which only makes the
        # question longer, but a tool that is missed is still asked about when it is called.
        words = set(_WORD.findall(code))
        named = {
            tool.name
            for owner, functions in self.modules.items()
            if not owner or owner in words
            for name, tool in functions.items()
            if name in words
        }
        return [tool for tool in self.by_name.values() if tool.name in named]

    def select(self, names: Iterable[str]) -> ToolCatalog:
        """Return a catalog with only these tools."""
        selected = set(names)
        # Not through __init__: the tools already have their names, which must not change with the selection.
        other = object.__new__(ToolCatalog)
        other.by_name = {name: tool for name, tool in self.by_name.items() if name in selected}
        other.modules = {
            owner: {name: tool for name, tool in functions.items() if tool.name in selected}
            for owner, functions in self.modules.items()
        }
        return other

    def find(self, name_or_path: str) -> ScriptTool | None:
        """Return a tool by its listed name or by its Python path."""
        if name_or_path in self.by_name:
            return self.by_name[name_or_path]
        owner, _, name = name_or_path.removeprefix("tools.").rpartition(".")
        return self.modules.get(owner, {}).get(name)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.by_name[name].digest for name in names if name in self.by_name}

    def changed_tools(self, digests: Mapping[str, str]) -> list[str]:
        """Return the names of the tools that have changed or are gone."""
        return [
            name for name, digest in digests.items() if name not in self.by_name or self.by_name[name].digest != digest
        ]


def _normalize_identifier(name: str) -> list[str]:
    """Return the identifiers that a script may write for a listed name, including non-ASCII ones in NFKC form."""
    read = normalize("NFKC", name)
    return [to_identifier(name)] if read.isascii() or not read.isidentifier() else [to_identifier(name), read]


def _add(functions: dict[str, ScriptTool], identifier: str, tool: ScriptTool) -> str:
    name, number = identifier, 1
    while name in functions:
        number += 1
        name = f"{identifier}_{number}"
    functions[name] = tool
    return name


def to_identifier(name: str) -> str:
    """Return a valid Python identifier in ASCII, so that it cannot be confused with a lookalike."""
    result = _INVALID_CHARS.sub("_", normalize("NFKC", name)).strip("_") or "tool"
    result = f"_{result}" if result[0].isdigit() else result
    return f"{result}_" if keyword.iskeyword(result) or result in RESERVED_IDENTIFIERS else result
