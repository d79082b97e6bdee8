"""Asking for a token: what every grant has in common, and the grants that need no browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from portico.auth.assertions import Prover
from portico.auth.client_registration import Registration, authenticate
from portico.auth.errors import AuthorizationFailed, CredentialsMismatch, GrantDenied, quoted
from portico.auth.flow import Conversation, post_form
from portico.auth.metadata import DiscoveredServer, MetadataSearch, ServerMetadata, find_server
from portico.auth.token_storage import Credentials
from portico.auth.tokens import Issued, Token, read_issued, token_type

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"

# A server may say once that it wants a nonce, and once more if the nonce grew old on the way.
_NONCE_TRIES = 2


class Ask(Struct, frozen=True, kw_only=True):
    """One wish for a token: for what, from whom, with which scopes."""

    server: str
    found: DiscoveredServer
    scopes: tuple[str, ...]
    credentials: Credentials
    clock: Callable[[], float]
    prover: Prover | None = None

    @property
    def issuer(self) -> str:
        return self.found.server.issuer

    def form(self, grant_type: str, **parameters: str) -> dict[str, str]:
        """A token request. `resource` is in every one, whatever the authorization server makes of it."""
        scope = {"scope": " ".join(self.scopes)} if self.scopes else {}
        return {"grant_type": grant_type, **parameters, "resource": self.found.resource, **scope}


class Grant(Protocol):
    """A way to get a token. `offline`: whether to ask for one that outlives the user's presence."""

    @property
    def offline(self) -> bool: ...

    def token(self, ask: Ask) -> Conversation[Token]: ...

    def refresh(self, ask: Ask, held: Token) -> Conversation[Token]:
        """A token for a refresh token of the same issuer."""
        ...


def request_token(
    ask: Ask, form: Mapping[str, str], client: Registration | None, asked: str, server: ServerMetadata | None = None
) -> Conversation[Issued]:
    """Ask a token endpoint: the resource's authorization server, or another one that was configured."""
    elsewhere, server = server is not None, server or ask.found.server
    prover = None if elsewhere else ask.prover
    for last in (False,) * _NONCE_TRIES + (True,):
        # Everything signed is signed anew for each try: an assertion or a proof that was seen is used up.
        more, headers = authenticate(client, server, ask.clock()) if client is not None else ({}, {})
        nonce = None
        if prover is not None:
            nonce = prover.nonce(server.token_endpoint)
            headers["DPoP"] = prover.proof("POST", server.token_endpoint)
        answer = yield from post_form(server.token_endpoint, {**form, **more}, tuple(headers.items()))
        if prover is None:
            break
        prover.note(server.token_endpoint, answer)
        wanted = (answer.document() or {}).get("error") == "use_dpop_nonce"
        if last or not wanted or prover.nonce(server.token_endpoint) == nonce:
            break
    return read_issued(answer, asked)


def keep(ask: Ask, issued: Issued, asked: str, held: Token | None = None) -> Token:
    """What was issued, as a token of ours. A refresh token that was not replaced stays in use."""
    kind = token_type(issued, asked, dpop=ask.prover is not None)
    wanted = held.asked if held is not None else ask.scopes
    unsaid = held.scope if held is not None else " ".join(ask.scopes)
    return Token(
        access_token=issued.token,
        type=kind,
        issuer=ask.issuer,
        resource=ask.found.resource,
        expires_at=None if issued.lifetime is None else ask.clock() + issued.lifetime,
        refresh_token=issued.refresh_token or (held.refresh_token if held is not None else None),
        scope=unsaid if issued.scope is None else issued.scope,
        asked=wanted,
        key=None if ask.prover is None else ask.prover.key,
    )


def refresh(ask: Ask, held: Token, client: Registration | None) -> Conversation[Token]:
    """Rotate (OAuth 2.1, section 4.3). The scopes stay as they are, so none are named."""
    assert held.refresh_token is not None
    if held.issuer != ask.issuer:
        raise CredentialsMismatch("that a refresh token belongs to", held.issuer, ask.issuer)
    form = {"grant_type": "refresh_token", "refresh_token": held.refresh_token, "resource": ask.found.resource}
    asked = f"Asking {quoted(ask.issuer)} to renew a token"
    issued = yield from request_token(ask, form, client, asked)
    return keep(ask, issued, asked, held)


def bound(ask: Ask, client: Registration) -> Registration:
    """A client that a user configured, if it may be shown to this issuer."""
    if client.issuer is None:
        ask.credentials.bind(ask.server, client.client_id, ask.issuer)
    elif client.issuer != ask.issuer:
        raise CredentialsMismatch(client.client_id, client.issuer, ask.issuer)
    return client


class _ConfiguredClient:
    """A grant whose client was registered beforehand."""

    offline = False
    _client: Registration

    def refresh(self, ask: Ask, held: Token) -> Conversation[Token]:
        return refresh(ask, held, bound(ask, self._client))


class ClientCredentials(_ConfiguredClient):
    """A program on its own behalf, with a secret or a key that was registered beforehand.

    Extension io.modelcontextprotocol/oauth-client-credentials. Also with a key the grant is `client_credentials`: the
    assertion says who asks, not for what.
    """

    def __init__(self, client: Registration) -> None:
        self._client = client

    def token(self, ask: Ask) -> Conversation[Token]:
        client = bound(ask, self._client)
        asked = f"Asking {quoted(ask.issuer)} for a token as the client {quoted(client.client_id)}"
        issued = yield from request_token(ask, ask.form("client_credentials"), client, asked)
        return keep(ask, issued, asked)


class IdentityProvider(Struct, frozen=True):
    """Where a user of an enterprise is logged in, and who we are there.

    Without a token endpoint it is looked up in the issuer's metadata.
    """

    issuer: str
    client: Registration
    token_endpoint: str | None = None


class EnterpriseManaged(_ConfiguredClient):
    """A user whose enterprise decides (extension io.modelcontextprotocol/enterprise-managed-authorization).

    The identity provider turns the user's identity into a grant for one authorization server and one resource, an
    ID-JAG; the authorization server turns that into a token. No browser is opened and the user is not asked.
    """

    def __init__(
        self,
        provider: IdentityProvider,
        client: Registration,
        identity: str | Callable[[], str],
        identity_type: str = ID_TOKEN,
    ) -> None:
        self._provider = provider
        self._client = client
        self._identity = identity
        self._identity_type = identity_type

    def token(self, ask: Ask) -> Conversation[Token]:
        client = bound(ask, self._client)
        provider = yield from _metadata(self._provider, ask)
        form = ask.form(
            TOKEN_EXCHANGE,
            requested_token_type=ID_JAG,
            audience=ask.issuer,
            subject_token=self._identity() if callable(self._identity) else self._identity,
            subject_token_type=self._identity_type,
        )
        asked = f"Asking {quoted(provider.issuer)} for access to {quoted(ask.found.resource)}"
        granted = yield from request_token(ask, form, self._provider.client, asked, provider)
        if granted.kind != ID_JAG:
            raise AuthorizationFailed(
                f"{asked}: it gave a {quoted(granted.kind)} and not the grant that was asked for."
            )
        asked = f"Presenting the grant of {quoted(provider.issuer)} to {quoted(ask.issuer)}"
        issued = yield from request_token(ask, ask.form(JWT_BEARER, assertion=granted.token), client, asked)
        return keep(ask, issued, asked)


class TokenExchange(_ConfiguredClient):
    """A token for another one (RFC 8693): who the first speaks of is who the second speaks of, for another audience.

    Without a provider the authorization server of the resource itself is asked. `subject` is the token that is given
    in exchange, or a function that gives it when it is needed.
    """

    def __init__(
        self,
        client: Registration,
        subject: str | Callable[[], str],
        provider: IdentityProvider | None = None,
        subject_type: str = ACCESS_TOKEN,
        audience: str | None = None,
    ) -> None:
        self._client = client
        self._subject = subject
        self._provider = provider
        self._subject_type = subject_type
        self._audience = audience

    def token(self, ask: Ask) -> Conversation[Token]:
        form = ask.form(
            TOKEN_EXCHANGE,
            requested_token_type=ACCESS_TOKEN,
            subject_token=self._subject() if callable(self._subject) else self._subject,
            subject_token_type=self._subject_type,
            **({"audience": self._audience} if self._audience is not None else {}),
        )
        provider = None if self._provider is None else (yield from _metadata(self._provider, ask))
        client = self._client if provider is not None else bound(ask, self._client)
        asked = f"Exchanging a token at {quoted(provider.issuer if provider is not None else ask.issuer)}"
        issued = yield from request_token(ask, form, client, asked, provider)
        if issued.kind not in (None, ACCESS_TOKEN, "urn:ietf:params:oauth:token-type:jwt"):
            raise AuthorizationFailed(f"{asked}: it gave a {quoted(issued.kind)} and no access token.")
        # The next one comes by another exchange: what a refresh token outlives is the first token.
        return keep(ask, msgspec.structs.replace(issued, refresh_token=None), asked)


def _metadata(provider: IdentityProvider, ask: Ask) -> Conversation[ServerMetadata]:
    if provider.token_endpoint is None:
        return (yield from find_server(MetadataSearch(ask.server), provider.issuer))
    return ServerMetadata(issuer=provider.issuer, token_endpoint=provider.token_endpoint)


class WorkloadIdentity:
    """A program that its platform vouches for (workload identity federation, SEP-1933).

    The platform's JWT is the grant, and mostly there is no client id. A refusal is final: what was refused once is not
    presented again, and no other grant is tried in its place.
    """

    offline = False

    def __init__(
        self,
        assertion: str | Callable[[str], str],
        client: Registration | None = None,
        *,
        issuer: str | None = None,
    ) -> None:
        self._assertion = assertion  # or a function from an issuer, which is the audience, to an assertion
        self._client = client
        self._issuer = issuer
        self._refused: dict[tuple[str, tuple[str, ...]], GrantDenied] = {}

    def token(self, ask: Ask) -> Conversation[Token]:
        client = self._bound(ask)
        assertion = self._assertion(ask.issuer) if callable(self._assertion) else self._assertion
        wish = (assertion, ask.scopes)
        if wish in self._refused:
            raise self._refused[wish]
        asked = f"Presenting a workload's identity to {quoted(ask.issuer)}"
        try:
            issued = yield from request_token(ask, ask.form(JWT_BEARER, assertion=assertion), client, asked)
        except GrantDenied as error:
            self._refused = {wish: error}
            raise
        return keep(ask, issued, asked)

    def refresh(self, ask: Ask, held: Token) -> Conversation[Token]:
        return refresh(ask, held, self._bound(ask))

    def _bound(self, ask: Ask) -> Registration | None:
        if self._issuer is not None and self._issuer != ask.issuer:
            raise CredentialsMismatch("that the workload's identity is for", self._issuer, ask.issuer)
        if self._issuer is None:
            ask.credentials.bind(ask.server, "workload identity", ask.issuer)
        return self._client if self._client is None else bound(ask, self._client)
