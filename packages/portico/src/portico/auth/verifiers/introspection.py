"""Token introspection (RFC 7662) for opaque tokens."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from urllib.parse import quote

from portico.auth.errors import AuthorizationError, DiscoveryError
from portico.auth.flow import AuthFlow, FetchResponse, post_form
from portico.auth.url_policy import check_url
from portico.auth.verifiers.base import (
    MAX_TOKEN_CHARS,
    InvalidToken,
    RequestCredentials,
    VerifiedToken,
    VerifierUnavailable,
    run_flow,
)
from portico.auth.verifiers.claims import ClaimNames, to_verified_token, validate_audience, validate_time
from portico.auth.verifiers.jwks import fetch_issuer_metadata
from portico.auth.verifiers.jwt import LEEWAY_SECONDS
from portico.protocol.errors import TransportError, UsageError


class IntrospectionVerifier:
    """Verifier that sends unknown tokens to the issuer's introspection endpoint.

    * **issuer** – the issuer of the tokens; its metadata names the endpoint unless `introspection_url` does.
    * **client_id**, **client_secret** – our credentials at the issuer.
    * **audience** – required audience; None: the audience of the server.
    * **require_audience** – whether to refuse tokens for which the issuer reports no audience.
    """

    # The result does not depend on the client's address.
    depends_on_address = False

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str,
        *,
        introspection_url: str | None = None,
        audience: str | Sequence[str] | None = None,
        require_audience: bool = True,
        leeway: float = LEEWAY_SECONDS,
        claim_names: ClaimNames = ClaimNames(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            check_url(introspection_url or issuer)
        except AuthorizationError as mistake:
            raise UsageError(f"introspection: {mistake}") from None
        self.issuer = issuer
        self._url = introspection_url
        self.audiences = None if audience is None else frozenset([audience] if isinstance(audience, str) else audience)
        self._required = require_audience
        self._leeway = leeway
        self._claims = claim_names
        self._clock = clock
        # RFC 6749, section 2.3.1: both parts are encoded before they are joined.
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._authorization = f"Basic {b64encode(pair.encode()).decode()}"

    async def __call__(self, credentials: RequestCredentials) -> VerifiedToken | None:
        if credentials.scheme not in ("bearer", "dpop"):
            return None
        if len(credentials.token) > MAX_TOKEN_CHARS:
            raise InvalidToken("the token exceeds the maximum length")
        try:
            response = await run_flow(self._introspect(credentials.token), credentials.fetch)
        except (AuthorizationError, TransportError) as failure:
            raise VerifierUnavailable(f"introspection at the issuer {self.issuer} failed: {failure}") from None
        document = response.json_object() if response.status == 200 else None
        if document is None:
            raise VerifierUnavailable(f"introspection at the issuer {self.issuer} failed (HTTP {response.status})")
        return self._validate(document, credentials)

    def _validate(self, response: dict[str, object], credentials: RequestCredentials) -> VerifiedToken:
        if response.get("active") is not True:
            raise InvalidToken("the issuer reports that the token is not active")
        if response.get("iss", self.issuer) != self.issuer:
            raise InvalidToken("the token belongs to another issuer")
        expires_at = validate_time(response, self._clock(), self._leeway, require_expiry=False)
        validate_audience(response, credentials.accepted_audiences(self.audiences), required=self._required)
        return to_verified_token(response, self.issuer, self._claims, expires_at)

    def _introspect(self, token: str) -> AuthFlow[FetchResponse]:
        if self._url is None:
            result = yield from fetch_issuer_metadata(self.issuer)
            if result.introspection_endpoint is None:
                raise DiscoveryError("the issuer's metadata has no introspection_endpoint; configure its URL")
            self._url = result.introspection_endpoint
        # RFC 7662, section 2.1: the hint only optimizes the lookup at the issuer.
        form = {"token": token, "token_type_hint": "access_token"}
        return (yield from post_form(self._url, form, (("Authorization", self._authorization),)))
