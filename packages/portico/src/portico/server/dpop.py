"""Proofs of DPoP that were used: in the store, where several processes share one, so that each is good once in all."""

from __future__ import annotations

from portico.auth.verifiers.base import Unavailable
from portico.auth.verifiers.dpop import RecentProofs
from portico.server.context.replay_guard import SpentStates
from portico.store.errors import StoreError


class SharedReplays:
    """What was used here is known at once. What is new here is asked of the store, if the server has one."""

    def __init__(self, spent: SpentStates) -> None:
        self._spent = spent
        self._here = RecentProofs()

    def at_once(self, id: str, until: float) -> bool | None:
        if self._spent.is_shared:
            return None
        return self._here.at_once(id, until)

    async def add(self, id: str, until: float) -> bool:
        try:
            return self._here.at_once(id, until) and await self._spent.add(f"dpop {id}", until)
        except StoreError as failure:
            raise Unavailable(f"whether a proof was used cannot be looked up: {failure}") from None
