"""Identity provider settings and presets for known providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from portico.auth.client_registration import ClientRegistration
from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import check_url
from portico.jsonschema.argument_issues import closest_names
from portico.protocol.errors import UsageError


class IdentityProviderSettings(Struct, frozen=True, kw_only=True):
    """Identity provider: its endpoints, this server's client registration, and the users who may log in."""

    provider: str
    issuer: str
    client: ClientRegistration
    # `oidc` reads the user from a signed ID token, `oauth` from the userinfo endpoint.
    kind: Literal["oidc", "oauth"] = "oidc"
    provider_scopes: tuple[str, ...] = ("openid", "profile", "email")
    # Required for `oauth`; discovered for `oidc`.
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    # Claims for the user's ID, name and groups. A dot selects a member of an object.
    subject_claim: str = "sub"
    username_claim: str = "preferred_username"
    groups_claim: str = "groups"
    # `*`, `user@host`, `*@host`, `group:NAME`, `sub:ID`, `user:NAME`, `claim:NAME=VALUE`
    allow: tuple[str, ...] = ()
    # Additional parameters of the authorization request, such as `prompt` or `hd`.
    extra_authorize_params: Mapping[str, str] = {}
    # Path to which the identity provider returns the browser, relative to this server's URL.
    callback_path: str = "/callback"
    # Request the user's organizations and teams from GitHub.
    fetch_memberships: bool = False


def _github(options: dict[str, Any]) -> dict[str, Any]:
    home = options.pop("base_url", "https://github.com").rstrip("/")
    api = "https://api.github.com" if home == "https://github.com" else f"{home}/api/v3"
    memberships = bool(options.get("fetch_memberships"))
    return {
        "issuer": f"{home}/login/oauth",
        "kind": "oauth",
        "provider_scopes": ("read:user", "user:email", *(("read:org",) if memberships else ())),
        "authorization_endpoint": f"{home}/login/oauth/authorize",
        "token_endpoint": f"{home}/login/oauth/access_token",
        "userinfo_endpoint": f"{api}/user",
        # A login name can be released and taken by another user; the numeric ID cannot.
        "subject_claim": "id",
        "username_claim": "login",
    }


def _google(options: dict[str, Any]) -> dict[str, Any]:
    return {"issuer": "https://accounts.google.com", "username_claim": "email"}


def _entra(options: dict[str, Any]) -> dict[str, Any]:
    tenant = _require_option(options, "entra", "tenant")
    if tenant in ("common", "organizations", "consumers"):
        raise UsageError(
            f"auth.proxy: tenant {tenant!r} accepts users of every organization; set tenant to your directory "
            "(tenant) ID"
        )
    # `sub` differs for each application; administrators identify users by their object ID.
    return {"issuer": f"https://login.microsoftonline.com/{tenant}/v2.0", "subject_claim": "oid"}


def _auth0(options: dict[str, Any]) -> dict[str, Any]:
    domain = _require_option(options, "auth0", "domain").removeprefix("https://").rstrip("/")
    return {"issuer": f"https://{domain}/", "username_claim": "nickname"}


def _keycloak(options: dict[str, Any]) -> dict[str, Any]:
    home = _require_option(options, "keycloak", "base_url").rstrip("/")
    return {"issuer": f"{home}/realms/{_require_option(options, 'keycloak', 'realm')}"}


def _oidc(options: dict[str, Any]) -> dict[str, Any]:
    return {"issuer": _require_option(options, "oidc", "issuer")}


def _oauth(options: dict[str, Any]) -> dict[str, Any]:
    for name in ("authorization_endpoint", "token_endpoint", "userinfo_endpoint"):
        if name not in options:
            raise UsageError(f"auth.proxy: the provider 'oauth' needs {name}")
    return {"issuer": _require_option(options, "oauth", "issuer"), "kind": "oauth", "provider_scopes": ()}


PRESETS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "github": _github,
    "google": _google,
    "entra": _entra,
    "auth0": _auth0,
    "keycloak": _keycloak,
    "oidc": _oidc,
    "oauth": _oauth,
}

# Providers where anyone can create an account; `allow` is required there.
_OPEN = {"github", "google"}


def parse_identity_provider(table: Mapping[str, Any]) -> IdentityProviderSettings:
    """Parse the identity provider settings of a table. Raises UsageError if they are invalid."""
    options = dict(table)
    provider = options.pop("provider", "oidc")
    if provider not in PRESETS:
        suggestions = closest_names(str(provider), PRESETS)
        hint = f"; did you mean {suggestions[0]!r}?" if suggestions else f"; expected one of {', '.join(PRESETS)}"
        raise UsageError(f"auth.proxy: unknown provider {provider!r}{hint}")
    defaults = PRESETS[provider](options)
    client_id = options.pop("client_id", None)
    if not client_id:
        raise UsageError("auth.proxy: client_id is missing; register this server at the identity provider and set it")
    defaults["client"] = ClientRegistration(
        client_id=client_id,
        client_secret=options.pop("client_secret", None),
        issuer=options.get("issuer", defaults["issuer"]),
    )
    unknown = sorted(set(options) - set(IdentityProviderSettings.__struct_fields__))
    if unknown:
        raise UsageError(f"auth.proxy: unknown key {unknown[0]} for the provider {provider!r}")
    lists: dict[str, Any] = {name: tuple(options.pop(name)) for name in ("provider_scopes", "allow") if name in options}
    fields: dict[str, Any] = {**defaults, **options, **lists}
    identity_provider_settings = IdentityProviderSettings(provider=provider, **fields)
    if provider in _OPEN and not identity_provider_settings.allow:
        raise UsageError(
            f'auth.proxy: anyone can create an account at {provider}; restrict it with allow = ["user:octocat", '
            '"*@example.com"], or set allow = ["*"] to admit everyone'
        )
    if "allow" in table and not identity_provider_settings.allow:
        raise UsageError(
            "auth.proxy: allow is empty, so no user could log in; remove it to admit every user of the provider"
        )
    _check(identity_provider_settings)
    return identity_provider_settings


def _check(settings: IdentityProviderSettings) -> None:
    try:
        for url in (
            settings.issuer,
            settings.authorization_endpoint,
            settings.token_endpoint,
            settings.userinfo_endpoint,
        ):
            if url is not None:
                check_url(url)
    except UnsafeUrl as unfit:
        raise UsageError(f"auth.proxy: {unfit}") from None
    if (
        not settings.callback_path.startswith("/")
        or not settings.callback_path.isprintable()
        or settings.callback_path == "/"
    ):
        raise UsageError(f"auth.proxy: callback_path must be a path such as /callback, got {settings.callback_path!r}")
    for entry in settings.allow:
        kind, colon, value = entry.partition(":")
        plain = entry == "*" or ("@" in entry and not colon)
        claimed = kind == "claim" and all(value.partition("=")[::2])
        if not plain and not claimed and not (kind in ("group", "sub", "user") and value):
            raise UsageError(
                "auth.proxy: allow must contain '*', 'name@host', '*@host', 'group:NAME', 'user:NAME', "
                f"'sub:ID' or 'claim:NAME=VALUE', got {entry!r}"
            )


def _require_option(options: dict[str, Any], provider: str, name: str) -> str:
    value = options.get("issuer") if name == "issuer" else options.pop(name, None)
    if not isinstance(value, str) or not value:
        raise UsageError(f"auth.proxy: the provider {provider!r} needs {name}")
    return value


def provider_host(settings: IdentityProviderSettings) -> str:
    return urlsplit(settings.issuer).hostname or settings.issuer
