"""The person's own login, behind the face: OpenID Connect, or plain OAuth with an address that says who it was."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from portico.auth.assertions import verify_signature
from portico.auth.authorization_code import PendingCode
from portico.auth.client_registration import authenticate
from portico.auth.errors import AuthorizationFailed, DiscoveryFailed, quoted
from portico.auth.flow import Conversation, Fetched, fetch, post_form
from portico.auth.metadata import MetadataSearch, ServerMetadata, find_server
from portico.auth.tokens import Issued, read_issued
from portico.auth.verifiers.claims import is_unverified_email
from portico.protocol.json_depth import decode_bounded
from portico_gateway.authserver.clients import shown
from portico_gateway.authserver.identity_providers import LoginSettings

# RSA, elliptic curves and Edwards curves. Never HMAC: our secret is no key to sign identities with.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
LEEWAY_SECONDS = 60.0
MOST_MEMBERSHIPS = 100


class Identity(Struct, frozen=True):
    """Who it was. Only what the provider vouches for stands here: an e-mail address that it did not verify does not."""

    subject: str
    name: str = ""
    username: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()
    claims: dict[str, Any] = {}

    @property
    def shown(self) -> str:
        return shown(self.username or self.email or self.name) or self.subject

    def told(self) -> dict[str, Any]:
        """What tokens say of them."""
        return {
            "name": self.name,
            "preferred_username": self.username,
            "email": self.email,
            "groups": list(self.groups),
        }


class PendingLogin(Struct, frozen=True):
    """A login that has begun: what has to be known when the browser comes back."""

    state: str
    nonce: str
    verifier: str


def begin(login: LoginSettings, callback: str) -> Conversation[tuple[str, PendingLogin]]:
    """Where to send the browser, and what to remember."""
    server = yield from _server(login)
    if server.authorization_endpoint is None:
        raise DiscoveryFailed(f"{quoted(login.issuer)} has no page where a person could log in.")
    pending = PendingLogin(secrets.token_urlsafe(32), secrets.token_urlsafe(24), secrets.token_urlsafe(48))
    code = PendingCode(login.issuer, pending.state, pending.verifier)
    said = {
        **login.parameters,
        "response_type": "code",
        "client_id": login.client.client_id,
        "redirect_uri": callback,
        "state": pending.state,
        "code_challenge": code.challenge,
        "code_challenge_method": "S256",
        **({"scope": " ".join(login.scopes)} if login.scopes else {}),
        **({"nonce": pending.nonce} if login.kind == "oidc" else {}),
    }
    endpoint = server.authorization_endpoint
    return endpoint + ("&" if "?" in endpoint else "?") + urlencode(said), pending


def finish(
    login: LoginSettings, pending: PendingLogin, returned: Mapping[str, str], callback: str, now: float
) -> Conversation[Identity]:
    """Who logged in, once it is sure that this is the answer to our question and comes from the one we asked."""
    server = yield from _server(login)
    code = PendingCode(login.issuer, pending.state, pending.verifier).code(returned, server)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": callback,
        "code_verifier": pending.verifier,
    }
    more, headers = authenticate(login.client, server, now)
    answer = yield from post_form(server.token_endpoint, {**form, **more}, tuple(headers.items()))
    issued = read_issued(answer, f"Redeeming a login at {quoted(login.issuer)}")
    if login.kind == "oidc":
        claims = yield from _openid_claims(login, server, issued, pending.nonce, now)
    else:
        claims = yield from _oauth_claims(login, server, issued)
    return identify(login, claims)


def identify(login: LoginSettings, claims: dict[str, Any]) -> Identity:
    """Return who logged in. Raises AuthorizationFailed where the provider does not vouch for the subject."""
    subject = _inward(claims, login.subject)
    if is_unverified_email(claims, login.subject):
        raise AuthorizationFailed(
            f"{quoted(login.issuer)} has not verified the e-mail address of the user who logged in."
        )
    if isinstance(subject, str) and (subject != subject.strip() or not subject.isprintable()):
        raise AuthorizationFailed(f"{quoted(login.issuer)} gave a {login.subject} with characters that cannot be seen.")
    if isinstance(subject, bool) or not isinstance(subject, str | int) or not str(subject) or len(str(subject)) > 255:
        raise AuthorizationFailed(f"{quoted(login.issuer)} does not say who logged in: it has no {login.subject}.")
    # A flag that is missing means that the provider has not looked: Entra never says, and lets people choose theirs.
    email = claims.get("email") if claims.get("email_verified") in (True, "true") else None
    groups = _inward(claims, login.groups)
    return Identity(
        str(subject),
        shown(_text(claims.get("name"))),
        _exact(email if login.username == "email" else _inward(claims, login.username)),
        _exact(email),
        tuple(str(one) for one in groups[:1000] if len(str(one)) <= 255) if isinstance(groups, list) else (),
        claims,
    )


def _exact(said: Any) -> str:
    """What a person is admitted by, or nothing where it would be shown as another text: who calls themselves `anna`
    with an invisible character is not anna, nor is one whose address is cut in a good place."""
    text = _text(said)
    return text if shown(text) == text else ""


def admits(login: LoginSettings, identity: Identity) -> bool:
    """Whether this person may come in. Without `allow` everybody may who can log in there."""
    return not login.allow or any(_fits(entry, login, identity) for entry in login.allow)


def _fits(entry: str, login: LoginSettings, who: Identity) -> bool:
    if entry == "*":
        return True
    kind, colon, value = entry.partition(":")
    if "@" in entry and not colon:
        email = who.email.casefold()
        if not entry.startswith("*@"):
            return email == entry.casefold()
        host = entry[2:].casefold()
        # An address at Google can be any person's; that it belongs to a company Google says in `hd`.
        ours = login.provider != "google" or str(who.claims.get("hd", "")).casefold() == host
        return email.rpartition("@")[2] == host and bool(who.email) and ours
    if kind == "claim":
        name, _, expected = value.partition("=")
        found = _inward(who.claims, name)
        return expected in map(str, found) if isinstance(found, list) else found is not None and str(found) == expected
    if kind == "group":
        return value in who.groups
    return value == (who.subject if kind == "sub" else who.username)


def _server(login: LoginSettings) -> Conversation[ServerMetadata]:
    if login.authorization_endpoint is not None and login.token_endpoint is not None and login.kind == "oauth":
        return ServerMetadata(
            issuer=login.issuer,
            authorization_endpoint=login.authorization_endpoint,
            token_endpoint=login.token_endpoint,
            userinfo_endpoint=login.userinfo_endpoint,
            token_endpoint_auth_methods_supported=["client_secret_post"],
        )
    return (yield from find_server(MetadataSearch(login.issuer), login.issuer))


def _openid_claims(
    login: LoginSettings, server: ServerMetadata, issued: Issued, nonce: str, now: float
) -> Conversation[dict[str, Any]]:
    """The claims of an ID token (OpenID Connect Core, section 3.1.3.7), and of the userinfo where there is more."""
    if issued.id_token is None or server.jwks_uri is None:
        raise AuthorizationFailed(f"{quoted(login.issuer)} gave no ID token. Is `openid` among the scopes?")
    keys = _document((yield from fetch("GET", server.jwks_uri, (("Accept", "application/json"),))), login, "its keys")
    claims = check_id_token(issued.id_token, keys, login, nonce, now)
    if server.userinfo_endpoint is not None and not {"email", "name", "groups"} <= set(claims):
        more = yield from _get(server.userinfo_endpoint, issued.token)
        said = more.document() if more.status == 200 else None
        if said is not None and said.get("sub") == claims["sub"]:
            claims = {**said, **claims}
    return claims


def check_id_token(token: str, keys: dict[str, Any], login: LoginSettings, nonce: str, now: float) -> dict[str, Any]:
    """The claims of an ID token that was signed for us, for this login and now."""
    claims = verify_signature(token, keys, ALGORITHMS)
    wrong = AuthorizationFailed(f"The ID token of {quoted(login.issuer)} is not for this login.")
    if claims is None:
        raise AuthorizationFailed(f"The ID token of {quoted(login.issuer)} is not signed with one of its keys.")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != login.issuer or login.client.client_id not in audiences:
        raise wrong
    if len(audiences) > 1 and claims.get("azp") != login.client.client_id:
        raise wrong
    if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise wrong
    expires, issued_at = claims.get("exp"), claims.get("iat")
    if not isinstance(expires, int | float) or not isinstance(issued_at, int | float):
        raise wrong
    if not issued_at - LEEWAY_SECONDS <= now < expires + LEEWAY_SECONDS:
        raise AuthorizationFailed(f"The ID token of {quoted(login.issuer)} is of another time; compare the clocks.")
    if not isinstance(claims.get("sub"), str):
        raise wrong
    return claims


def _oauth_claims(login: LoginSettings, server: ServerMetadata, issued: Issued) -> Conversation[dict[str, Any]]:
    """What the provider says at its address of the one whose token this is."""
    assert server.userinfo_endpoint is not None
    answer = yield from _get(server.userinfo_endpoint, issued.token)
    claims = _document(answer, login, "who logged in")
    if login.provider != "github":
        return claims
    claims.pop("email", None)  # that of the profile, which is whatever its owner typed
    said = yield from _get(f"{server.userinfo_endpoint}/emails", issued.token)
    for one in _list(said):
        if one.get("primary") is True and one.get("verified") is True:
            claims |= {"email": one.get("email"), "email_verified": True}
    if login.memberships:
        organisations = yield from _get(f"{server.userinfo_endpoint}/orgs?per_page={MOST_MEMBERSHIPS}", issued.token)
        teams = yield from _get(f"{server.userinfo_endpoint}/teams?per_page={MOST_MEMBERSHIPS}", issued.token)
        claims["groups"] = [
            *(str(one["login"]) for one in _list(organisations) if "login" in one),
            *(f"{one['organization']['login']}/{one['slug']}" for one in _list(teams) if _is_team(one)),
        ]
    return claims


def _is_team(one: dict[str, Any]) -> bool:
    return isinstance(one.get("organization"), dict) and "login" in one["organization"] and "slug" in one


def _get(url: str, token: str) -> Conversation[Fetched]:
    # GitHub turns away who has no name.
    headers = (("Accept", "application/json"), ("Authorization", f"Bearer {token}"), ("User-Agent", "portico"))
    return fetch("GET", url, headers)


def _document(answer: Fetched, login: LoginSettings, what: str) -> dict[str, Any]:
    found = answer.document() if answer.status == 200 else None
    if found is None:
        raise AuthorizationFailed(f"{quoted(login.issuer)} does not say {what} (HTTP {answer.status}).")
    return found


def _list(answer: Fetched) -> list[dict[str, Any]]:
    try:
        found = decode_bounded(answer.body) if answer.status == 200 else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _inward(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name; else, step by step, what dots lead to. Names of claims may be URLs."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)[:255]
