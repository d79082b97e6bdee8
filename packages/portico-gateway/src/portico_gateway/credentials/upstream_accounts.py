"""Getting and renewing a person's token at an upstream: the client's own conversations, with what the vault knows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from portico.auth.authorization_code import AuthorizationCode, PendingCode
from portico.auth.challenges import Demand
from portico.auth.client_registration import Registration
from portico.auth.errors import RedirectRejected
from portico.auth.flow import Conversation
from portico.auth.grants import Ask
from portico.auth.metadata import DiscoveredServer, MetadataSearch, discover
from portico.auth.oauth import OFFLINE
from portico.auth.token_storage import Credentials
from portico.auth.tokens import Token


class UpstreamAccount(Struct, frozen=True, kw_only=True):
    """An upstream where each person has an account of their own, and who we are to its authorization server."""

    alias: str
    url: str
    title: str = ""
    scopes: tuple[str, ...] = ()
    client: Registration | None = None

    def grant(self, home: str) -> AuthorizationCode:
        """With a client id that was configured; else by a document of ours, or by registering."""
        document = f"{home}/connect/client.json" if home.startswith("https://") else None
        return AuthorizationCode(
            f"{home}/connect/return",
            client=self.client,
            client_metadata_url=None if self.client is not None else document,
            metadata={"client_name": "Portico"},
        )


def client_document(home: str, name: str) -> dict[str, Any]:
    """Who we are, where such documents are read (2026-07-28, Client ID Metadata Documents)."""
    return {
        "client_id": f"{home}/connect/client.json",
        "client_name": name,
        "client_uri": home,
        "redirect_uris": [f"{home}/connect/return"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def begin(account: UpstreamAccount, home: str, known: Credentials) -> Conversation[tuple[str, PendingCode]]:
    """The page where the person says yes, and what to remember until they are back."""
    ask = _ask(account, known, (yield from _found(account)))
    return (yield from account.grant(home).begin(ask))


def finish(
    account: UpstreamAccount, home: str, known: Credentials, pending: PendingCode, returned: Mapping[str, str]
) -> Conversation[Token]:
    found = yield from _found(account)
    if found.server.issuer != pending.issuer:
        raise RedirectRejected("The upstream has another issuer than a moment ago. Nothing was redeemed; start again.")
    return (yield from account.grant(home).finish(_ask(account, known, found), pending, returned))


def renew(account: UpstreamAccount, home: str, known: Credentials, held: Token) -> Conversation[Token]:
    """A token for a refresh token, at the issuer that gave it and at no other."""
    found = yield from _found(account, held.issuer)
    return (yield from account.grant(home).refresh(_ask(account, known, found), held))


def _found(account: UpstreamAccount, prefer: str | None = None) -> Conversation[DiscoveredServer]:
    return discover(MetadataSearch(account.url), Demand(), prefer)


def _ask(account: UpstreamAccount, known: Credentials, found: DiscoveredServer) -> Ask:
    scopes = account.scopes or found.scopes
    if scopes and OFFLINE in (found.server.scopes_supported or ()) and OFFLINE not in scopes:
        scopes = (*scopes, OFFLINE)
    return Ask(server=account.url, found=found, scopes=scopes, credentials=known, clock=time.time)
