"""Finding a tool by what it is for."""

from __future__ import annotations

from msgspec import Struct

from portico.extend import ToolIndex, ToolWords
from portico.jsonschema import fields
from portico_services.contracts.definitions import Contract, Definition


class SearchMatch(Struct, frozen=True):
    tool: Definition
    score: float


def search(contract: Contract, query: str, most: int = 10) -> list[SearchMatch]:
    """The tools that the words of a query speak of, best first."""
    found = contract.once(_indexed).search(query, most)
    return [SearchMatch(contract.tools[at], round(score, 4)) for at, score in found]


def _indexed(contract: Contract) -> ToolIndex:
    return ToolIndex([_words(tool) for tool in contract.tools])


def _words(tool: Definition) -> ToolWords:
    parts = fields(tool.input_schema)
    return ToolWords(
        name=f"{tool.name} {tool.invocation}",
        title=tool.title,
        description=tool.description,
        parameters=" ".join(one.name for one in parts),
        explanations=" ".join(str(one.schema.get("description", "")) for one in parts),
    )
