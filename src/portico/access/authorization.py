"""`[auth]`: who may come in over HTTP, and who says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from portico.server.server import Server
from portico.wire.errors import UsageError


class AuthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `[auth]` says."""

    # Whose tokens are good here.
    issuers: tuple[str, ...] = ()
    # What a token has to be for. None: the URL of the endpoint.
    audience: str | None = None
    # What this server is called from outside.
    public_url: str | None = None
    # What each scope implies.
    scopes: dict[str, tuple[str, ...]] = {}


def read(said: Any, folder: Path) -> AuthSettings:
    try:
        return msgspec.convert(said, AuthSettings)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"[auth]: {mistake}") from None


def apply(server: Server, settings: AuthSettings) -> None:
    raise UsageError("it is not read yet")
