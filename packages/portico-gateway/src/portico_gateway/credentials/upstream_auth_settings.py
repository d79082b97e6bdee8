"""`auth` of an upstream: which credential it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from portico._options import check_options
from portico.auth.client_registration import Registration
from portico.auth.grants import (
    ACCESS_TOKEN,
    ClientCredentials,
    EnterpriseManaged,
    Grant,
    IdentityProvider,
    TokenExchange,
)
from portico.protocol.errors import UsageError
from portico_gateway.credentials.connect_pages import Connector
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.upstream_auth import (
    ExchangeAuth,
    GrantAuth,
    OutgoingAuth,
    SameAudienceAuth,
    StaticAuth,
    UserAuth,
)

Kind = Literal["none", "static", "client", "user", "exchange", "id-jag", "same-audience"]


class OutgoingOptions(TypedDict, total=False):
    """The keys of `auth = { kind = … }`, by kind.

    * static: `header` (Authorization unless it is said) and `value`.
    * client: `client_id`, `client_secret`; user: these where the upstream does not register clients itself, `title`.
    * exchange, id-jag: `issuer` (and `token_endpoint`) where tokens are exchanged, `client_id` and `client_secret`
      there; `subject_token_type`, `audience`; id-jag: `upstream_client_id` and `upstream_client_secret` as well.
    * `scopes` where tokens are asked for.
    """

    kind: Kind
    header: str
    value: str
    client_id: str
    client_secret: str
    upstream_client_id: str
    upstream_client_secret: str
    issuer: str
    token_endpoint: str
    audience: str
    subject_token_type: str
    scopes: Sequence[str]
    title: str


_NEEDS: dict[str, tuple[str, ...]] = {
    "static": ("value",),
    "client": ("client_id",),
    "exchange": ("client_id",),
    "id-jag": ("issuer", "client_id", "upstream_client_id"),
}
_TAKES: dict[str, tuple[str, ...]] = {
    "none": (),
    "static": ("header", "value"),
    "client": ("client_id", "client_secret", "scopes"),
    "user": ("client_id", "client_secret", "scopes", "title"),
    "exchange": (
        *("client_id", "client_secret", "issuer", "token_endpoint", "audience", "subject_token_type", "scopes"),
    ),
    "id-jag": (
        *("client_id", "client_secret", "upstream_client_id", "upstream_client_secret"),
        *("issuer", "token_endpoint", "subject_token_type", "scopes"),
    ),
    "same-audience": (),
}


def check(what: str, said: Mapping[str, Any]) -> None:
    """Raises UsageError for what makes no sense."""
    check_options(f"{what}.auth", said, OutgoingOptions)
    kind = said.get("kind")
    if kind not in _TAKES:
        raise UsageError(f"{what}.auth needs a kind: {', '.join(_TAKES)}")
    for name in _NEEDS.get(kind, ()):
        if not said.get(name):
            raise UsageError(f"{what}.auth of the kind {kind!r} needs {name}")
    for name in said:
        if name != "kind" and name not in _TAKES[kind]:
            raise UsageError(f"{what}.auth of the kind {kind!r} takes no {name}")


def outgoing_for(
    alias: str, url: str, said: Mapping[str, Any], connector: Callable[[], Connector | None]
) -> OutgoingAuth | None:
    """How an upstream at a URL is told who asks; None: not at all."""
    kind, scopes = said["kind"], tuple(said.get("scopes", ()))
    if kind == "static":
        return StaticAuth(said.get("header", "Authorization"), said["value"])
    if kind == "client":
        return GrantAuth(alias, url, ClientCredentials(_client(said)), scopes)
    if kind == "user":
        client = _client(said) if "client_id" in said else None
        account = UpstreamAccount(alias=alias, url=url, title=said.get("title", ""), scopes=scopes, client=client)
        return UserAuth(account, connector)
    if kind == "exchange":
        return ExchangeAuth(alias, url, _exchange(said), scopes)
    if kind == "id-jag":
        return ExchangeAuth(alias, url, _id_jag(said), scopes)
    return SameAudienceAuth(alias, url) if kind == "same-audience" else None


def _client(said: Mapping[str, Any], before: str = "") -> Registration:
    return Registration(client_id=said[f"{before}client_id"], client_secret=said.get(f"{before}client_secret"))


def _provider(said: Mapping[str, Any]) -> IdentityProvider | None:
    if "issuer" not in said:
        return None
    return IdentityProvider(said["issuer"], _client(said), said.get("token_endpoint"))


def _exchange(said: Mapping[str, Any]) -> Callable[[Callable[[], str]], Grant]:
    kind = said.get("subject_token_type", ACCESS_TOKEN)
    return lambda subject: TokenExchange(_client(said), subject, _provider(said), kind, said.get("audience"))


def _id_jag(said: Mapping[str, Any]) -> Callable[[Callable[[], str]], Grant]:
    provider, client = _provider(said), _client(said, "upstream_")
    assert provider is not None
    return lambda subject: EnterpriseManaged(provider, client, subject, said.get("subject_token_type", ACCESS_TOKEN))
