"""Exposed task IDs: `alias.id.mac`. The MAC binds a task to its principal, so no state is needed.

To an upstream all callers are one client, the gateway, and it would return any of their tasks. The gateway must
therefore check the owner of a task itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from portico.rpc.identity import principal_id
from portico.server.context.request_state import RequestStateSealer

# Longer IDs were not issued by us.
MAX_TASK_ID_CHARS = 8 * 1024


class TaskIdCodec:
    """Encodes and decodes task IDs. Processes that serve the same clients share the key of the sealer."""

    def __init__(self, seal: RequestStateSealer) -> None:
        self._seal = seal

    def encode(self, alias: str, id: str, principal: Any) -> str:
        """Return the exposed ID of a task."""
        return f"{alias}.{id}.{self._seal.create_tag(_mac_input(alias, id, principal))}"

    def decode(self, outward: str, principal: Any, aliases: Iterable[str]) -> tuple[str, str] | None:
        """Return the alias and the upstream's ID; None if the ID was not issued to this principal."""
        rest, _, mark = outward.rpartition(".")
        if len(outward) > MAX_TASK_ID_CHARS or not mark:
            return None
        # Tried one by one: an alias and an upstream's ID may contain dots, so the first dot does not separate them.
        for alias in aliases:
            id = rest.removeprefix(f"{alias}.")
            if id != rest and self._seal.verify_tag(mark, _mac_input(alias, id, principal)):
                return alias, id
        return None


def _mac_input(alias: str, id: str, principal: Any) -> bytes:
    return msgspec.json.encode(["task", alias, id, principal_id(principal)])
