"""The tools that a script can call: by which names, with which parameters, and what is known of each."""

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

from portico.extend import WRAPPED, ToolAnnotations
from portico.jsonschema import properties_of, resolved, types_of
from portico_services.codemode.journal import digest_of

_WORD = re.compile(r"[^\W\d]\w*")
_UNFIT = re.compile(r"\W+", re.ASCII)
# What else the module `tools` has.
TAKEN = frozenset({"ToolError"})
_PLAIN_HINTS = ToolAnnotations()

# Whose a tool is, and what its owner calls it.
OwnerOf = Callable[[str], tuple[str, str]]


class ScriptTool(Struct, dict=True):
    """One tool as a list describes it."""

    name: str
    description: str | None = ""
    inputSchema: dict[str, Any] = {}
    outputSchema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    # Whose it is, and the name that a script knows it by there. Never what a list says of it.
    owner: str = ""
    python_name: str = ""
    # Whether it has to be called as a task, as far as that is known.
    needs_task: bool = False

    @property
    def hints(self) -> ToolAnnotations:
        return self.annotations or _PLAIN_HINTS

    @cached_property
    def reads(self) -> bool:
        """Whether it says of itself that it changes nothing."""
        return self.hints.read_only_hint is True

    @property
    def may_be_repeated(self) -> bool:
        return self.hints.idempotent_hint is True

    @cached_property
    def wraps(self) -> bool:
        """Whether its structured content may be only the wrapping of a value, as it is for older revisions."""
        output = self.outputSchema
        if not output or output.get(WRAPPED):
            return output is not None
        found = resolved(output, output)
        return types_of(found) != ["object"] and not properties_of(found)

    @property
    def parameters(self) -> list[str]:
        """Those that have to be there first."""
        named = self.inputSchema.get("properties")
        names = [str(one) for one in named] if isinstance(named, dict) else []
        required = self.inputSchema.get("required")
        needed = {one for one in required if isinstance(one, str)} if isinstance(required, list) else set()
        return sorted(names, key=lambda name: name not in needed)

    @property
    def path(self) -> str:
        """What a script writes: `github.create_issue`, or `add`."""
        return f"{self.owner}.{self.python_name}" if self.owner else self.python_name

    @cached_property
    def digest(self) -> str:
        """Another as soon as anything is that a script may rely on."""
        return digest_of(self.name, self.description, self.inputSchema, self.outputSchema, self.annotations)


class _ListedTools(Struct):
    tools: list[Raw] = []


def read_page(page: bytes) -> list[ScriptTool]:
    """The tools of a page of a list. What is none, whatever a server says, is left out: the others are good."""
    found: list[ScriptTool] = []
    for entry in msgspec.json.decode(page, type=_ListedTools).tools:
        with suppress(msgspec.DecodeError, RecursionError):
            found.append(_tool.decode(entry))
    return found


_tool = msgspec.json.Decoder(ScriptTool)


class ToolTable:
    """All tools that one caller is shown. `own`: whose tools need no module, because they are the server's own."""

    def __init__(
        self,
        tools: Sequence[ScriptTool],
        owner_of: OwnerOf,
        own: str,
        hidden: Iterable[str] = (),
        needs_task: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.by_name: dict[str, ScriptTool] = {}
        # By module, with "" for none, and by what a script calls it there.
        self.modules: dict[str, dict[str, ScriptTool]] = {"": {}}
        left_out = set(hidden)
        for tool in tools:
            owner, inward = owner_of(tool.name)
            if owner in left_out or tool.name in self.by_name:
                continue
            tool.needs_task = needs_task(tool.name)
            tool.owner = "" if owner in (own, "") else identifier(owner)
            self.by_name[tool.name] = tool
            tool.python_name = _add(self.modules.setdefault(tool.owner, {}), identifier(inward or tool.name), tool)
        # What a name says of its module need not be said twice, and the name that lists have for a tool leads to it as
        # well, unless that is another's.
        for tool in self.by_name.values():
            short = tool.python_name.removeprefix(f"{tool.owner}_")
            if short.isidentifier():
                self.modules[tool.owner].setdefault(short, tool)
            for listed in _listed_as(tool.name):
                if listed not in self.modules[""] and listed not in self.modules:
                    self.modules[""][listed] = tool

    @cached_property
    def encoded(self) -> Raw:
        """What a script is given: of each name the tool and its parameters."""
        said = {
            owner: {name: (tool.name, tool.parameters) for name, tool in functions.items()}
            for owner, functions in self.modules.items()
        }
        return Raw(msgspec.json.encode(said))

    def named_in(self, code: str) -> list[ScriptTool]:
        """The tools that a script seems to use: those whose names are among its words."""
        words = set(_WORD.findall(code))
        named = {
            tool.name
            for owner, functions in self.modules.items()
            if not owner or owner in words
            for name, tool in functions.items()
            if name in words
        }
        return [tool for tool in self.by_name.values() if tool.name in named]

    def only(self, names: Iterable[str]) -> ToolTable:
        """The same without all others."""
        kept = set(names)
        other = object.__new__(ToolTable)
        other.by_name = {name: tool for name, tool in self.by_name.items() if name in kept}
        other.modules = {
            owner: {name: tool for name, tool in functions.items() if tool.name in kept}
            for owner, functions in self.modules.items()
        }
        return other

    def find(self, wanted: str) -> ScriptTool | None:
        """A tool by the name that lists have for it, or by what a script writes."""
        if wanted in self.by_name:
            return self.by_name[wanted]
        owner, _, name = wanted.removeprefix("tools.").rpartition(".")
        return self.modules.get(owner, {}).get(name)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.by_name[name].digest for name in names if name in self.by_name}

    def changed(self, digests: Mapping[str, str]) -> list[str]:
        """Which of these tools are not what they were."""
        return [
            name for name, digest in digests.items() if name not in self.by_name or self.by_name[name].digest != digest
        ]


def _listed_as(name: str) -> list[str]:
    """What a script may write for a name of a list: other letters too, as Python reads them."""
    read = normalize("NFKC", name)
    return [identifier(name)] if read.isascii() or not read.isidentifier() else [identifier(name), read]


def _add(functions: dict[str, ScriptTool], wanted: str, tool: ScriptTool) -> str:
    name, number = wanted, 1
    while name in functions:
        number += 1
        name = f"{wanted}_{number}"
    functions[name] = tool
    return name


def identifier(name: str) -> str:
    """A name that Python can write, in letters that are not taken for others."""
    found = _UNFIT.sub("_", normalize("NFKC", name)).strip("_") or "tool"
    found = f"_{found}" if found[0].isdigit() else found
    return f"{found}_" if keyword.iskeyword(found) or found in TAKEN else found
