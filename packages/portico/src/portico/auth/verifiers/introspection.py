"""Tokens that only their issuer can read: it is asked what they stand for (RFC 7662)."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from urllib.parse import quote

from portico.auth.errors import AuthorizationFailed, DiscoveryFailed
from portico.auth.flow import Conversation, Fetched, post_form
from portico.auth.url_policy import check_url
from portico.auth.verifiers.base import LONGEST_TOKEN, RequestCredentials, TokenInvalid, Unavailable, Verified
from portico.auth.verifiers.base import hold as hold_conversation
from portico.auth.verifiers.claims import ClaimNames, check_audience, check_time, verified
from portico.auth.verifiers.jwks import find_issuer
from portico.auth.verifiers.jwt import LEEWAY_SECONDS
from portico.protocol.errors import TransportError, UsageError


class IntrospectionVerifier:
    """Asks the issuer of each token that is not known yet.

    * **issuer** – whose tokens they are; its metadata names the endpoint, unless `url` does.
    * **client_id**, **client_secret** – who we are to the issuer.
    * **audience** – what a token has to be for; None: what the server expects.
    * **require_audience** – whether a token is refused of which the issuer does not say for whom it is.
    """

    # Nothing but what it is shown decides: not from where.
    by_address = False

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str,
        *,
        url: str | None = None,
        audience: str | Sequence[str] | None = None,
        require_audience: bool = True,
        leeway: float = LEEWAY_SECONDS,
        claims: ClaimNames = ClaimNames(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            check_url(url or issuer)
        except AuthorizationFailed as mistake:
            raise UsageError(f"introspection: {mistake}") from None
        self.issuer = issuer
        self._url = url
        self.audiences = None if audience is None else frozenset([audience] if isinstance(audience, str) else audience)
        self._required = require_audience
        self._leeway = leeway
        self._claims = claims
        self._clock = clock
        # RFC 6749, section 2.3.1: each of the two is encoded before they are put together.
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._authorization = f"Basic {b64encode(pair.encode()).decode()}"

    async def __call__(self, credentials: RequestCredentials) -> Verified | None:
        if credentials.scheme not in ("bearer", "dpop"):
            return None
        if len(credentials.token) > LONGEST_TOKEN:
            raise TokenInvalid("it is too long")
        try:
            answer = await hold_conversation(self._ask(credentials.token), credentials.fetch)
        except (AuthorizationFailed, TransportError) as failure:
            raise Unavailable(f"the issuer {self.issuer} cannot be asked: {failure}") from None
        document = answer.document() if answer.status == 200 else None
        if document is None:
            raise Unavailable(f"the issuer {self.issuer} does not say what a token is (HTTP {answer.status})")
        return self._judge(document, credentials)

    def _judge(self, said: dict[str, object], credentials: RequestCredentials) -> Verified:
        if said.get("active") is not True:
            raise TokenInvalid("its issuer says that it is not active")
        if said.get("iss", self.issuer) != self.issuer:
            raise TokenInvalid("it is of another issuer")
        ends = check_time(said, self._clock(), self._leeway, must_end=False)
        check_audience(said, credentials.expected(self.audiences), required=self._required)
        return verified(said, self.issuer, self._claims, ends)

    def _ask(self, token: str) -> Conversation[Fetched]:
        if self._url is None:
            found = yield from find_issuer(self.issuer)
            if found.introspection_endpoint is None:
                raise DiscoveryFailed("it has no introspection_endpoint; say its URL")
            self._url = found.introspection_endpoint
        form = {"token": token, "token_type_hint": "access_token"}
        return (yield from post_form(self._url, form, (("Authorization", self._authorization),)))
