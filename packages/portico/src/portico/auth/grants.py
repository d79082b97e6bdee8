"""Token requests, and the grants that need no browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from portico.auth.assertions import DpopProver
from portico.auth.client_registration import ClientRegistration, authenticate_client
from portico.auth.errors import AuthorizationError, GrantDenied, credentials_mismatch, quote_untrusted
from portico.auth.flow import AuthFlow, post_form
from portico.auth.metadata import (
    AuthorizationServerMetadata,
    DiscoveredAuthorizationServer,
    MetadataDiscovery,
    fetch_authorization_server_metadata,
)
from portico.auth.token_storage import TokenStorage
from portico.auth.tokens import Token, TokenEndpointResponse, parse_token_response, validate_token_type

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"

# A server may ask for a nonce once, and once more if that nonce expired in transit.
_NONCE_TRIES = 2


class TokenRequest(Struct, frozen=True, kw_only=True):
    """Parameters of one token request: resource, authorization server and scopes."""

    server: str
    authorization_server: DiscoveredAuthorizationServer
    scopes: tuple[str, ...]
    credentials: TokenStorage
    clock: Callable[[], float]
    dpop_prover: DpopProver | None = None

    @property
    def issuer(self) -> str:
        return self.authorization_server.server.issuer

    def build_form(self, grant_type: str, **parameters: str) -> dict[str, str]:
        """Return the form of a token request. `resource` is always included (RFC 8707)."""
        scope = {"scope": " ".join(self.scopes)} if self.scopes else {}
        return {"grant_type": grant_type, **parameters, "resource": self.authorization_server.resource, **scope}


class Grant(Protocol):
    """A way to obtain a token. `offline_access`: whether to request a refresh token."""

    @property
    def offline_access(self) -> bool: ...

    def token(self, request: TokenRequest) -> AuthFlow[Token]: ...

    def refresh(self, request: TokenRequest, token: Token) -> AuthFlow[Token]:
        """Exchange the refresh token of `token`, from the same issuer, for a new token."""
        ...


def request_token(
    request: TokenRequest,
    form: Mapping[str, str],
    client: ClientRegistration | None,
    description: str,
    server: AuthorizationServerMetadata | None = None,
) -> AuthFlow[TokenEndpointResponse]:
    """Send a token request to the resource's authorization server, or to `server`, and parse the response."""
    is_other_server, server = server is not None, server or request.authorization_server.server
    # The key is known to the resource's authorization server only.
    prover = None if is_other_server else request.dpop_prover
    # RFC 9449, section 8: a 400 with `use_dpop_nonce` and a new nonce asks for one more attempt.
    for is_last in (False,) * _NONCE_TRIES + (True,):
        # Assertions and proofs are single-use, so every attempt signs new ones.
        credentials, headers = authenticate_client(client, server, request.clock()) if client is not None else ({}, {})
        nonce = None
        if prover is not None:
            nonce = prover.nonce(server.token_endpoint)
            headers["DPoP"] = prover.create_proof("POST", server.token_endpoint)
        response = yield from post_form(server.token_endpoint, {**form, **credentials}, tuple(headers.items()))
        if prover is None:
            break
        prover.store_nonce(server.token_endpoint, response)
        needs_nonce = (response.json_object() or {}).get("error") == "use_dpop_nonce"
        if is_last or not needs_nonce or prover.nonce(server.token_endpoint) == nonce:
            break
    return parse_token_response(response, description)


def to_token(
    request: TokenRequest, issued: TokenEndpointResponse, description: str, previous: Token | None = None
) -> Token:
    """Convert a token response into a Token. The previous refresh token stays in use unless it was replaced."""
    token_type = validate_token_type(issued, description, dpop=request.dpop_prover is not None)
    requested_scopes = previous.requested_scopes if previous is not None else request.scopes
    # RFC 6749, section 5.1: without `scope` in the response, the requested scope was granted.
    default_scope = previous.scope if previous is not None else " ".join(request.scopes)
    return Token(
        access_token=issued.token,
        type=token_type,
        issuer=request.issuer,
        resource=request.authorization_server.resource,
        expires_at=None if issued.expires_in is None else request.clock() + issued.expires_in,
        refresh_token=issued.refresh_token or (previous.refresh_token if previous is not None else None),
        scope=default_scope if issued.scope is None else issued.scope,
        requested_scopes=requested_scopes,
        dpop_key=None if request.dpop_prover is None else request.dpop_prover.private_key,
    )


def refresh_token(request: TokenRequest, token: Token, client: ClientRegistration | None) -> AuthFlow[Token]:
    """Rotate the refresh token (OAuth 2.1, section 4.3). The scopes stay the same, so none are sent."""
    assert token.refresh_token is not None
    # A refresh token is a credential: sent to another issuer, it would be given away.
    if token.issuer != request.issuer:
        raise credentials_mismatch("that a refresh token belongs to", token.issuer, request.issuer)
    form = {
        "grant_type": "refresh_token",
        "refresh_token": token.refresh_token,
        "resource": request.authorization_server.resource,
    }
    action = f"Asking {quote_untrusted(request.issuer)} to renew a token"
    issued = yield from request_token(request, form, client, action)
    return to_token(request, issued, action, token)


def bind_client(request: TokenRequest, client: ClientRegistration) -> ClientRegistration:
    """Return a configured client after checking that it may be used with this issuer."""
    if client.issuer is None:
        request.credentials.bind_issuer(request.server, client.client_id, request.issuer)
    elif client.issuer != request.issuer:
        raise credentials_mismatch(client.client_id, client.issuer, request.issuer)
    return client


class _ConfiguredClient:
    """Base class of grants with a configured client."""

    offline_access = False
    _client: ClientRegistration

    def refresh(self, request: TokenRequest, token: Token) -> AuthFlow[Token]:
        return refresh_token(request, token, bind_client(request, self._client))


class ClientCredentials(_ConfiguredClient):
    """Client credentials grant: a program that acts for itself, with a registered secret or key.

    Extension io.modelcontextprotocol/oauth-client-credentials. With a key, the grant type is still
    `client_credentials`: the assertion authenticates the client and does not replace the grant.
    """

    def __init__(self, client: ClientRegistration) -> None:
        self._client = client

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        client = bind_client(request, self._client)
        action = (
            f"Asking {quote_untrusted(request.issuer)} for a token as the client {quote_untrusted(client.client_id)}"
        )
        issued = yield from request_token(request, request.build_form("client_credentials"), client, action)
        return to_token(request, issued, action)


class IdentityProvider(Struct, frozen=True):
    """Identity provider of an enterprise, and our client registration there.

    Without `token_endpoint`, the endpoint is read from the issuer's metadata.
    """

    issuer: str
    client: ClientRegistration
    token_endpoint: str | None = None


class EnterpriseManagedAuthorization(_ConfiguredClient):
    """Enterprise-managed authorization (extension io.modelcontextprotocol/enterprise-managed-authorization).

    The identity provider exchanges the user's identity assertion for an ID-JAG, a grant for one authorization server
    and one resource; the authorization server exchanges that for a token. No browser opens and the user is not asked.
    """

    def __init__(
        self,
        provider: IdentityProvider,
        client: ClientRegistration,
        identity_assertion: str | Callable[[], str],
        identity_type: str = ID_TOKEN,
    ) -> None:
        self._provider = provider
        self._client = client
        self._identity = identity_assertion
        self._identity_type = identity_type

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        client = bind_client(request, self._client)
        provider = yield from _metadata(self._provider, request)
        form = request.build_form(
            TOKEN_EXCHANGE,
            requested_token_type=ID_JAG,
            audience=request.issuer,
            subject_token=self._identity() if callable(self._identity) else self._identity,
            subject_token_type=self._identity_type,
        )
        resource = request.authorization_server.resource
        action = f"Asking {quote_untrusted(provider.issuer)} for access to {quote_untrusted(resource)}"
        granted = yield from request_token(request, form, self._provider.client, action, provider)
        # An access token presented as a grant would be disclosed to the authorization server of the resource.
        if granted.issued_token_type != ID_JAG:
            raise AuthorizationError(
                f"{action}: expected an ID-JAG, got a token of type {quote_untrusted(granted.issued_token_type)}."
            )
        action = f"Presenting the grant of {quote_untrusted(provider.issuer)} to {quote_untrusted(request.issuer)}"
        issued = yield from request_token(
            request, request.build_form(JWT_BEARER, assertion=granted.token), client, action
        )
        return to_token(request, issued, action)


class TokenExchange(_ConfiguredClient):
    """Token exchange (RFC 8693): a token for the same subject and another audience.

    `subject_token` is the token to exchange, or a function that returns it. Without `provider`, the resource's own
    authorization server performs the exchange.
    """

    def __init__(
        self,
        client: ClientRegistration,
        subject_token: str | Callable[[], str],
        provider: IdentityProvider | None = None,
        subject_token_type: str = ACCESS_TOKEN,
        audience: str | None = None,
    ) -> None:
        self._client = client
        self._subject = subject_token
        self._provider = provider
        self._subject_type = subject_token_type
        self._audience = audience

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        form = request.build_form(
            TOKEN_EXCHANGE,
            requested_token_type=ACCESS_TOKEN,
            subject_token=self._subject() if callable(self._subject) else self._subject,
            subject_token_type=self._subject_type,
            **({"audience": self._audience} if self._audience is not None else {}),
        )
        provider = None if self._provider is None else (yield from _metadata(self._provider, request))
        client = self._client if provider is not None else bind_client(request, self._client)
        action = f"Exchanging a token at {quote_untrusted(provider.issuer if provider is not None else request.issuer)}"
        issued = yield from request_token(request, form, client, action, provider)
        if issued.issued_token_type not in (None, ACCESS_TOKEN, "urn:ietf:params:oauth:token-type:jwt"):
            raise AuthorizationError(
                f"{action}: expected an access token, got a token of type {quote_untrusted(issued.issued_token_type)}."
            )
        # The next token comes from another exchange: a refresh token would outlive the subject token.
        return to_token(request, msgspec.structs.replace(issued, refresh_token=None), action)


def _metadata(provider: IdentityProvider, request: TokenRequest) -> AuthFlow[AuthorizationServerMetadata]:
    if provider.token_endpoint is None:
        return (yield from fetch_authorization_server_metadata(MetadataDiscovery(request.server), provider.issuer))
    return AuthorizationServerMetadata(issuer=provider.issuer, token_endpoint=provider.token_endpoint)


class WorkloadIdentity:
    """Workload identity federation (SEP-1933): the platform vouches for the program.

    The platform's JWT is the grant, usually without a client id. A refusal is final: the same assertion is not
    presented again, and no other grant is tried.
    """

    offline_access = False

    def __init__(
        self,
        assertion: str | Callable[[str], str],
        client: ClientRegistration | None = None,
        *,
        issuer: str | None = None,
    ) -> None:
        self._assertion = assertion  # or a function from the issuer (the audience) to an assertion
        self._client = client
        self._issuer = issuer
        self._refused: dict[tuple[str, tuple[str, ...]], GrantDenied] = {}

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        client = self._bind_client(request)
        assertion = self._assertion(request.issuer) if callable(self._assertion) else self._assertion
        attempt = (assertion, request.scopes)
        if attempt in self._refused:
            raise self._refused[attempt]
        action = f"Presenting a workload's identity to {quote_untrusted(request.issuer)}"
        try:
            issued = yield from request_token(
                request, request.build_form(JWT_BEARER, assertion=assertion), client, action
            )
        except GrantDenied as error:
            # Only the latest: the platform replaces an assertion every few minutes, and old ones are not presented
            # again.
            self._refused = {attempt: error}
            raise
        return to_token(request, issued, action)

    def refresh(self, request: TokenRequest, token: Token) -> AuthFlow[Token]:
        return refresh_token(request, token, self._bind_client(request))

    def _bind_client(self, request: TokenRequest) -> ClientRegistration | None:
        if self._issuer is not None and self._issuer != request.issuer:
            raise credentials_mismatch("that the workload's identity is for", self._issuer, request.issuer)
        # Without a configured issuer, the first one is recorded, and a server that later names another gets nothing.
        if self._issuer is None:
            request.credentials.bind_issuer(request.server, "workload identity", request.issuer)
        return self._client if self._client is None else bind_client(request, self._client)
