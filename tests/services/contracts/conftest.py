"""A small shop to look at, and the contract of a single tool."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Server
from portico_services.contracts.definitions import Contract, contract_of

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE), str(HERE.parent.parent / "schema")]  # for node.py and its like


@pytest.fixture
def shop() -> Server:
    # Found by then: where it lies has just been said.
    import corner_shop

    return corner_shop.make()


@pytest.fixture
def tool() -> Callable[..., Contract]:
    """`tool(input, output, version=…, **members)`: the contract of a server with one tool, `t`."""

    def make(
        input: dict[str, Any] | None = None,
        output: dict[str, Any] | None = None,
        version: str = "1.0.0",
        **members: Any,
    ) -> Contract:
        entry: dict[str, Any] = {"name": "t", "description": "A tool.", "inputSchema": input or {"type": "object"}}
        if output is not None:
            entry["outputSchema"] = output
        meta = {"portico/version": version, **members.pop("_meta", {})}
        return contract_of([{**entry, "_meta": meta, **members}], server="s", version="1.0.0")

    return make
