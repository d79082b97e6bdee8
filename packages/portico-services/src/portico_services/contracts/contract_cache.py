"""Cache of the contract of a handler's tools, built once for each tool list that callers see."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from portico.extend import (
    FIRST_MODERN_VERSION,
    Call,
    CallbackReply,
    Handler,
    NotificationCallback,
    Reply,
    ToolPage,
    VisibleTools,
    get_capabilities,
)
from portico_services.contracts.definitions import ServerContract, contract_from_tools

# Different lists for different callers.
MAX_CONTRACTS = 16


class ContractCache:
    """Cached contracts of one handler."""

    def __init__(self) -> None:
        self._visible: VisibleTools[ServerContract] | None = None

    async def get(self, handler: Handler, *, emit: NotificationCallback | None = None, **about: Any) -> ServerContract:
        """Return the contract of the tools that the caller described by these Call fields can see now."""
        if self._visible is None or self._visible.handler is not handler:
            self._visible = VisibleTools(handler, partial(_contract, handler), MAX_CONTRACTS)
        reply = Reply() if emit is None else CallbackReply(emit)
        call = Call(method="tools/list", id="contract", reply=reply, **about)
        contract = await self._visible.get(call)
        if (contract.server, contract.version) != _name_and_version(handler):
            # Name and version became known, or changed, after the contract was built.
            self._visible.clear()
            contract = await self._visible.get(call)
        return contract


def _contract(handler: Handler, pages: Sequence[ToolPage]) -> ServerContract:
    tools = [msgspec.json.decode(entry) for page in pages for entry in page.entries]
    name, version = _name_and_version(handler)
    return contract_from_tools(tools, server=name, version=version, revision=FIRST_MODERN_VERSION)


def _name_and_version(handler: Handler) -> tuple[str, str]:
    # The connection to an upstream knows the server's name only after the first use.
    info = get_capabilities(handler).info
    return ("", "") if info is None else (info.name, info.version)
