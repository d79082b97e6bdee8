"""The logins that people have: what of each is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from portico.auth.client_registration import Registration
from portico.auth.errors import UnsafeAddress
from portico.auth.url_policy import check_url
from portico.jsonschema.argument_issues import nearest
from portico.protocol.errors import UsageError


class LoginSettings(Struct, frozen=True, kw_only=True):
    """Where people log in, who we are there, and who of them may come in."""

    provider: str
    issuer: str
    client: Registration
    # OpenID says who it was in a signed token; plain OAuth says so at an address.
    kind: Literal["oidc", "oauth"] = "oidc"
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    # Given for plain OAuth; found by discovery for OpenID.
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    # The claims that say who it is, what they call themselves, and what they belong to; dots lead inwards.
    subject: str = "sub"
    username: str = "preferred_username"
    groups: str = "groups"
    # `*`, `user@host`, `*@host`, `group:NAME`, `sub:ID`, `user:NAME`, `claim:NAME=VALUE`
    allow: tuple[str, ...] = ()
    # More for the page of the login, such as `prompt` or `hd`.
    parameters: Mapping[str, str] = {}
    # Where the login page sends the browser back to, below the URL of this server.
    callback_path: str = "/callback"
    # Asks GitHub for what a person is a member of.
    memberships: bool = False


def _github(said: dict[str, Any]) -> dict[str, Any]:
    home = said.pop("url", "https://github.com").rstrip("/")
    api = "https://api.github.com" if home == "https://github.com" else f"{home}/api/v3"
    memberships = bool(said.get("memberships"))
    return {
        "issuer": f"{home}/login/oauth",
        "kind": "oauth",
        "scopes": ("read:user", "user:email", *(("read:org",) if memberships else ())),
        "authorization_endpoint": f"{home}/login/oauth/authorize",
        "token_endpoint": f"{home}/login/oauth/access_token",
        "userinfo_endpoint": f"{api}/user",
        # A name can be given up and taken by another person, the number cannot.
        "subject": "id",
        "username": "login",
    }


def _google(said: dict[str, Any]) -> dict[str, Any]:
    return {"issuer": "https://accounts.google.com", "username": "email"}


def _entra(said: dict[str, Any]) -> dict[str, Any]:
    tenant = _must(said, "entra", "tenant")
    if tenant in ("common", "organizations", "consumers"):
        raise UsageError(
            f"auth.proxy: tenant is {tenant!r}, and tokens of every company would be taken; name the tenant's own id"
        )
    # `sub` is another one for every application; administrators know people by their object id.
    return {"issuer": f"https://login.microsoftonline.com/{tenant}/v2.0", "subject": "oid"}


def _auth0(said: dict[str, Any]) -> dict[str, Any]:
    domain = _must(said, "auth0", "domain").removeprefix("https://").rstrip("/")
    return {"issuer": f"https://{domain}/", "username": "nickname"}


def _keycloak(said: dict[str, Any]) -> dict[str, Any]:
    home = _must(said, "keycloak", "url").rstrip("/")
    return {"issuer": f"{home}/realms/{_must(said, 'keycloak', 'realm')}"}


def _oidc(said: dict[str, Any]) -> dict[str, Any]:
    return {"issuer": _must(said, "oidc", "issuer")}


def _oauth(said: dict[str, Any]) -> dict[str, Any]:
    for name in ("authorization_endpoint", "token_endpoint", "userinfo_endpoint"):
        if name not in said:
            raise UsageError(f"auth.proxy: the provider 'oauth' needs {name}")
    return {"issuer": _must(said, "oauth", "issuer"), "kind": "oauth", "scopes": ()}


PRESETS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "github": _github,
    "google": _google,
    "entra": _entra,
    "auth0": _auth0,
    "keycloak": _keycloak,
    "oidc": _oidc,
    "oauth": _oauth,
}

# Where the whole world has accounts.
_OPEN = {"github", "google"}


def login_settings(said: Mapping[str, Any]) -> LoginSettings:
    """The login that a table describes. UsageError says what is wrong with it."""
    given = dict(said)
    provider = given.pop("provider", "oidc")
    if provider not in PRESETS:
        near = nearest(str(provider), PRESETS)
        meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(PRESETS)}"
        raise UsageError(f"auth.proxy: there is no provider {provider!r}{meant}")
    defaults = PRESETS[provider](given)
    client_id = given.pop("client_id", None)
    if not client_id:
        raise UsageError("auth.proxy: client_id is what the provider calls us; register there first")
    defaults["client"] = Registration(
        client_id=client_id,
        client_secret=given.pop("client_secret", None),
        issuer=given.get("issuer", defaults["issuer"]),
    )
    unknown = sorted(set(given) - set(LoginSettings.__struct_fields__))
    if unknown:
        raise UsageError(f"auth.proxy: {unknown[0]} is nothing that the provider {provider!r} takes")
    lists: dict[str, Any] = {name: tuple(given.pop(name)) for name in ("scopes", "allow") if name in given}
    fields: dict[str, Any] = {**defaults, **given, **lists}
    found = LoginSettings(provider=provider, **fields)
    if provider in _OPEN and not found.allow:
        raise UsageError(
            f"auth.proxy: the whole world can have an account at {provider}; say who may come in: "
            'allow = ["user:octocat", "*@example.com"], or allow = ["*"] for everybody'
        )
    if "allow" in said and not found.allow:
        raise UsageError("auth.proxy: allow is empty, so that no one may come in; leave it out for all who can log in")
    _check(found)
    return found


def _check(found: LoginSettings) -> None:
    try:
        for url in (found.issuer, found.authorization_endpoint, found.token_endpoint, found.userinfo_endpoint):
            if url is not None:
                check_url(url)
    except UnsafeAddress as unfit:
        raise UsageError(f"auth.proxy: {unfit}") from None
    if not found.callback_path.startswith("/") or not found.callback_path.isprintable() or found.callback_path == "/":
        raise UsageError(f"auth.proxy: callback_path must be a path such as /callback, got {found.callback_path!r}")
    for entry in found.allow:
        kind, colon, value = entry.partition(":")
        plain = entry == "*" or ("@" in entry and not colon)
        claimed = kind == "claim" and all(value.partition("=")[::2])
        if not plain and not claimed and not (kind in ("group", "sub", "user") and value):
            raise UsageError(
                f"auth.proxy: allow has {entry!r}, and must have '*', 'name@host', '*@host', 'group:NAME', "
                "'user:NAME', 'sub:ID' or 'claim:NAME=VALUE'"
            )


def _must(said: dict[str, Any], provider: str, name: str) -> str:
    value = said.get("issuer") if name == "issuer" else said.pop(name, None)
    if not isinstance(value, str) or not value:
        raise UsageError(f"auth.proxy: the provider {provider!r} needs {name}")
    return value


def host_of(login: LoginSettings) -> str:
    return urlsplit(login.issuer).hostname or login.issuer
