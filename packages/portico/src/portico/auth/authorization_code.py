"""The authorization code grant for a user with a browser. PKCE is always used."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from urllib.parse import urlencode

from msgspec import Struct

from portico.auth.assertions import SigningKey
from portico.auth.client_registration import (
    PRIVATE_KEY_JWT,
    ClientRegistration,
    check_client_metadata_url,
    check_redirect_uri,
    register_client,
)
from portico.auth.errors import DiscoveryError, GrantDenied, InvalidRedirect, RegistrationError, quote_untrusted
from portico.auth.flow import AuthFlow, open_browser
from portico.auth.grants import TokenRequest, bind_client, refresh_token, request_token, to_token
from portico.auth.metadata import AuthorizationServerMetadata
from portico.auth.tokens import Token


class InteractiveGrant(ABC):
    """Base class of grants that a user approves: identifies the client, and registers it again where that helps."""

    _needs_device_grant = False

    def __init__(
        self,
        redirect_uri: str | None,
        client: ClientRegistration | None,
        client_metadata_url: str | None,
        client_key: SigningKey | None,
        metadata: Mapping[str, object] | None,
        offline_access: bool,
    ) -> None:
        if client_metadata_url is not None:
            check_client_metadata_url(client_metadata_url)
        self.offline_access = offline_access
        self._client_redirect_uri = redirect_uri
        self._client = client
        self._document = client_metadata_url
        self._document_key = client_key
        self._metadata = {"client_name": "Portico", **(metadata or {})}

    @abstractmethod
    def _authorize(self, request: TokenRequest, client: ClientRegistration) -> AuthFlow[Token]:
        """Return a token, after the user has approved access."""

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        """Return a token, after the user has approved access."""
        client = yield from self._identify(request)
        try:
            return (yield from self._authorize(request, client))
        except GrantDenied as error:
            # Some servers limit a client to the scopes it registered with. Registering again needs no user interaction.
            exceeds_registration = error.error == "invalid_scope" and set(request.scopes) - set(client.scopes)
            self._drop_unknown_registration(request, client, error)
            if not exceeds_registration or not self._is_dynamic(client):
                raise
            request.credentials.store_registration(request.issuer, None)
        client = yield from self._identify(request)
        return (yield from self._authorize(request, client))

    def refresh(self, request: TokenRequest, token: Token) -> AuthFlow[Token]:
        """Exchange the refresh token of `token` for a new token."""
        client = yield from self._identify(request)
        try:
            return (yield from refresh_token(request, token, client))
        except GrantDenied as error:
            self._drop_unknown_registration(request, client, error)
            raise

    def _is_dynamic(self, client: ClientRegistration) -> bool:
        """Return whether the client id came from dynamic registration, so that it can be registered again."""
        return self._client is None and client.issuer is not None

    def _drop_unknown_registration(self, request: TokenRequest, client: ClientRegistration, error: GrantDenied) -> None:
        """Delete a dynamic registration that the server no longer knows; the next login registers again."""
        if error.error == "invalid_client" and self._is_dynamic(client):
            request.credentials.store_registration(request.issuer, None)

    def _identify(self, request: TokenRequest) -> AuthFlow[ClientRegistration]:
        """Return the configured client, else the metadata document, else a (new or stored) dynamic registration."""
        server = request.authorization_server.server
        if self._client is not None:
            return bind_client(request, self._client)
        if self._document is not None and server.client_id_metadata_document_supported:
            # A metadata document is not issued by anyone, so the same client id may be shown to every issuer.
            signs = self._document_key is not None and PRIVATE_KEY_JWT in (
                server.token_endpoint_auth_methods_supported or ()
            )
            return ClientRegistration(
                client_id=self._document,
                key=self._document_key,
                token_endpoint_auth_method=PRIVATE_KEY_JWT if signs else "none",
            )
        registration = request.credentials.registration(request.issuer)
        if registration is not None and registration.is_valid_for(
            self._client_redirect_uri, request.clock(), device_grant=self._needs_device_grant
        ):
            return registration
        if server.registration_endpoint is None:
            redirect = self._client_redirect_uri
            raise RegistrationError(
                f"{quote_untrusted(request.issuer)} does not support dynamic client registration, and no client id "
                "is configured for it. Register a client "
                + (f"with the redirect URI {quote_untrusted(redirect)}" if redirect else "for the device grant")
                + " and configure its client id"
                + (", or configure a client metadata URL." if server.client_id_metadata_document_supported else ".")
            )
        scopes = tuple(dict.fromkeys((*request.scopes, *request.authorization_server.scopes)))
        registered = yield from register_client(server, self._client_redirect_uri, self._metadata, scopes)
        request.credentials.store_registration(request.issuer, registered)
        return registered


class AuthorizationCode(InteractiveGrant):
    """Authorization code grant: the user approves in a browser and the client receives a token for them.

    `redirect_uri` is where the browser returns to. `client` is an existing registration. `client_metadata_url` is the
    URL of a client metadata document, used as client id where the authorization server supports that; `client_key`
    signs for it. With neither, the client registers dynamically and sends `metadata` (`client_name`, `client_uri`,
    `logo_uri`). `offline_access` requests a refresh token where the server offers one.
    """

    def __init__(
        self,
        redirect_uri: str,
        *,
        client: ClientRegistration | None = None,
        client_metadata_url: str | None = None,
        client_key: SigningKey | None = None,
        metadata: Mapping[str, object] | None = None,
        offline_access: bool = True,
    ) -> None:
        check_redirect_uri(redirect_uri)
        super().__init__(redirect_uri, client, client_metadata_url, client_key, metadata, offline_access)
        self._redirect_uri = redirect_uri

    def token(self, request: TokenRequest) -> AuthFlow[Token]:
        """Return a token, after the user has approved access in a browser."""
        _check_pkce(request.authorization_server.server)
        return (yield from super().token(request))

    def start(self, request: TokenRequest) -> AuthFlow[tuple[str, PendingAuthorization]]:
        """Return the login URL and the state to store until the browser returns, for callers that cannot wait."""
        _check_pkce(request.authorization_server.server)
        client = yield from self._identify(request)
        return self._login_page(request, client)

    def complete(
        self, request: TokenRequest, pending: PendingAuthorization, callback_params: Mapping[str, str]
    ) -> AuthFlow[Token]:
        """Redeem the parameters of the redirect for a token."""
        client = yield from self._identify(request)
        return (yield from self._redeem(request, client, pending, callback_params))

    def _authorize(self, request: TokenRequest, client: ClientRegistration) -> AuthFlow[Token]:
        url, pending = self._login_page(request, client)
        callback_params = yield from open_browser(url, self._redirect_uri)
        return (yield from self._redeem(request, client, pending, callback_params))

    def _login_page(self, request: TokenRequest, client: ClientRegistration) -> tuple[str, PendingAuthorization]:
        # RFC 7636, section 4.1 requires 43 to 128 characters; 48 random bytes give 64.
        pending = PendingAuthorization(request.issuer, secrets.token_urlsafe(32), secrets.token_urlsafe(48))
        parameters = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": self._redirect_uri,
            "state": pending.state,
            "code_challenge": pending.code_challenge,
            "code_challenge_method": "S256",
            "resource": request.authorization_server.resource,
        }
        if request.scopes:
            parameters["scope"] = " ".join(request.scopes)
        if "offline_access" in request.scopes:
            parameters["prompt"] = "consent"  # OpenID Connect Core, section 11: offline_access is ignored without it
        if request.dpop_prover is not None:
            # A stolen code is useless without the key (RFC 9449, section 10).
            parameters["dpop_jkt"] = request.dpop_prover.thumbprint
        endpoint = request.authorization_server.server.authorization_endpoint
        if endpoint is None:
            raise DiscoveryError(
                f"{quote_untrusted(request.issuer)} publishes no authorization_endpoint, so a user cannot log in."
            )
        return endpoint + ("&" if "?" in endpoint else "?") + urlencode(parameters), pending

    def _redeem(
        self,
        request: TokenRequest,
        client: ClientRegistration,
        pending: PendingAuthorization,
        callback_params: Mapping[str, str],
    ) -> AuthFlow[Token]:
        code = pending.validate_callback(callback_params, request.authorization_server.server)
        action = f"Redeeming a login at {quote_untrusted(request.issuer)}"
        form = request.build_form(
            "authorization_code", code=code, redirect_uri=self._redirect_uri, code_verifier=pending.code_verifier
        )
        form.pop("scope", None)  # RFC 6749, section 4.1.3: the scope was fixed with the code
        issued = yield from request_token(request, form, client, action)
        return to_token(request, issued, action)


class PendingAuthorization(Struct, frozen=True):
    """State of a login between opening the browser and the redirect."""

    issuer: str
    state: str
    code_verifier: str

    @property
    def code_challenge(self) -> str:
        """Return the S256 code challenge of the verifier (RFC 7636, section 4.2)."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.code_verifier.encode()).digest()).rstrip(b"=").decode()

    def validate_callback(self, callback_params: Mapping[str, str], server: AuthorizationServerMetadata) -> str:
        """Return the authorization code after checking `state` and `iss`.

        Nothing from the redirect is shown to the user before both are verified (2026-07-28, Authorization Response
        Validation). Raises `InvalidRedirect` or `GrantDenied`.
        """
        # Cross-site request forgery: an attacker could make the user redeem the attacker's code (RFC 6749, section
        # 10.12).
        if not hmac.compare_digest(callback_params.get("state", "").encode(), self.state.encode()):
            raise InvalidRedirect(
                "The redirect does not carry the `state` of this login, so it belongs to another request. "
                "Start again, and use the window that opens."
            )
        issuer = callback_params.get("iss")
        # RFC 9207, section 2.4: simple string comparison, without normalization.
        if issuer is not None and issuer != self.issuer:
            raise InvalidRedirect(
                f"The response comes from another issuer than {quote_untrusted(self.issuer)} and was dropped: "
                "it may be an attempt to redeem a login at one server with another (mix-up attack)."
            )
        if issuer is None and server.authorization_response_iss_parameter_supported:
            raise InvalidRedirect(
                f"{quote_untrusted(self.issuer)} announces `iss` in every authorization response, but this one "
                "has none. The response was dropped."
            )
        if "error" in callback_params:
            raise GrantDenied(
                f"Requesting access at {quote_untrusted(self.issuer)}",
                callback_params["error"],
                callback_params.get("error_description"),
            )
        if not callback_params.get("code"):
            raise InvalidRedirect(f"The response of {quote_untrusted(self.issuer)} has neither a code nor an error.")
        return callback_params["code"]


def _check_pkce(server: AuthorizationServerMetadata) -> None:
    """Raise DiscoveryError if the server does not announce PKCE with S256.

    2026-07-28, Authorization Code Protection: a server that does not announce PKCE is treated as not supporting it.
    """
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise DiscoveryError(
            f"{quote_untrusted(server.issuer)} does not announce PKCE with S256, and without it an "
            "authorization code could be stolen on its way back. Its operator has to list S256 in "
            "`code_challenge_methods_supported`."
        )
