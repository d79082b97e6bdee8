"""Login at the identity provider: OpenID Connect, or OAuth 2.0 with a userinfo endpoint."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from portico.auth.assertions import verify_signature
from portico.auth.authorization_code import PendingAuthorization
from portico.auth.client_registration import authenticate_client
from portico.auth.errors import AuthorizationError, DiscoveryError, quote_untrusted
from portico.auth.flow import AuthFlow, FetchResponse, fetch, post_form
from portico.auth.metadata import AuthorizationServerMetadata, MetadataDiscovery, fetch_authorization_server_metadata
from portico.auth.tokens import TokenEndpointResponse, parse_token_response
from portico.auth.verifiers.claims import is_unverified_email
from portico.protocol.json_depth import decode_bounded
from portico_gateway.authserver.clients import sanitize_display_name
from portico_gateway.authserver.identity_providers import IdentityProviderSettings

# RSA, ECDSA and EdDSA. HMAC is excluded: anyone who knows the client secret could forge identities.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
LEEWAY_SECONDS = 60.0
MAX_MEMBERSHIPS = 100


class Identity(Struct, frozen=True):
    """User who logged in. It contains verified data only: an unverified e-mail address is omitted."""

    subject: str
    name: str = ""
    username: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()
    claims: dict[str, Any] = {}

    @property
    def display_name(self) -> str:
        return sanitize_display_name(self.username or self.email or self.name) or self.subject

    def token_claims(self) -> dict[str, Any]:
        """Return the claims to include in access tokens."""
        return {
            "name": self.name,
            "preferred_username": self.username,
            "email": self.email,
            "groups": list(self.groups),
        }


class PendingLogin(Struct, frozen=True):
    """State of a login that must be verified when the browser returns."""

    state: str
    nonce: str
    verifier: str


def begin(login: IdentityProviderSettings, callback: str) -> AuthFlow[tuple[str, PendingLogin]]:
    """Return the URL of the login page, and the state to store until the browser returns."""
    server = yield from _server(login)
    if server.authorization_endpoint is None:
        raise DiscoveryError(f"{quote_untrusted(login.issuer)} has no authorization endpoint.")
    pending = PendingLogin(secrets.token_urlsafe(32), secrets.token_urlsafe(24), secrets.token_urlsafe(48))
    code = PendingAuthorization(login.issuer, pending.state, pending.verifier)
    parameters = {
        # First, so that configured parameters can never replace the state, the challenge or the redirect URI.
        **login.extra_authorize_params,
        "response_type": "code",
        "client_id": login.client.client_id,
        "redirect_uri": callback,
        "state": pending.state,
        "code_challenge": code.code_challenge,
        "code_challenge_method": "S256",
        **({"scope": " ".join(login.provider_scopes)} if login.provider_scopes else {}),
        **({"nonce": pending.nonce} if login.kind == "oidc" else {}),
    }
    endpoint = server.authorization_endpoint
    return endpoint + ("&" if "?" in endpoint else "?") + urlencode(parameters), pending


def finish(
    login: IdentityProviderSettings, pending: PendingLogin, returned: Mapping[str, str], callback: str, now: float
) -> AuthFlow[Identity]:
    """Verify the response of the identity provider and return the user.

    Raises AuthorizationError if the response is not for this login.
    """
    server = yield from _server(login)
    code = PendingAuthorization(login.issuer, pending.state, pending.verifier).validate_callback(returned, server)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": callback,
        "code_verifier": pending.verifier,
    }
    more, headers = authenticate_client(login.client, server, now)
    answer = yield from post_form(server.token_endpoint, {**form, **more}, tuple(headers.items()))
    issued = parse_token_response(answer, f"Redeeming a login at {quote_untrusted(login.issuer)}")
    if login.kind == "oidc":
        claims = yield from _openid_claims(login, server, issued, pending.nonce, now)
    else:
        claims = yield from _oauth_claims(login, server, issued)
    return identity_from_claims(login, claims)


def identity_from_claims(settings: IdentityProviderSettings, claims: dict[str, Any]) -> Identity:
    """Return the user that claims describe. Raises AuthorizationError if the subject is missing or not verified."""
    subject = _get_claim(claims, settings.subject_claim)
    if is_unverified_email(claims, settings.subject_claim):
        raise AuthorizationError(
            f"{quote_untrusted(settings.issuer)} has not verified the e-mail address of the user who logged in."
        )
    # Two accounts that look the same to an operator must not be different users, nor the other way round.
    if isinstance(subject, str) and (subject != subject.strip() or not subject.isprintable()):
        raise AuthorizationError(
            f"{quote_untrusted(settings.issuer)} gave a {settings.subject_claim} with characters that cannot be seen."
        )
    if isinstance(subject, bool) or not isinstance(subject, str | int) or not str(subject) or len(str(subject)) > 255:
        raise AuthorizationError(
            f"{quote_untrusted(settings.issuer)} did not identify the user: the {settings.subject_claim} claim is "
            "missing or invalid."
        )
    # A missing flag means unverified: Entra never sends it and lets users choose any address.
    email = claims.get("email") if claims.get("email_verified") in (True, "true") else None
    groups = _get_claim(claims, settings.groups_claim)
    return Identity(
        str(subject),
        sanitize_display_name(_text(claims.get("name"))),
        _printable_value(email if settings.username_claim == "email" else _get_claim(claims, settings.username_claim)),
        _printable_value(email),
        tuple(str(group) for group in groups[:1000] if len(str(group)) <= 255) if isinstance(groups, list) else (),
        claims,
    )


def _printable_value(value: Any) -> str:
    """Return a value that grants access, or an empty string if it would be displayed differently.

    A name with invisible characters, or an address that was truncated, must not match an `allow` entry.
    """
    text = _text(value)
    return text if sanitize_display_name(text) == text else ""


def is_allowed(settings: IdentityProviderSettings, identity: Identity) -> bool:
    """Return whether a user may log in. Without `allow`, every user of the identity provider may."""
    # Providers where anyone can register require `allow`; see `parse_identity_provider`.
    return not settings.allow or any(_matches_entry(entry, settings, identity) for entry in settings.allow)


def _matches_entry(entry: str, login: IdentityProviderSettings, identity: Identity) -> bool:
    if entry == "*":
        return True
    kind, colon, value = entry.partition(":")
    if "@" in entry and not colon:
        email = identity.email.casefold()
        if not entry.startswith("*@"):
            return email == entry.casefold()
        host = entry[2:].casefold()
        # Anyone can have a Google account with any address; `hd` names the organization that manages the account.
        ours = login.provider != "google" or str(identity.claims.get("hd", "")).casefold() == host
        return email.rpartition("@")[2] == host and bool(identity.email) and ours
    if kind == "claim":
        name, _, expected = value.partition("=")
        result = _get_claim(identity.claims, name)
        return (
            expected in map(str, result) if isinstance(result, list) else result is not None and str(result) == expected
        )
    if kind == "group":
        return value in identity.groups
    return value == (identity.subject if kind == "sub" else identity.username)


def _server(login: IdentityProviderSettings) -> AuthFlow[AuthorizationServerMetadata]:
    if login.authorization_endpoint is not None and login.token_endpoint is not None and login.kind == "oauth":
        return AuthorizationServerMetadata(
            issuer=login.issuer,
            authorization_endpoint=login.authorization_endpoint,
            token_endpoint=login.token_endpoint,
            userinfo_endpoint=login.userinfo_endpoint,
            token_endpoint_auth_methods_supported=["client_secret_post"],
        )
    return (yield from fetch_authorization_server_metadata(MetadataDiscovery(login.issuer), login.issuer))


def _openid_claims(
    login: IdentityProviderSettings,
    server: AuthorizationServerMetadata,
    issued: TokenEndpointResponse,
    nonce: str,
    now: float,
) -> AuthFlow[dict[str, Any]]:
    """Return the claims of the ID token (OpenID Connect Core, section 3.1.3.7), completed from the userinfo
    endpoint.
    """
    if issued.id_token is None or server.jwks_uri is None:
        raise AuthorizationError(f"{quote_untrusted(login.issuer)} returned no ID token. Add `openid` to the scopes.")
    keys = _document((yield from fetch("GET", server.jwks_uri, (("Accept", "application/json"),))), login, "its keys")
    claims = validate_id_token(issued.id_token, keys, login, nonce, now)
    if server.userinfo_endpoint is not None and not {"email", "name", "groups"} <= set(claims):
        more = yield from _get(server.userinfo_endpoint, issued.token)
        userinfo = more.json_object() if more.status == 200 else None
        # OpenID Connect Core, section 5.3.2: userinfo with another `sub` must not be used.
        if userinfo is not None and userinfo.get("sub") == claims["sub"]:
            claims = {**userinfo, **claims}
    return claims


def validate_id_token(
    token: str, keys: dict[str, Any], settings: IdentityProviderSettings, nonce: str, now: float
) -> dict[str, Any]:
    """Return the claims of an ID token. Raises AuthorizationError unless it is signed, current and for this login."""
    claims = verify_signature(token, keys, ALGORITHMS)
    wrong = AuthorizationError(f"The ID token of {quote_untrusted(settings.issuer)} was not issued for this login.")
    if claims is None:
        raise AuthorizationError(
            f"The ID token of {quote_untrusted(settings.issuer)} is not signed with one of its keys."
        )
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != settings.issuer or settings.client.client_id not in audiences:
        raise wrong
    # OpenID Connect Core, section 3.1.3.7, steps 4 and 5: with several audiences the token may have been issued to
    # another client.
    if len(audiences) > 1 and claims.get("azp") != settings.client.client_id:
        raise wrong
    # The nonce binds the ID token to this browser's login; without it a stolen token could be injected.
    if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise wrong
    expires, issued_at = claims.get("exp"), claims.get("iat")
    if not isinstance(expires, int | float) or not isinstance(issued_at, int | float):
        raise wrong
    if not issued_at - LEEWAY_SECONDS <= now < expires + LEEWAY_SECONDS:
        raise AuthorizationError(
            f"The ID token of {quote_untrusted(settings.issuer)} has expired or is not valid yet; check the clocks."
        )
    if not isinstance(claims.get("sub"), str):
        raise wrong
    return claims


def _oauth_claims(
    login: IdentityProviderSettings, server: AuthorizationServerMetadata, issued: TokenEndpointResponse
) -> AuthFlow[dict[str, Any]]:
    """Return the claims from the userinfo endpoint."""
    assert server.userinfo_endpoint is not None
    answer = yield from _get(server.userinfo_endpoint, issued.token)
    claims = _document(answer, login, "the user")
    if login.provider != "github":
        return claims
    claims.pop("email", None)  # the profile's address is not verified
    emails = yield from _get(f"{server.userinfo_endpoint}/emails", issued.token)
    for item in _list(emails):
        if item.get("primary") is True and item.get("verified") is True:
            claims |= {"email": item.get("email"), "email_verified": True}
    if login.fetch_memberships:
        organisations = yield from _get(f"{server.userinfo_endpoint}/orgs?per_page={MAX_MEMBERSHIPS}", issued.token)
        teams = yield from _get(f"{server.userinfo_endpoint}/teams?per_page={MAX_MEMBERSHIPS}", issued.token)
        claims["groups"] = [
            *(str(item["login"]) for item in _list(organisations) if "login" in item),
            *(f"{item['organization']['login']}/{item['slug']}" for item in _list(teams) if _is_team(item)),
        ]
    return claims


def _is_team(item: dict[str, Any]) -> bool:
    return isinstance(item.get("organization"), dict) and "login" in item["organization"] and "slug" in item


def _get(url: str, token: str) -> AuthFlow[FetchResponse]:
    # GitHub's API rejects requests without a User-Agent.
    headers = (("Accept", "application/json"), ("Authorization", f"Bearer {token}"), ("User-Agent", "portico"))
    return fetch("GET", url, headers)


def _document(answer: FetchResponse, login: IdentityProviderSettings, label: str) -> dict[str, Any]:
    result = answer.json_object() if answer.status == 200 else None
    if result is None:
        raise AuthorizationError(f"{quote_untrusted(login.issuer)} did not return {label} (HTTP {answer.status}).")
    return result


def _list(answer: FetchResponse) -> list[dict[str, Any]]:
    try:
        bounded = decode_bounded(answer.body) if answer.status == 200 else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [item for item in bounded if isinstance(item, dict)] if isinstance(bounded, list) else []


def _get_claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its full name, or by a dotted path.

    The full name comes first, since claim names may be URLs.
    """
    # Auth0 and others use URLs as claim names, which contain dots.
    if path in claims:
        return claims[path]
    result: Any = claims
    for step in path.split("."):
        result = result.get(step) if isinstance(result, Mapping) else None
    return result


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)[:255]
