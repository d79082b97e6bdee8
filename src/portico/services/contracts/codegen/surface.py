"""What is written for a server: a method for each of its tools, and the types that they have in common."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from portico.schema import shapes
from portico.services.contracts.definitions import Contract, Definition
from portico.services.contracts.outcomes import unwrapped


class ToolMethod(Struct, frozen=True):
    """One tool: what it takes, and what it gives; None where nothing is promised about that."""

    tool: Definition
    arguments: shapes.Model
    result: shapes.Type | None


class Surface(Struct, frozen=True):
    """All that is written for one server."""

    contract: Contract
    models: list[shapes.Model]
    methods: list[ToolMethod]


def surface(contract: Contract, tools: Iterable[Definition]) -> Surface:
    taken: set[str] = set()
    models: list[shapes.Model] = []
    methods = []
    for tool in tools:
        stem = shapes.unique(shapes.pascal(tool.name), taken)
        arguments = shapes.ModelWriter(tool.input_schema, stem, taken, models).arguments()
        result = None
        if tool.output_schema is not None:
            # The value itself: what older revisions wrap it in is taken off by the caller.
            result = shapes.ModelWriter(unwrapped(tool.output_schema), stem, taken, models).result()
        methods.append(ToolMethod(tool, arguments, result))
    return Surface(contract, models, methods)
