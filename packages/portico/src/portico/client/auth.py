"""Client authentication: a bearer token, a grant, or "oauth" for an interactive login."""

from __future__ import annotations

import importlib.util
import time

from portico.auth.device_code import UserLogin
from portico.auth.grants import Grant
from portico.auth.oauth import OAuth
from portico.auth.token_storage import FileStorage, KeyringStorage, StorageBackend, TokenStorage
from portico.protocol.errors import UsageError
from portico.store.data_directory import resolve_data_directory
from portico.transports.http_client.base import AuthenticatedTransport
from portico.transports.http_client.browser_login import BrowserLogin, has_browser
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.oauth import LoginCallback, OAuthTransport
from portico.transports.http_client.pool import HeaderItems, HttpConnectionPool, HttpUrl
from portico.transports.targets import Target, UrlTarget

ClientAuth = str | Grant | OAuth | None

# The redirect URI of the login. It is fixed because a client registration is bound to it.
DEFAULT_REDIRECT_URI = "http://127.0.0.1:8976/callback"


class BearerSender:
    """Transport authentication that sends a fixed bearer token."""

    auth_generation = 0

    def __init__(self, token: str) -> None:
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise UsageError("invalid token: expected printable ASCII characters without spaces")
        self._header = ("Authorization", f"Bearer {token}")

    async def send(
        self,
        pool: HttpConnectionPool,
        method: str,
        location: HttpUrl,
        headers: HeaderItems,
        body: bytes,
        operation: str,
    ) -> HttpClientResponse:
        return await pool.send(method, location, (*headers, self._header), body)

    async def close(self) -> None:
        """Do nothing: no connection is held open."""


def create_sender(auth: ClientAuth, target: Target, browser: LoginCallback | None) -> AuthenticatedTransport | None:
    """Return the transport authentication for `auth`, or None without authentication.

    Raises `UsageError` if the target is not a URL.
    """
    if auth is None:
        return None
    if not isinstance(target, UrlTarget):
        raise UsageError(
            "auth is supported for URL targets only; pass credentials to other servers through their environment"
        )
    if isinstance(auth, str) and auth != "oauth":
        return BearerSender(auth)
    if isinstance(auth, OAuth):
        return OAuthTransport(auth, browser or BrowserLogin())
    if isinstance(auth, str):
        # A caller with a browser callback wants it to be used.
        auth = UserLogin(DEFAULT_REDIRECT_URI, has_browser if browser is None else lambda: True)
    # Wall-clock time: token expiry times must survive a restart of the process.
    oauth = OAuth(target.url, auth, clock=time.time, storage=TokenStorage(token_backend()))
    return OAuthTransport(oauth, browser or BrowserLogin())


def token_backend() -> StorageBackend:
    """Return the system keyring if the `keyring` package is installed, otherwise a file readable by its owner only."""
    if importlib.util.find_spec("keyring") is not None:
        return KeyringStorage()
    return FileStorage(resolve_data_directory() / "credentials.json")


def has_stored_token(url: str) -> bool:
    """Return whether the user has logged in to a server. Tokens in a keyring are not read: it may be locked."""
    backend = token_backend()
    return isinstance(backend, FileStorage) and TokenStorage(backend).last_token(url) is not None
