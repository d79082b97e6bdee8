"""The ids of tasks on the outside: `alias.id.mark`. The mark binds a task to its principal, and nothing is remembered.

The upstreams see one client, the gateway, and would tell it of every task; so whose a task is has to be known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from portico.rpc.identity import identity_of
from portico.server.context.request_state import Seal

# Above this an id is none that we gave.
LONGEST_ID = 8 * 1024


class TaskIds:
    """Gives ids, and finds out what they stand for. Processes that serve the same clients share the seal's key."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def outward(self, alias: str, id: str, principal: Any) -> str:
        return f"{alias}.{id}.{self._mark(alias, id, principal)}"

    def inward(self, outward: str, principal: Any, aliases: Iterable[str]) -> tuple[str, str] | None:
        """The alias, and the upstream's own id; None for an id that this principal was never given."""
        rest, _, mark = outward.rpartition(".")
        if len(outward) > LONGEST_ID or not mark:
            return None
        for alias in aliases:
            id = rest.removeprefix(f"{alias}.")
            if id != rest and self._seal.is_mark(mark, _said(alias, id, principal)):
                return alias, id
        return None

    def _mark(self, alias: str, id: str, principal: Any) -> str:
        return self._seal.mark(_said(alias, id, principal))


def _said(alias: str, id: str, principal: Any) -> bytes:
    return msgspec.json.encode(["task", alias, id, identity_of(principal)])
