"""Several verifiers as one: each knows the credentials of its kind, and the first that does decides."""

from __future__ import annotations

from collections.abc import Sequence

from portico.auth.principal import Principal
from portico.auth.verifiers.base import MustWait, RequestCredentials, Verified, Verifier, at_once


class Verifiers:
    """The first that knows the credentials decides: what it refuses is refused, whatever others would say."""

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._all = tuple(verifiers)
        self.by_address = any(getattr(one, "by_address", True) for one in self._all)
        self.headers = tuple(dict.fromkeys(name for one in self._all for name in getattr(one, "headers", ())))

    def at_once(self, credentials: RequestCredentials) -> Principal | Verified | None:
        for verifier in self._all:
            found = at_once(verifier, credentials)
            if found is not None:
                return found
        return None

    async def __call__(self, credentials: RequestCredentials) -> Principal | Verified | None:
        for verifier in self._all:
            try:
                found = at_once(verifier, credentials)
            except MustWait:
                found = await verifier(credentials)
            if found is not None:
                return found
        return None
