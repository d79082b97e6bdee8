"""OAuth flows that obtain and renew a user's token at an upstream, without I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from portico.auth.authorization_code import AuthorizationCode, PendingAuthorization
from portico.auth.challenges import AuthChallenge
from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import InvalidRedirect
from portico.auth.flow import AuthFlow
from portico.auth.grants import TokenRequest
from portico.auth.metadata import DiscoveredAuthorizationServer, MetadataDiscovery, discover
from portico.auth.oauth import OFFLINE_ACCESS
from portico.auth.token_storage import TokenStorage
from portico.auth.tokens import Token


class UpstreamAccount(Struct, frozen=True, kw_only=True):
    """Upstream where each user has an account, and our client registration at its authorization server."""

    alias: str
    url: str
    title: str = ""
    scopes: tuple[str, ...] = ()
    client: ClientRegistration | None = None

    def grant(self, home: str) -> AuthorizationCode:
        """Return the grant: with the configured client, else a client metadata document, else dynamic registration."""
        # A client metadata document must have an https URL, because the URL is the identity of the client.
        document = f"{home}/connect/client.json" if home.startswith("https://") else None
        return AuthorizationCode(
            f"{home}/connect/return",
            client=self.client,
            client_metadata_url=None if self.client is not None else document,
            metadata={"client_name": "Portico"},
        )


def client_metadata_document(home: str, name: str) -> dict[str, Any]:
    """Return our client metadata document (2026-07-28, Client ID Metadata Documents)."""
    return {
        "client_id": f"{home}/connect/client.json",
        "client_name": name,
        "client_uri": home,
        "redirect_uris": [f"{home}/connect/return"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def begin_authorization(
    account: UpstreamAccount, base_url: str, credentials: TokenStorage
) -> AuthFlow[tuple[str, PendingAuthorization]]:
    """Return the URL where the user authorizes access, and the state to store until the browser returns."""
    ask = _make_token_request(account, credentials, (yield from _discover_server(account)))
    return (yield from account.grant(base_url).start(ask))


def redeem_code(
    account: UpstreamAccount,
    home: str,
    storage: TokenStorage,
    pending: PendingAuthorization,
    returned: Mapping[str, str],
) -> AuthFlow[Token]:
    """Exchange an authorization code for a token. Raises InvalidRedirect if the upstream's issuer changed during the
    login.
    """
    result = yield from _discover_server(account)
    # Mix-up attack: the code must not be sent to the token endpoint of another server (RFC 9700, section 4.4).
    if result.server.issuer != pending.issuer:
        raise InvalidRedirect("The upstream's issuer changed during the login. The code was not redeemed; start again.")
    return (yield from account.grant(home).complete(_make_token_request(account, storage, result), pending, returned))


def refresh_token(account: UpstreamAccount, home: str, storage: TokenStorage, token: Token) -> AuthFlow[Token]:
    """Renew a token, only at the issuer that issued it."""
    result = yield from _discover_server(account, token.issuer)
    return (yield from account.grant(home).refresh(_make_token_request(account, storage, result), token))


def _discover_server(account: UpstreamAccount, prefer: str | None = None) -> AuthFlow[DiscoveredAuthorizationServer]:
    return discover(MetadataDiscovery(account.url), AuthChallenge(), prefer)


def _make_token_request(
    account: UpstreamAccount, storage: TokenStorage, server: DiscoveredAuthorizationServer
) -> TokenRequest:
    scopes = account.scopes or server.scopes
    # Without offline_access some authorization servers issue no refresh token.
    if scopes and OFFLINE_ACCESS in (server.server.scopes_supported or ()) and OFFLINE_ACCESS not in scopes:
        scopes = (*scopes, OFFLINE_ACCESS)
    return TokenRequest(
        server=account.url, authorization_server=server, scopes=scopes, credentials=storage, clock=time.time
    )
