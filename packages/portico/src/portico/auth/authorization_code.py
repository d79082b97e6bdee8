"""A user at a browser: the authorization code grant, with PKCE, always."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlencode

from msgspec import Struct

from portico.auth.assertions import SigningKey
from portico.auth.client_registration import (
    PRIVATE_KEY_JWT,
    Registration,
    check_client_metadata_url,
    check_redirect_uri,
    register,
)
from portico.auth.errors import DiscoveryFailed, GrantDenied, RedirectRejected, RegistrationFailed, quoted
from portico.auth.flow import Conversation, visit
from portico.auth.grants import Ask, bound, keep, refresh, request_token
from portico.auth.metadata import ServerMetadata
from portico.auth.tokens import Token


class AuthorizationCode:
    """The user says yes in a browser, and we get a token in their name.

    `client` is a registration made beforehand; `client_metadata_url` is a document of our own that serves as client id
    wherever such documents are read. With neither, we register by ourselves. `metadata` says more about us when we do:
    `client_name`, `client_uri`, `logo_uri`. With `offline` we ask for a refresh token, where one is to be had.
    """

    def __init__(
        self,
        redirect_uri: str,
        *,
        client: Registration | None = None,
        client_metadata_url: str | None = None,
        client_key: SigningKey | None = None,
        metadata: Mapping[str, object] | None = None,
        offline: bool = True,
    ) -> None:
        check_redirect_uri(redirect_uri)
        if client_metadata_url is not None:
            check_client_metadata_url(client_metadata_url)
        self.offline = offline
        self._redirect_uri = redirect_uri
        self._client = client
        self._document = client_metadata_url
        self._document_key = client_key
        self._metadata = {"client_name": "Portico", **(metadata or {})}

    def token(self, ask: Ask) -> Conversation[Token]:
        _check_pkce(ask.found.server)
        client = yield from self._identify(ask)
        try:
            return (yield from self._authorize(ask, client))
        except GrantDenied as error:
            # Some hold a client to the scopes that it registered with. Registering again costs no one a click.
            outgrown = error.error == "invalid_scope" and set(ask.scopes) - set(client.scopes)
            self._doubt(ask, client, error)
            if not outgrown or not self._registered(client):
                raise
            ask.credentials.keep_registration(ask.issuer, None)
        client = yield from self._identify(ask)
        return (yield from self._authorize(ask, client))

    def refresh(self, ask: Ask, held: Token) -> Conversation[Token]:
        client = yield from self._identify(ask)
        try:
            return (yield from refresh(ask, held, client))
        except GrantDenied as error:
            self._doubt(ask, client, error)
            raise

    def _registered(self, client: Registration) -> bool:
        """Whether a client id is one that we registered for, and can register for again."""
        return self._client is None and client.issuer is not None

    def _doubt(self, ask: Ask, client: Registration, error: GrantDenied) -> None:
        """An authorization server may forget whom it registered. Then so do we, and the next login registers anew."""
        if error.error == "invalid_client" and self._registered(client):
            ask.credentials.keep_registration(ask.issuer, None)

    def _identify(self, ask: Ask) -> Conversation[Registration]:
        """A client id: one we were given, else our own document, else one that we register for."""
        server = ask.found.server
        if self._client is not None:
            return bound(ask, self._client)
        if self._document is not None and server.client_id_metadata_document_supported:
            # Portable between issuers: no issuer gave it to us, so it need not be kept from others.
            signs = self._document_key is not None and PRIVATE_KEY_JWT in (
                server.token_endpoint_auth_methods_supported or ()
            )
            return Registration(
                client_id=self._document,
                key=self._document_key,
                token_endpoint_auth_method=PRIVATE_KEY_JWT if signs else "none",
            )
        known = ask.credentials.registration(ask.issuer)
        if known is not None and known.serves(self._redirect_uri, ask.clock()):
            return known
        if server.registration_endpoint is None:
            raise RegistrationFailed(
                f"{quoted(ask.issuer)} does not register clients itself, and we have no client id for it. Register by "
                f"hand, with the redirect URI {quoted(self._redirect_uri)}, and configure the client id"
                + (", or configure a client metadata URL." if server.client_id_metadata_document_supported else ".")
            )
        scopes = tuple(dict.fromkeys((*ask.scopes, *ask.found.scopes)))
        registered = yield from register(server, self._redirect_uri, self._metadata, scopes)
        ask.credentials.keep_registration(ask.issuer, registered)
        return registered

    def begin(self, ask: Ask) -> Conversation[tuple[str, PendingCode]]:
        """The page to show, and what to remember until the browser comes back: for those who cannot wait for that."""
        _check_pkce(ask.found.server)
        client = yield from self._identify(ask)
        return self._page(ask, client)

    def finish(self, ask: Ask, pending: PendingCode, returned: Mapping[str, str]) -> Conversation[Token]:
        """The token, once the browser is back with this."""
        client = yield from self._identify(ask)
        return (yield from self._redeem(ask, client, pending, returned))

    def _authorize(self, ask: Ask, client: Registration) -> Conversation[Token]:
        url, pending = self._page(ask, client)
        returned = yield from visit(url, self._redirect_uri)
        return (yield from self._redeem(ask, client, pending, returned))

    def _page(self, ask: Ask, client: Registration) -> tuple[str, PendingCode]:
        pending = PendingCode(ask.issuer, secrets.token_urlsafe(32), secrets.token_urlsafe(48))
        parameters = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": self._redirect_uri,
            "state": pending.state,
            "code_challenge": pending.challenge,
            "code_challenge_method": "S256",
            "resource": ask.found.resource,
        }
        if ask.scopes:
            parameters["scope"] = " ".join(ask.scopes)
        if "offline_access" in ask.scopes:
            parameters["prompt"] = "consent"  # without which it is ignored (OpenID Connect Core, section 11)
        if ask.prover is not None:
            parameters["dpop_jkt"] = ask.prover.thumbprint  # a stolen code is of no use either (RFC 9449, section 10)
        endpoint = ask.found.server.authorization_endpoint
        if endpoint is None:
            raise DiscoveryFailed(f"{quoted(ask.issuer)} has no page where a user could log in.")
        return endpoint + ("&" if "?" in endpoint else "?") + urlencode(parameters), pending

    def _redeem(
        self, ask: Ask, client: Registration, pending: PendingCode, returned: Mapping[str, str]
    ) -> Conversation[Token]:
        code = pending.code(returned, ask.found.server)
        asked = f"Redeeming a login at {quoted(ask.issuer)}"
        form = ask.form(
            "authorization_code", code=code, redirect_uri=self._redirect_uri, code_verifier=pending.verifier
        )
        form.pop("scope", None)  # settled with the code
        issued = yield from request_token(ask, form, client, asked)
        return keep(ask, issued, asked)


class PendingCode(Struct, frozen=True):
    """What has to be known when the browser comes back: kept together, from before it leaves."""

    issuer: str
    state: str
    verifier: str

    @property
    def challenge(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def code(self, returned: Mapping[str, str], server: ServerMetadata) -> str:
        """The code, once it is sure that this is the answer to our question and comes from the one we asked.

        Until both are sure, nothing of what came back is shown to the user (2026-07-28, Authorization Response
        Validation).
        """
        if not hmac.compare_digest(returned.get("state", "").encode(), self.state.encode()):
            raise RedirectRejected(
                "What came back from the browser does not carry the `state` that we sent along, so it answers "
                "something else. Start again, and use the window that opens."
            )
        issuer = returned.get("iss")
        # Plain string equality; no normalising of any kind (RFC 9207, section 2.4).
        if issuer is not None and issuer != self.issuer:
            raise RedirectRejected(
                f"We asked {quoted(self.issuer)} and another issuer answered. The answer was dropped: it may be an "
                "attempt to have a login at one place redeemed at another."
            )
        if issuer is None and server.authorization_response_iss_parameter_supported:
            raise RedirectRejected(
                f"{quoted(self.issuer)} promises to put its name (`iss`) on every answer, and this one has none. The "
                "answer was dropped."
            )
        if "error" in returned:
            raise GrantDenied(
                f"Asking for access at {quoted(self.issuer)}", returned["error"], returned.get("error_description")
            )
        if not returned.get("code"):
            raise RedirectRejected(f"The answer of {quoted(self.issuer)} has neither a code nor an error in it.")
        return returned["code"]


def _check_pkce(server: ServerMetadata) -> None:
    """2026-07-28, Authorization Code Protection: a server that does not announce PKCE counts as one without it."""
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise DiscoveryFailed(
            f"{quoted(server.issuer)} does not say that it supports PKCE with S256, and without it a login could be "
            "stolen on its way back. Its operator has to list it in `code_challenge_methods_supported`."
        )
