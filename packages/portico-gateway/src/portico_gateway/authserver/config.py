"""Configuration of the authorization server: its identity, its clients and its lifetimes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from portico_gateway.authserver.clients import OAuthClient

# Access tokens are short-lived, because a revoked one may be accepted until it expires.
ACCESS_TOKEN_TTL_SECONDS = 600.0
MAX_SESSION_AGE_SECONDS = 30 * 24 * 3600.0
IDLE_SECONDS = 14 * 24 * 3600.0
KEY_ROTATION_SECONDS = 30 * 24 * 3600.0


class AuthorizationServerConfig(Struct, frozen=True, kw_only=True):
    """Configuration of the authorization server for one resource server.

    `issuer` and `resource` are compared as exact strings.
    """

    issuer: str
    resource: str
    # If true, every token is issued for `resource`; otherwise a client may name any resource below the issuer.
    audience_only: bool = False
    # Display name on the consent page.
    title: str = "this server"
    # Scope → description for the consent page. Other scopes are never granted.
    scopes: Mapping[str, str] = {}
    # Scopes for a client that requests none. None means all scopes.
    default_scopes: tuple[str, ...] | None = None
    clients: tuple[OAuthClient, ...] = ()
    # Dynamic client registration (RFC 7591), for clients that do not support metadata documents.
    dynamic_client_registration: bool = True
    client_id_metadata_documents: bool = True
    # Device authorization grant (RFC 8628), for clients without a browser.
    device_authorization: bool = True
    # Hosts from which metadata documents are accepted. Empty means any host.
    allowed_client_hosts: tuple[str, ...] = ()
    # Private networks from which metadata documents may be fetched, in addition to public addresses.
    allowed_client_networks: tuple[str, ...] = ()
    access_seconds: float = ACCESS_TOKEN_TTL_SECONDS
    # Maximum time before the user must log in again.
    max_session_age: float = MAX_SESSION_AGE_SECONDS
    idle_seconds: float = IDLE_SECONDS
    key_seconds: float = KEY_ROTATION_SECONDS

    @property
    def effective_default_scopes(self) -> tuple[str, ...]:
        return tuple(self.scopes) if self.default_scopes is None else self.default_scopes

    def url(self, path: str) -> str:
        return self.issuer.rstrip("/") + path
