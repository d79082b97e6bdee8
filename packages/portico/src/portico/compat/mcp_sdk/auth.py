"""Token verifiers of the official SDK, which FastMCP shares: objects with `verify_token(token)`."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from portico.auth.access_token import AccessToken
from portico.auth.principal import Principal
from portico.auth.resource_server import ResourceServer
from portico.auth.verifiers.base import InvalidToken, RequestCredentials, VerifiedToken
from portico.compat.unsupported import UnsupportedFeature, reject_options
from portico.protocol.errors import UsageError


class AuthProvider:
    """An object for `auth=` that creates the ResourceServer when the server opens over HTTP."""

    # The scopes that every token needs, also if this provider is part of another one.
    required_scopes: Collection[str] = ()

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        raise NotImplementedError


_VERIFIER_UNSUPPORTED = {
    "resource_base_url": UnsupportedFeature("base_url is the URL of the server and of the resource"),
}


class TokenVerifier(AuthProvider):
    """Base class of verifiers; subclasses implement `async def verify_token(self, token) -> AccessToken | None`."""

    def __init__(
        self, base_url: Any = None, required_scopes: Collection[str] | None = None, **unsupported: Any
    ) -> None:
        reject_options(type(self).__name__, unsupported, _VERIFIER_UNSUPPORTED)
        self.base_url = base_url
        self.required_scopes = list(required_scopes or ())

    async def verify_token(self, token: str) -> AccessToken | None:
        raise NotImplementedError

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return create_resource_server(self, verifier, server)


class TokenVerifierAdapter:
    """Adapter from an object with `verify_token(token)` to a verifier of Portico."""

    by_address = False

    def __init__(self, verifier: Any) -> None:
        self._verifier = verifier

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        # Verifiers of the SDK know bearer tokens only. A DPoP-bound token accepted as a plain one
        # would lose its binding.
        if credentials.scheme != "bearer":
            return None
        token = await self._verifier.verify_token(credentials.token)
        if token is None:
            raise InvalidToken("the verifier does not accept it")
        # Checked here as well, because the SDK checks it after the verifier, and verifiers rely on
        # that.
        expires = getattr(token, "expires_at", None)
        if expires is not None and expires <= time.time():
            raise InvalidToken("it has expired")
        resource = getattr(token, "resource", None)
        # Attack: a token for another server, forwarded to this one (RFC 8707, confused deputy).
        if resource is not None and credentials.audiences and str(resource) not in credentials.audiences:
            raise InvalidToken("its audience is another server")
        claims = dict(getattr(token, "claims", None) or {})
        principal = Principal(
            id=str(getattr(token, "subject", None) or claims.get("sub") or token.client_id),
            scopes=frozenset(token.scopes or ()),
            claims=claims,
            client_id=token.client_id,
        )
        return VerifiedToken(principal, expires_at=expires)


class CompatAuth(AuthProvider):
    """The options `auth=` and `token_verifier=` of a server, which the SDK accepts together."""

    def __init__(self, auth: Any, verifier: Any) -> None:
        if not is_compat_auth(auth, verifier):
            raise UsageError(
                "auth must be an auth provider, a token verifier, a ResourceServer, the URL of an issuer or an async "
                f"function, got {type(verifier if auth is None else auth).__name__}"
            )
        self._auth, self._verifier = auth, verifier

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return create_resource_server(self._auth, self._verifier, server)


def to_verifier(verifier: Any) -> Any:
    """Convert a verifier of the other projects to one of Portico."""
    if hasattr(verifier, "verify_token"):
        return TokenVerifierAdapter(verifier)
    if isinstance(verifier, AuthProvider):
        return verifier.create_resource_server(None).verifier
    return verifier


def required_by(verifier: Any) -> list[str]:
    """Return the scopes that a verifier requires."""
    return list(getattr(verifier, "required_scopes", None) or ())


def is_compat_auth(auth: Any, verifier: Any) -> bool:
    """Return whether `auth=` and `token_verifier=` are objects that the other projects accept."""
    valid = auth is None or isinstance(auth, AuthProvider) or _is_settings(auth) or hasattr(auth, "verify_token")
    return valid and (verifier is None or isinstance(verifier, AuthProvider) or hasattr(verifier, "verify_token"))


def create_resource_server(auth: Any, verifier: Any, server: Any) -> ResourceServer:
    """Return the ResourceServer for `auth=` and `token_verifier=`."""
    if isinstance(auth, AuthProvider) and not hasattr(auth, "verify_token"):
        return auth.create_resource_server(server, verifier)
    if _is_settings(auth):
        from portico.compat.mcp_sdk import settings

        fields = {name: getattr(auth, name) for name in settings.AUTH_FIELDS if hasattr(auth, name)}
        return settings.AuthSettings(**fields).create_resource_server(server, verifier)
    chosen = auth if hasattr(auth, "verify_token") else verifier
    return ResourceServer(
        to_verifier(chosen),
        required_scopes=required_by(chosen),
        public_url=server_url(getattr(chosen, "base_url", None)),
    )


def _is_settings(auth: Any) -> bool:
    return hasattr(auth, "issuer_url") and hasattr(auth, "resource_server_url")


def server_url(url: Any) -> str | None:
    """Return the URL of a server without its endpoint path."""
    if url is None or not str(url):
        return None
    parts = urlsplit(str(url))
    # The SDK's URL includes the endpoint path, Portico's does not.
    path = parts.path.rstrip("/").removesuffix("/mcp")
    return f"{parts.scheme}://{parts.netloc}{path}"
