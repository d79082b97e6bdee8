"""OAuth client: obtains, refreshes and steps up the tokens for one server.

    auth = OAuth("https://example.com/mcp", AuthorizationCode("http://127.0.0.1:8976/callback"), clock=time.time)

    request = auth.start_request("tools/call forecast")
    while True:
        headers = run(request.headers("POST", url))
        response = post(url, headers)
        if not run(request.should_retry(response)):
            break

`run` is the driver of `flow.py`. Only one flow of an OAuth object may run at a time: a driver that sends requests
concurrently holds a lock around `run`, but not around the request. A request that waited for the lock then uses the
token that the other one obtained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from portico._options import validated_kwargs
from portico.auth.assertions import DPOP_ALGORITHM, DpopProver
from portico.auth.challenges import AuthChallenge, parse_auth_challenge
from portico.auth.errors import DiscoveryError, GrantDenied, ScopeRejected, TokenRejected, quote_untrusted
from portico.auth.flow import AuthFlow, FetchResponse
from portico.auth.grants import Grant, TokenRequest
from portico.auth.metadata import DiscoveredAuthorizationServer, MetadataDiscovery, discover
from portico.auth.token_storage import TokenStorage
from portico.auth.tokens import Token
from portico.auth.url_policy import check_url, same_origin
from portico.protocol.errors import UsageError

OFFLINE_ACCESS = "offline_access"

# Per operation: once because the token lacks scopes, once more because users misclick.
_MAX_STEP_UPS = 2
# Errors that do not mean that the refresh token is invalid.
_TRANSIENT_ERRORS = ("", "server_error", "temporarily_unavailable", "slow_down")
# Per request, for whatever reasons, so that the user is not asked endlessly.
_MAX_ATTEMPTS = 6


class OAuth:
    """OAuth client for one server.

    `grant` obtains the tokens and `storage` persists them. `scopes` are requested in addition to the scopes of a
    challenge, and instead of those in the server's metadata. `dpop`: None binds tokens to a key if the server requires
    it, True always, False never. `dpop_body_digest` adds a digest of the body to proofs. `ignore_trailing_slash`
    accepts an issuer that differs only in a trailing slash.
    """

    @validated_kwargs
    def __init__(
        self,
        server_url: str,
        grant: Grant,
        *,
        clock: Callable[[], float],
        storage: TokenStorage | None = None,
        scopes: Iterable[str] = (),
        dpop: bool | None = None,
        dpop_body_digest: bool = False,
        protocol_version: str | None = None,
        ignore_trailing_slash: bool = False,
    ) -> None:
        check_url(server_url)
        self._discovery = MetadataDiscovery(server_url, protocol_version, ignore_trailing_slash)
        self._grant = grant
        self.clock = clock
        self._credentials = TokenStorage() if storage is None else storage
        self._scopes = tuple(scopes)
        self._dpop = dpop
        self._dpop_digest = dpop_body_digest
        self._discovered: DiscoveredAuthorizationServer | None = None
        self._token: Token | None = None
        self.dpop_prover: DpopProver | None = None
        self._is_loaded = False
        self._step_ups: dict[tuple[str, frozenset[str]], int] = {}

    @property
    def server_url(self) -> str:
        return self._discovery.server

    @property
    def token(self) -> Token | None:
        """Return the current token, valid or not, or None."""
        if not self._is_loaded:
            # Loaded on first use: a keyring may ask the user to unlock it.
            self._is_loaded = True
            self._adopt(self._matching_type(self._credentials.last_token(self.server_url)))
        return self._token

    def start_request(self, operation: str = "") -> AuthorizedRequest:
        """Return the authorization state of one request. `operation` identifies it when step-ups are counted."""
        return AuthorizedRequest(self, operation)

    def authorize(self, response: FetchResponse | None = None) -> AuthFlow[Token]:
        """Obtain a new token even if one is stored (login). `response` is the refusal that caused it, if any."""
        challenge = AuthChallenge() if response is None else parse_auth_challenge(response)
        return (yield from self._obtain((yield from self._discover(challenge)), challenge))

    def logout(self) -> None:
        """Delete the stored token. It is not revoked at the server."""
        if self.token is not None:
            self._credentials.delete_token(self.token)
        self._adopt(None)

    # Used by AuthorizedRequest.

    def current_token(self) -> AuthFlow[Token | None]:
        """Return the token to send, refreshed first if it has expired and its authorization server is known."""
        token = self.token
        if token is None or not token.is_expired(self.clock()):
            return token
        discovered = self._discovered
        if token.refresh_token is None or discovered is None:
            return None  # the 401 response will name the authorization server
        # The server now names another issuer or resource; the 401 response starts a new discovery.
        if (discovered.server.issuer, discovered.resource) != (token.issuer, token.resource):
            return None
        return (yield from self._refresh(discovered, token))

    def renew_token(self, challenge: AuthChallenge, refused: set[str], tried: set[str]) -> AuthFlow[Token | None]:
        """Return a replacement for refused tokens, by a method that was not tried yet, or None."""
        discovered = yield from self._discover(challenge)
        # Another process may have logged in or refreshed since.
        stored = self._matching_type(self._credentials.token(discovered.server.issuer, discovered.resource))
        if stored is not None and stored.access_token not in refused and not stored.is_expired(self.clock()):
            self._adopt(stored)
            return stored
        if stored is not None and stored.refresh_token is not None and "refresh" not in tried:
            tried.add("refresh")
            refreshed = yield from self._refresh(discovered, stored)
            if refreshed is not None:
                return refreshed
        if "grant" in tried:
            return None
        tried.add("grant")
        return (yield from self._obtain(discovered, challenge))

    def step_up(self, operation: str, challenge: AuthChallenge, steps: int) -> AuthFlow[Token]:
        """Obtain a token with the challenged scopes in addition to all that were requested before."""
        granted = () if self._token is None else (*self._token.requested_scopes, *self._token.scope.split())
        # Counted per operation and scopes, so that two tools with different needs do not use up one budget.
        key = operation, frozenset(challenge.scopes)
        tries = self._step_ups.get(key, 0)
        # If the challenge names no new scopes, asking the user a second time cannot help.
        if steps >= _MAX_STEP_UPS or tries >= (
            _MAX_STEP_UPS if set(challenge.scopes) - set(granted) else _MAX_STEP_UPS - 1
        ):
            raise ScopeRejected(
                f"{quote_untrusted(self.server_url)} requires the scopes "
                f"{quote_untrusted(' '.join(challenge.scopes))} for "
                f"{quote_untrusted(operation or 'this request')}, and refused the token that was issued with "
                "them"
                + (f": {quote_untrusted(challenge.error_description)}" if challenge.error_description else "")
                + ". The account may lack the permission; ask the operator of the server."
            )
        self._step_ups[key] = tries + 1
        discovered = yield from self._discover(challenge)
        return (yield from self._obtain(discovered, challenge))

    def reset_step_ups(self, operation: str) -> None:
        """Forget the step-ups of an operation that succeeded."""
        for key in [key for key in self._step_ups if key[0] == operation]:
            del self._step_ups[key]

    def _discover(self, challenge: AuthChallenge) -> AuthFlow[DiscoveredAuthorizationServer]:
        # Discovery runs every time, because a server may move to another authorization server.
        prefer = self.token.issuer if self.token is not None else None
        self._discovered = yield from discover(self._discovery, challenge, prefer)
        return self._discovered

    def _obtain(self, discovered: DiscoveredAuthorizationServer, challenge: AuthChallenge) -> AuthFlow[Token]:
        prover = self._prover_for(discovered, challenge)
        token = yield from self._grant.token(
            self._token_request(discovered, self._select_scopes(discovered, challenge), prover)
        )
        self.dpop_prover = prover  # with the nonces learned during the grant
        return self._store(token)

    def _refresh(self, discovered: DiscoveredAuthorizationServer, token: Token) -> AuthFlow[Token | None]:
        """Refresh a token, or return None and forget a refresh token that is no longer valid."""
        # Refresh tokens are rotated (OAuth 2.1, section 4.3.1): using one twice can revoke the whole family.
        stored = self._credentials.token(token.issuer, token.resource)
        if stored is not None and stored.access_token != token.access_token and not stored.is_expired(self.clock()):
            self._adopt(stored)
            return stored
        self._adopt(token)
        try:
            token = yield from self._grant.refresh(
                self._token_request(discovered, token.requested_scopes, self.dpop_prover), token
            )
        except GrantDenied as error:
            if error.error in _TRANSIENT_ERRORS:
                raise
            stored = self._credentials.token(token.issuer, token.resource)
            if stored is not None and stored.refresh_token != token.refresh_token:
                self._adopt(stored)  # another process refreshed first and used up the refresh token
                return stored
            self._store(msgspec.structs.replace(token, refresh_token=None))
            return None
        return self._store(token)

    def _select_scopes(self, discovered: DiscoveredAuthorizationServer, challenge: AuthChallenge) -> tuple[str, ...]:
        """Return the scopes to request (2026-07-28, Scope Selection Strategy and Step-Up Authorization Flow)."""
        scopes = [*(challenge.scopes or (() if self._scopes else discovered.scopes)), *self._scopes]
        if self._token is not None and self._token.resource == discovered.resource:
            # A challenge names the missing scopes only, so the granted ones are requested again.
            scopes = [*self._token.requested_scopes, *self._token.scope.split(), *scopes]
        # `offline_access` is not a scope of the resource; it is added below if the authorization server supports it.
        scopes = [scope for scope in dict.fromkeys(scopes) if scope != OFFLINE_ACCESS]
        # Without any scope the issuer's default applies; sending `offline_access` alone would replace that default.
        if scopes and self._grant.offline_access and OFFLINE_ACCESS in (discovered.server.scopes_supported or ()):
            scopes.append(OFFLINE_ACCESS)
        return tuple(scopes)

    def _prover_for(self, discovered: DiscoveredAuthorizationServer, challenge: AuthChallenge) -> DpopProver | None:
        use_dpop = self._dpop if self._dpop is not None else challenge.requires_dpop or discovered.dpop_required
        if not use_dpop:
            return None
        if DPOP_ALGORITHM not in (discovered.server.dpop_signing_alg_values_supported or ()):
            raise DiscoveryError(
                f"Tokens for {quote_untrusted(self.server_url)} must be bound to a key (DPoP, "
                f"{DPOP_ALGORITHM}), but {quote_untrusted(discovered.server.issuer)} does not announce support for "
                "it."
            )
        return self.dpop_prover or DpopProver(self.clock, include_body_digest=self._dpop_digest)

    def _matching_type(self, token: Token | None) -> Token | None:
        """Return a stored token if its type matches the `dpop` option."""
        other_type = token is not None and self._dpop is not None and self._dpop != (token.type == "DPoP")
        return None if other_type else token

    def _token_request(
        self, discovered: DiscoveredAuthorizationServer, scopes: tuple[str, ...], prover: DpopProver | None
    ) -> TokenRequest:
        return TokenRequest(
            server=self.server_url,
            authorization_server=discovered,
            scopes=scopes,
            credentials=self._credentials,
            clock=self.clock,
            dpop_prover=prover,
        )

    def _store(self, token: Token) -> Token:
        self._credentials.store_token(self.server_url, token)
        self._adopt(token)
        return token

    def _adopt(self, token: Token | None) -> None:
        self._token = token
        if token is None or token.dpop_key is None:
            self.dpop_prover = None
        elif self.dpop_prover is None or self.dpop_prover.private_key != token.dpop_key:
            self.dpop_prover = DpopProver(self.clock, token.dpop_key, include_body_digest=self._dpop_digest)


class AuthorizedRequest:
    """Authorization state of one request across its retries."""

    def __init__(self, oauth: OAuth, operation: str) -> None:
        self._oauth = oauth
        self._operation = operation
        self._url = oauth.server_url
        self._last_token: Token | None = None
        self._nonce: str | None = None
        self._tries = 0
        self._steps = 0
        self._refused: set[str] = set()
        self._tried_issuers: set[str] = set()

    def headers(self, method: str, url: str, body: bytes | None = None) -> AuthFlow[dict[str, str]]:
        """Return the authorization headers for the request; empty without a token.

        Raises `UsageError` if the URL is not of the server's origin.
        """
        if not same_origin(url, self._oauth.server_url):
            raise UsageError(f"a token for {self._oauth.server_url} must not be sent to {url}")
        self._url = url
        self._last_token = token = yield from self._oauth.current_token()
        if token is None:
            return {}
        if token.type == "Bearer":
            return {"Authorization": f"Bearer {token.access_token}"}
        prover = self._oauth.dpop_prover
        assert prover is not None
        self._nonce = prover.nonce(url)
        proof = prover.create_proof(method, url, token.access_token, body)
        return {"Authorization": f"DPoP {token.access_token}", "DPoP": proof}

    def should_retry(self, response: FetchResponse) -> AuthFlow[bool]:
        """Process a response and return whether to send the request again.

        Call it for every response, including successful ones. False leaves the response to the caller. Raises
        `TokenRejected` if no token can satisfy the server.
        """
        if (prover := self._oauth.dpop_prover) is not None:
            prover.store_nonce(self._url, response)
        if response.status not in (401, 403):
            self._oauth.reset_step_ups(self._operation)
            return False
        challenge = parse_auth_challenge(response)
        if response.status == 403 and challenge.error != "insufficient_scope":
            return False  # a plain 403 cannot be fixed by another token
        self._tries += 1
        if self._tries > _MAX_ATTEMPTS:
            raise TokenRejected(f"{quote_untrusted(self._oauth.server_url)} refused {_MAX_ATTEMPTS} tokens in a row.")
        # Retry only with a nonce that was not sent yet; otherwise the server would be asked in a loop.
        if challenge.error == "use_dpop_nonce" and prover is not None and prover.nonce(self._url) != self._nonce:
            return True
        if self._last_token is not None:
            self._refused.add(self._last_token.access_token)
        token = self._oauth.token
        if token is not None and token.access_token not in self._refused and not token.is_expired(self._oauth.clock()):
            return True  # another request obtained a new token since this one was sent
        if challenge.error == "insufficient_scope":
            yield from self._oauth.step_up(self._operation, challenge, self._steps)
            self._steps += 1
            return True
        if (yield from self._oauth.renew_token(challenge, self._refused, self._tried_issuers)) is None:
            raise TokenRejected(
                f"{quote_untrusted(self._oauth.server_url)} refuses the token that its authorization server has "
                "just issued for it"
                + (f": {quote_untrusted(challenge.error_description)}" if challenge.error_description else "")
                + (
                    ". The operator has to check the configuration; usually the audience or the issuer differs "
                    "from what the server expects."
                )
            )
        return True
