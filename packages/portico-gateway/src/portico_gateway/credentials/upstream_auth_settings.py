"""`auth` of an upstream: the type of credential and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from portico._options import check_table
from portico.auth.client_registration import ClientRegistration
from portico.auth.grants import (
    ACCESS_TOKEN,
    ClientCredentials,
    EnterpriseManagedAuthorization,
    Grant,
    IdentityProvider,
    TokenExchange,
)
from portico.protocol.errors import UsageError
from portico_gateway.credentials.connect_pages import AccountConnector
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.upstream_auth import (
    ClientCredentialsAuth,
    ConnectedAccountAuth,
    StaticHeaderAuth,
    TokenExchangeAuth,
    TokenPassthroughAuth,
    UpstreamAuth,
)

UpstreamAuthType = Literal[
    "none", "static_header", "client_credentials", "user_account", "token_exchange", "id_jag", "token_passthrough"
]


class UpstreamAuthOptions(TypedDict, total=False):
    """Keys of `auth = { type = … }`, by type.

    * static_header: `header` (Authorization by default) and `value`.
    * client_credentials: `client_id`, `client_secret`; user_account: the same, if the upstream does not register
      clients, and `display_name`.
    * token_exchange, id_jag: `issuer` (and `token_endpoint`) where tokens are exchanged, `client_id` and
      `client_secret` there; `subject_token_type`, `audience`; id_jag: `upstream_client_id` and
      `upstream_client_secret` as well.
    * `scopes` to request with a token.
    """

    # Kind of credential; it decides which of the other keys are accepted.
    type: UpstreamAuthType
    # `static_header`: name of the header.
    header: str
    # `static_header`: value of the header, such as `${env:NAME}`; required.
    value: str
    # Client id at the authorization server; required except for `user_account`, where an upstream may register clients.
    client_id: str
    # Secret of that client, such as `${env:NAME}` or `${file:PATH}`.
    client_secret: str
    # `id_jag`: client id at the upstream's authorization server; required.
    upstream_client_id: str
    # `id_jag`: secret of that client.
    upstream_client_secret: str
    # `token_exchange`, `id_jag`: URL of the issuer that exchanges tokens; required for `id_jag`. None: the upstream's.
    issuer: str
    # `token_exchange`, `id_jag`: token endpoint of the issuer. None: discovered from its metadata.
    token_endpoint: str
    # `token_exchange`: audience to request.
    audience: str
    # `token_exchange`, `id_jag`: type of the caller's token, a URN of RFC 8693.
    subject_token_type: str
    # Scopes to request with a token.
    scopes: Sequence[str]
    # `user_account`: name of the upstream on the page where users connect their accounts.
    display_name: str


_REQUIRED_KEYS: dict[str, tuple[str, ...]] = {
    "static_header": ("value",),
    "client_credentials": ("client_id",),
    "token_exchange": ("client_id",),
    "id_jag": ("issuer", "client_id", "upstream_client_id"),
}
_ALLOWED_KEYS: dict[str, tuple[str, ...]] = {
    "none": (),
    "static_header": ("header", "value"),
    "client_credentials": ("client_id", "client_secret", "scopes"),
    "user_account": ("client_id", "client_secret", "scopes", "display_name"),
    "token_exchange": (
        *("client_id", "client_secret", "issuer", "token_endpoint", "audience", "subject_token_type", "scopes"),
    ),
    "id_jag": (
        *("client_id", "client_secret", "upstream_client_id", "upstream_client_secret"),
        *("issuer", "token_endpoint", "subject_token_type", "scopes"),
    ),
    "token_passthrough": (),
}


def validate_upstream_auth(section: str, table: Mapping[str, Any]) -> None:
    """Validate the `auth` table of an upstream. Raises UsageError for unknown, missing or unexpected keys."""
    check_table(f"{section}.auth", table, UpstreamAuthOptions)
    kind = table.get("type")
    if kind not in _ALLOWED_KEYS:
        raise UsageError(f"{section}.auth: type must be one of {', '.join(_ALLOWED_KEYS)}")
    for name in _REQUIRED_KEYS.get(kind, ()):
        if not table.get(name):
            raise UsageError(f"{section}.auth: {name} is required for type {kind!r}")
    # A key of another type, such as a client_secret next to static_header, would be ignored although it looks active.
    for name in table:
        if name != "type" and name not in _ALLOWED_KEYS[kind]:
            raise UsageError(f"{section}.auth: unknown key {name} for type {kind!r}")


def make_upstream_auth(
    alias: str, url: str, options: Mapping[str, Any], connector: Callable[[], AccountConnector | None]
) -> UpstreamAuth | None:
    """Return the authentication for the upstream at a URL, or None for `type = "none"`."""
    kind, scopes = options["type"], tuple(options.get("scopes", ()))
    if kind == "static_header":
        return StaticHeaderAuth(options.get("header", "Authorization"), options["value"])
    if kind == "client_credentials":
        return ClientCredentialsAuth(alias, url, ClientCredentials(_make_client(options)), scopes)
    if kind == "user_account":
        client = _make_client(options) if "client_id" in options else None
        account = UpstreamAccount(
            alias=alias, url=url, title=options.get("display_name", ""), scopes=scopes, client=client
        )
        return ConnectedAccountAuth(account, connector)
    if kind == "token_exchange":
        return TokenExchangeAuth(alias, url, _make_token_exchange(options), scopes)
    if kind == "id_jag":
        return TokenExchangeAuth(alias, url, _make_id_jag(options), scopes)
    return TokenPassthroughAuth(alias, url) if kind == "token_passthrough" else None


def _make_client(options: Mapping[str, Any], before: str = "") -> ClientRegistration:
    return ClientRegistration(
        client_id=options[f"{before}client_id"], client_secret=options.get(f"{before}client_secret")
    )


def _make_identity_provider(options: Mapping[str, Any]) -> IdentityProvider | None:
    if "issuer" not in options:
        return None
    return IdentityProvider(options["issuer"], _make_client(options), options.get("token_endpoint"))


def _make_token_exchange(options: Mapping[str, Any]) -> Callable[[Callable[[], str]], Grant]:
    kind = options.get("subject_token_type", ACCESS_TOKEN)
    return lambda subject: TokenExchange(
        _make_client(options), subject, _make_identity_provider(options), kind, options.get("audience")
    )


def _make_id_jag(options: Mapping[str, Any]) -> Callable[[Callable[[], str]], Grant]:
    provider, client = _make_identity_provider(options), _make_client(options, "upstream_")
    assert provider is not None
    return lambda subject: EnterpriseManagedAuthorization(
        provider, client, subject, options.get("subject_token_type", ACCESS_TOKEN)
    )
