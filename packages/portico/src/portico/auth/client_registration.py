"""OAuth client identity: client ids, dynamic registration and client authentication."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote_plus, urlsplit

import msgspec
from msgspec import Struct

from portico._options import validate_fields
from portico.auth.assertions import SigningKey, create_client_assertion
from portico.auth.errors import RegistrationError, quote_untrusted
from portico.auth.flow import AuthFlow, fetch
from portico.auth.metadata import AuthorizationServerMetadata
from portico.auth.url_policy import is_loopback_name
from portico.protocol.errors import UsageError

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

AUTH_NONE, CLIENT_SECRET_BASIC, CLIENT_SECRET_POST, PRIVATE_KEY_JWT = (
    "none",
    "client_secret_basic",
    "client_secret_post",
    "private_key_jwt",
)


class ClientRegistration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Client id with its credentials, valid only for the issuer that assigned it."""

    client_id: str
    client_secret: str | None = None
    # From the registration. None: chosen from the authorization server's metadata.
    token_endpoint_auth_method: str | None = None
    # Set for clients that registered dynamically.
    redirect_uris: tuple[str, ...] = ()
    # Whether it was registered for the device authorization grant.
    device_grant: bool = False
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    # The issuer that assigned the client id. None for configured clients, which are bound to the issuer of their first
    # use.
    issuer: str | None = None
    key: SigningKey | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    def is_valid_for(self, redirect_uri: str | None, now: float, *, device_grant: bool = False) -> bool:
        """Return whether this registration covers the redirect URI and the grant, and has not expired."""
        covers = (redirect_uri is None or redirect_uri in self.redirect_uris) and (
            self.device_grant or not device_grant
        )
        return covers and (self.expires_at is None or now < self.expires_at)

    def __repr__(self) -> str:
        return f"ClientRegistration(client_id={self.client_id!r}, issuer={self.issuer!r})"


class _RegistrationResponse(Struct, frozen=True):
    """Response to a registration request (RFC 7591, section 3.2.1)."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


def select_auth_method(client: ClientRegistration, server: AuthorizationServerMetadata) -> str:
    """Return the token endpoint authentication method: from the registration, else from the server's metadata."""
    if client.token_endpoint_auth_method is not None:
        return client.token_endpoint_auth_method
    offered = server.token_endpoint_auth_methods_supported
    if client.key is not None and (client.client_secret is None or PRIVATE_KEY_JWT in (offered or ())):
        return PRIVATE_KEY_JWT
    if client.client_secret is None:
        return AUTH_NONE
    if offered is None:
        return CLIENT_SECRET_BASIC  # the default of RFC 8414, section 2
    return next(
        (method for method in (CLIENT_SECRET_BASIC, CLIENT_SECRET_POST, AUTH_NONE) if method in offered),
        CLIENT_SECRET_BASIC,
    )


def authenticate_client(
    client: ClientRegistration, server: AuthorizationServerMetadata, now: float
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form fields and the headers that authenticate a token request.

    Raises `RegistrationError` if the client lacks the key or secret that the method needs.
    """
    # Unreachable through the grants, which bind clients first; a second barrier around the secrets.
    if client.issuer is not None and client.issuer != server.issuer:
        raise UsageError(f"the credentials of a client of {client.issuer} must not be sent to {server.issuer}")
    method = select_auth_method(client, server)
    if method == AUTH_NONE:
        return {"client_id": client.client_id}, {}
    if method == PRIVATE_KEY_JWT:
        if client.key is None:
            raise RegistrationError(
                f"The client {quote_untrusted(client.client_id)} must authenticate with private_key_jwt but has no key."
            )
        offered = server.token_endpoint_auth_signing_alg_values_supported
        signed = create_client_assertion(client.key, client.client_id, server.issuer, offered, now)
        return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": signed}, {}
    if client.client_secret is None:
        raise RegistrationError(
            f"The client {quote_untrusted(client.client_id)} must authenticate with {quote_untrusted(method)} "
            f"at {quote_untrusted(server.issuer)} but has no secret."
        )
    if method == CLIENT_SECRET_POST:
        return {"client_id": client.client_id, "client_secret": client.client_secret}, {}
    if method == CLIENT_SECRET_BASIC:
        # RFC 6749, section 2.3.1: both halves are form-encoded first, because a colon separates them.
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
        return {}, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    raise RegistrationError(
        f"The client {quote_untrusted(client.client_id)} must authenticate with the unsupported method "
        f"{quote_untrusted(method)}. Supported are {AUTH_NONE}, {CLIENT_SECRET_BASIC}, {CLIENT_SECRET_POST} and "
        f"{PRIVATE_KEY_JWT}."
    )


def register_client(
    server: AuthorizationServerMetadata,
    redirect_uri: str | None,
    metadata: Mapping[str, object],
    scopes: tuple[str, ...],
) -> AuthFlow[ClientRegistration]:
    """Register a client dynamically (RFC 7591) and return its registration.

    Without a redirect URI, the client registers for the device authorization grant only.

    Dynamic registration is deprecated since 2026-07-28, but many servers offer nothing else.
    """
    assert server.registration_endpoint is not None
    offered = server.token_endpoint_auth_methods_supported
    # A program on a user's machine cannot keep a secret, so it asks for one only where the server insists.
    method = next(
        (item for item in (AUTH_NONE, CLIENT_SECRET_BASIC, CLIENT_SECRET_POST) if offered is None or item in offered),
        AUTH_NONE,
    )
    # Announced by the server, so it accepts the grant type. One registration then serves both ways to log in.
    with_device_grant = server.device_authorization_endpoint is not None
    grant_types = [
        *(["authorization_code"] if redirect_uri is not None else []),
        *([DEVICE_CODE] if with_device_grant else []),
        "refresh_token",
    ]
    request_body = {
        "redirect_uris": [] if redirect_uri is None else [redirect_uri],
        "grant_types": grant_types,
        "response_types": [] if redirect_uri is None else ["code"],
        "token_endpoint_auth_method": method,
        # The default is "web", for which OpenID providers reject loopback redirects.
        "application_type": "native" if redirect_uri is None or is_native_redirect(redirect_uri) else "web",
        **({"scope": " ".join(scopes)} if scopes else {}),
        **metadata,
    }
    headers = (("Content-Type", "application/json"), ("Accept", "application/json"))
    response = yield from fetch("POST", server.registration_endpoint, headers, msgspec.json.encode(request_body))
    result = response.json_object()
    if response.status not in (200, 201) or result is None or "error" in result:
        fields = result or {}
        reason = " ".join(quote_untrusted(fields[name]) for name in ("error", "error_description") if fields.get(name))
        raise RegistrationError(
            f"{quote_untrusted(server.issuer)} did not register a client "
            + (f"with the redirect URI {quote_untrusted(redirect_uri)}" if redirect_uri else "for the device grant")
            + f" (HTTP {response.status}{', ' + reason if reason else ''}). Try "
            "another redirect URI, or register a client manually and configure its client id."
        )
    try:
        registered = msgspec.convert(
            {name: value for name, value in result.items() if value is not None}, _RegistrationResponse
        )
    except msgspec.ValidationError as error:
        raise RegistrationError(
            f"invalid registration response from {quote_untrusted(server.issuer)}: {error}."
        ) from None
    return ClientRegistration(
        client_id=registered.client_id,
        client_secret=registered.client_secret,
        token_endpoint_auth_method=registered.token_endpoint_auth_method or method,
        redirect_uris=() if redirect_uri is None else (redirect_uri,),
        device_grant=with_device_grant,
        scopes=scopes,
        # RFC 7591, section 3.2.1: 0 means that the secret does not expire.
        expires_at=registered.client_secret_expires_at or None,
        issuer=server.issuer,
    )


def check_client_metadata_url(url: str) -> None:
    """Raise UsageError unless the URL can be a client id: https, with a path.

    2026-07-28, Client ID Metadata Documents.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path in ("", "/") or parts.fragment or parts.username:
        raise UsageError(f"client metadata URL must be an https URL with a path, got {url}")


def check_redirect_uri(uri: str) -> None:
    """Raise UsageError unless the URI is https, loopback, or has a private-use scheme (RFC 8252, section 7.1)."""
    parts = urlsplit(uri)
    if parts.fragment:
        raise UsageError(f"redirect URI must not have a fragment, got {uri}")
    if parts.scheme == "http" and not is_loopback_name(parts.hostname or ""):
        raise UsageError(f"redirect URI must be https or a loopback address, got {uri}")
    if parts.scheme not in ("http", "https") and "." not in parts.scheme:
        raise UsageError(
            f"a private-use scheme of a redirect URI must contain a dot, such as com.example.app:/done, got {uri}"
        )


def is_native_redirect(redirect_uri: str) -> bool:
    """Return whether a redirect stays on this machine: loopback, or a private-use scheme."""
    parts = urlsplit(redirect_uri)
    return parts.scheme not in ("http", "https") or is_loopback_name(parts.hostname or "")
