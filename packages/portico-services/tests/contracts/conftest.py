"""A shop server with many kinds of tools, and the contract of one tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from portico import Server
from portico_services.contracts.definitions import ServerContract, contract_from_tools
from support import contract_shop


@pytest.fixture
def shop() -> Server:
    return contract_shop.make()


@pytest.fixture
def tool() -> Callable[..., ServerContract]:
    """Create the contract of a server with one tool, `t`: `tool(input, output, version=…, **members)`."""

    def make(
        input: dict[str, Any] | None = None,
        output: dict[str, Any] | None = None,
        version: str = "1.0.0",
        **members: Any,
    ) -> ServerContract:
        entry: dict[str, Any] = {"name": "t", "description": "A tool.", "inputSchema": input or {"type": "object"}}
        if output is not None:
            entry["outputSchema"] = output
        meta = {"portico/version": version, **members.pop("_meta", {})}
        return contract_from_tools([{**entry, "_meta": meta, **members}], server="s", version="1.0.0")

    return make
