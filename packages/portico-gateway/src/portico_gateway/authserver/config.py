"""What the face is told: who it is, who may use it, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from portico_gateway.authserver.clients import KnownClient

# Clients remember nothing of the metadata for long, and neither do we of theirs.
ACCESS_SECONDS = 600.0
LOGIN_EVERY_SECONDS = 30 * 24 * 3600.0
IDLE_SECONDS = 14 * 24 * 3600.0
KEY_SECONDS = 30 * 24 * 3600.0


class FaceSettings(Struct, frozen=True, kw_only=True):
    """An authorization server of one resource server: `issuer` and `resource` are its names, to the letter."""

    issuer: str
    resource: str
    # Whether tokens are always for that; otherwise for what a client names that is below the issuer.
    audience_only: bool = False
    # What is shown to people.
    title: str = "this server"
    # Scope → what it lets a client do, in words for the consent page. Nothing else is granted.
    scopes: Mapping[str, str] = {}
    # What a client gets that asks for none; None: all of them.
    default_scopes: tuple[str, ...] | None = None
    clients: tuple[KnownClient, ...] = ()
    # Dynamic registration (RFC 7591), for clients that know no documents.
    registration: bool = True
    documents: bool = True
    # Hosts whose documents are read; none: any.
    client_hosts: tuple[str, ...] = ()
    # Networks beside the open internet that documents may be on.
    client_networks: tuple[str, ...] = ()
    access_seconds: float = ACCESS_SECONDS
    # How long a client may go on without a person logging in.
    login_every: float = LOGIN_EVERY_SECONDS
    idle_seconds: float = IDLE_SECONDS
    key_seconds: float = KEY_SECONDS

    @property
    def defaults(self) -> tuple[str, ...]:
        return tuple(self.scopes) if self.default_scopes is None else self.default_scopes

    def url(self, path: str) -> str:
        return self.issuer.rstrip("/") + path
