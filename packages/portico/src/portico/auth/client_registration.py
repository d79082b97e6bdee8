"""Who we are to an authorization server: a client id, how we got it, and how we prove that it is ours."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote_plus, urlsplit

import msgspec
from msgspec import Struct

from portico._options import check_fields
from portico.auth.assertions import SigningKey, client_assertion
from portico.auth.errors import RegistrationFailed, quoted
from portico.auth.flow import Conversation, fetch
from portico.auth.metadata import ServerMetadata
from portico.auth.url_policy import names_loopback
from portico.protocol.errors import UsageError

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

NONE, BASIC, POST, PRIVATE_KEY_JWT = "none", "client_secret_basic", "client_secret_post", "private_key_jwt"


class Registration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client id and what goes with it. It belongs to the issuer that gave it, and is shown to no other."""

    client_id: str
    client_secret: str | None = None
    # What the registration says; None: what the authorization server's metadata leads to.
    token_endpoint_auth_method: str | None = None
    # What it was registered for, when we registered it.
    redirect_uris: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    # The issuer that gave it. None, for one that a user configured: the issuer it is first used with.
    issuer: str | None = None
    key: SigningKey | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def serves(self, redirect_uri: str, now: float) -> bool:
        """Whether an earlier registration will still do."""
        return redirect_uri in self.redirect_uris and (self.expires_at is None or now < self.expires_at)

    def __repr__(self) -> str:
        return f"Registration(client_id={self.client_id!r}, issuer={self.issuer!r})"


class _Registered(Struct, frozen=True):
    """The answer to a registration (RFC 7591, section 3.2.1)."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


def auth_method(client: Registration, server: ServerMetadata) -> str:
    """How a client shows itself at the token endpoint: as its registration says, else as the metadata allows."""
    if client.token_endpoint_auth_method is not None:
        return client.token_endpoint_auth_method
    offered = server.token_endpoint_auth_methods_supported
    if client.key is not None and (client.client_secret is None or PRIVATE_KEY_JWT in (offered or ())):
        return PRIVATE_KEY_JWT
    if client.client_secret is None:
        return NONE
    if offered is None:
        return BASIC  # what silence means (RFC 8414, section 2)
    return next((method for method in (BASIC, POST, NONE) if method in offered), BASIC)


def authenticate(client: Registration, server: ServerMetadata, now: float) -> tuple[dict[str, str], dict[str, str]]:
    """What to add to the form and to the headers of a token request."""
    if client.issuer is not None and client.issuer != server.issuer:
        raise UsageError(f"a client of {client.issuer} is not to be shown to {server.issuer}")
    method = auth_method(client, server)
    if method == NONE:
        return {"client_id": client.client_id}, {}
    if method == PRIVATE_KEY_JWT:
        if client.key is None:
            raise RegistrationFailed(f"The client {quoted(client.client_id)} has to sign for itself, and has no key.")
        offered = server.token_endpoint_auth_signing_alg_values_supported
        signed = client_assertion(client.key, client.client_id, server.issuer, offered, now)
        return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": signed}, {}
    if client.client_secret is None:
        raise RegistrationFailed(
            f"The client {quoted(client.client_id)} has to authenticate with {quoted(method)} at "
            f"{quoted(server.issuer)}, and has no secret."
        )
    if method == POST:
        return {"client_id": client.client_id, "client_secret": client.client_secret}, {}
    if method == BASIC:
        # Each half is form-encoded first (RFC 6749, section 2.3.1), or a colon in the id would cut it short.
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
        return {}, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    raise RegistrationFailed(
        f"The client {quoted(client.client_id)} is to authenticate with {quoted(method)}, which we cannot do. "
        f"{NONE}, {BASIC}, {POST} and {PRIVATE_KEY_JWT} we can."
    )


def register(
    server: ServerMetadata, redirect_uri: str, metadata: Mapping[str, object], scopes: tuple[str, ...]
) -> Conversation[Registration]:
    """Dynamic registration (RFC 7591): deprecated since 2026-07-28, and all that many servers have."""
    assert server.registration_endpoint is not None
    offered = server.token_endpoint_auth_methods_supported
    # A program on a user's machine keeps no secret; it takes one where it is not let in without.
    method = next((one for one in (NONE, BASIC, POST) if offered is None or one in offered), NONE)
    asked = {
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        # Silence would mean "web", to which OpenID providers deny redirects to this machine.
        "application_type": "native" if is_native(redirect_uri) else "web",
        **({"scope": " ".join(scopes)} if scopes else {}),
        **metadata,
    }
    headers = (("Content-Type", "application/json"), ("Accept", "application/json"))
    answer = yield from fetch("POST", server.registration_endpoint, headers, msgspec.json.encode(asked))
    found = answer.document()
    if answer.status not in (200, 201) or found is None or "error" in found:
        said = found or {}
        words = " ".join(quoted(said[name]) for name in ("error", "error_description") if said.get(name))
        raise RegistrationFailed(
            f"{quoted(server.issuer)} would not register us as a client with the redirect URI {quoted(redirect_uri)} "
            f"(HTTP {answer.status}{', ' + words if words else ''}). Try another redirect URI, or register there by "
            "hand and configure the client id."
        )
    try:
        given = msgspec.convert({name: value for name, value in found.items() if value is not None}, _Registered)
    except msgspec.ValidationError as error:
        raise RegistrationFailed(f"The registration at {quoted(server.issuer)} makes no sense: {error}.") from None
    return Registration(
        client_id=given.client_id,
        client_secret=given.client_secret,
        token_endpoint_auth_method=given.token_endpoint_auth_method or method,
        redirect_uris=(redirect_uri,),
        scopes=scopes,
        expires_at=given.client_secret_expires_at or None,
        issuer=server.issuer,
    )


def check_client_metadata_url(url: str) -> None:
    """A client id that is a URL: https, with a path (2026-07-28, Client ID Metadata Documents)."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path in ("", "/") or parts.fragment or parts.username:
        raise UsageError(f"a client metadata URL is an https URL with a path, not {url}")


def check_redirect_uri(uri: str) -> None:
    """https, or this machine, or a scheme that looks owned (RFC 8252, section 7.1)."""
    parts = urlsplit(uri)
    if parts.fragment:
        raise UsageError(f"a redirect URI has no fragment: {uri}")
    if parts.scheme == "http" and not names_loopback(parts.hostname or ""):
        raise UsageError(f"a redirect URI is https, or on this machine: {uri}")
    if parts.scheme not in ("http", "https") and "." not in parts.scheme:
        raise UsageError(
            f"a redirect URI with a scheme of its own needs a dot in it, as in com.example.app:/done: {uri}"
        )


def is_native(redirect_uri: str) -> bool:
    """Whether a redirect stays on this machine: loopback, or a scheme that an application claimed for itself."""
    parts = urlsplit(redirect_uri)
    return parts.scheme not in ("http", "https") or names_loopback(parts.hostname or "")
