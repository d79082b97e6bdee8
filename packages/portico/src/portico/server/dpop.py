"""Replay cache for DPoP proofs that processes share through the store, so that a proof is accepted only once."""

from __future__ import annotations

from portico.auth.verifiers.base import VerifierUnavailable
from portico.auth.verifiers.dpop import MemoryReplayCache
from portico.server.context.replay_guard import UsedStates
from portico.store.errors import StoreError


class SharedReplayCache:
    """Replay cache that checks this process first, then the store if the server has one."""

    def __init__(self, used_states: UsedStates) -> None:
        self._used_states = used_states
        self._local_cache = MemoryReplayCache()

    def try_add(self, id: str, expires_at: float) -> bool | None:
        """Return whether the proof is new, or None if the store must be queried."""
        if self._used_states.is_shared:
            return None
        return self._local_cache.try_add(id, expires_at)

    async def add(self, id: str, expires_at: float) -> bool:
        """Record a proof and return whether it is new. Raises VerifierUnavailable if the store fails."""
        try:
            # Fail closed: without the store, a replay on another process would go unnoticed.
            return self._local_cache.try_add(id, expires_at) and await self._used_states.add(f"dpop {id}", expires_at)
        except StoreError as failure:
            raise VerifierUnavailable(f"cannot check for replayed DPoP proofs: {failure}") from None
