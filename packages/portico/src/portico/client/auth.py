"""How a client is told who to be: a token, a way to get one, or "oauth" for a person at a browser."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

from portico.auth.authorization_code import AuthorizationCode
from portico.auth.grants import Grant
from portico.auth.oauth import OAuth
from portico.auth.token_storage import Credentials, File, Keyring, Store
from portico.protocol.errors import UsageError
from portico.transports.http_client.base import RequestSender
from portico.transports.http_client.browser_login import Browser
from portico.transports.http_client.connection import Response
from portico.transports.http_client.oauth import Authorizer, Visitor
from portico.transports.http_client.pool import Headers, Location, Pool
from portico.transports.targets import Target, Url

Auth = str | Grant | OAuth | None

# Where the browser comes back to. Fixed, because what is registered somewhere is registered with it.
REDIRECT_URI = "http://127.0.0.1:8976/callback"


class Bearer:
    """Sends a token that was given."""

    identity = 0

    def __init__(self, token: str) -> None:
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise UsageError("a token is one word of plain characters")
        self._header = ("Authorization", f"Bearer {token}")

    async def send(
        self, pool: Pool, method: str, place: Location, headers: Headers, body: bytes, operation: str
    ) -> Response:
        return await pool.send(method, place, (*headers, self._header), body)

    async def close(self) -> None:
        """There is nothing open."""


def sender_for(auth: Auth, target: Target, browser: Visitor | None) -> RequestSender | None:
    if auth is None:
        return None
    if not isinstance(target, Url):
        raise UsageError("auth is for servers at a URL; others are given what they need by their environment")
    if isinstance(auth, str) and auth != "oauth":
        return Bearer(auth)
    if isinstance(auth, OAuth):
        return Authorizer(auth, browser or Browser())
    grant = AuthorizationCode(REDIRECT_URI) if isinstance(auth, str) else auth
    oauth = OAuth(target.url, grant, clock=time.time, credentials=Credentials(_store()))
    return Authorizer(oauth, browser or Browser())


def _store() -> Store:
    """The system's keyring where there is the package for it, else a file that only its owner can read."""
    if importlib.util.find_spec("keyring") is not None:
        return Keyring()
    folder = os.environ.get("PORTICO_DATA") or os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    place = Path(folder) if "PORTICO_DATA" in os.environ else Path(folder) / "portico"
    return File(place / "credentials.json")
