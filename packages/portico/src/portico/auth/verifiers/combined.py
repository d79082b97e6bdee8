"""Chain of verifiers: the first one that recognizes the credentials decides."""

from __future__ import annotations

from collections.abc import Sequence

from portico.auth.principal import Principal
from portico.auth.verifiers.base import RequestCredentials, VerificationPending, VerifiedToken, Verifier, try_verify


class FirstMatchVerifier:
    """Verifier that delegates to the first verifier that recognizes the credentials; its refusal is final."""

    def __init__(self, verifiers: Sequence[Verifier]) -> None:
        self._all = tuple(verifiers)
        self.depends_on_address = any(getattr(item, "depends_on_address", True) for item in self._all)
        self.headers = tuple(dict.fromkeys(name for item in self._all for name in getattr(item, "headers", ())))

    def try_verify(self, credentials: RequestCredentials) -> Principal | VerifiedToken | None:
        for verifier in self._all:
            result = try_verify(verifier, credentials)
            if result is not None:
                return result
        return None

    async def __call__(self, credentials: RequestCredentials) -> Principal | VerifiedToken | None:
        for verifier in self._all:
            try:
                result = try_verify(verifier, credentials)
            except VerificationPending:
                result = await verifier(credentials)
            if result is not None:
                return result
        return None
