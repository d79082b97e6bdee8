"""The access token of a request, as seen by authorization checks and token verifiers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal


class AccessToken(Struct, kw_only=True):
    """Claims and metadata of a request's access token. `token` is set only while a verifier runs."""

    token: str = ""
    client_id: str = ""
    scopes: list[str] = []
    expires_at: int | None = None
    resource: str | None = None
    subject: str | None = None
    claims: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"AccessToken(client_id={self.client_id!r}, scopes={self.scopes!r})"  # the rest is secret


def to_access_token(principal: Principal) -> AccessToken:
    """Build an AccessToken from a verified principal."""
    return AccessToken(
        client_id=principal.client_id or principal.id,
        scopes=sorted(principal.scopes or ()),
        subject=principal.id,
        claims={"sub": principal.id, **principal.claims},
    )
