"""`[auth.proxy]`: an authorization server of our own in front of a login that people have already."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from portico._options import check_options, read_seconds
from portico.auth.client_registration import BASIC, NONE
from portico.auth.errors import UnsafeAddress
from portico.auth.url_policy import check_url
from portico.protocol.errors import UsageError
from portico.secret_references import Secrets
from portico.server.server import Server
from portico.store.data_directory import data_directory
from portico_gateway.authserver.clients import KnownClient, checked_redirect_uris, shown
from portico_gateway.authserver.config import FaceSettings
from portico_gateway.authserver.endpoints import FaceEndpoints
from portico_gateway.authserver.errors import GrantRefused
from portico_gateway.authserver.identity_providers import LoginSettings, login_settings
from portico_gateway.authserver.login_flow import BrowserLogins
from portico_gateway.authserver.server import Face
from portico_gateway.credentials.connect_pages import Connector
from portico_gateway.credentials.encryption import digest, ring_for
from portico_gateway.credentials.token_vault import Vault

_LONGEST_SECONDS = 1e9
_DURATIONS = {
    "access": "access_seconds",
    "login_every": "login_every",
    "idle": "idle_seconds",
    "rotate_keys": "key_seconds",
}
_LONGEST_ACCESS_SECONDS = 3600.0


class ProxyClientOptions(TypedDict, total=False):
    """`[[auth.proxy.client]]`: a program that the operator has registered."""

    id: str
    secret: str
    name: str
    redirect_uris: Sequence[str]


class LoginOptions(TypedDict, total=False):
    """Where people log in, and who of them may come in."""

    provider: str
    client_id: str
    client_secret: str
    issuer: str
    tenant: str
    domain: str
    url: str
    realm: str
    login_scopes: Sequence[str]
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str
    subject: str
    username: str
    groups: str
    memberships: bool
    allow: Sequence[str]
    parameters: Mapping[str, str]
    callback_path: str


class ProxyOptions(LoginOptions, total=False):
    """The keys of `[auth.proxy]`."""

    title: str
    scopes: Mapping[str, str] | Sequence[str]
    default_scopes: Sequence[str]
    registration: bool
    documents: bool
    client_hosts: Sequence[str]
    client_networks: Sequence[str]
    access: float | str
    login_every: float | str
    idle: float | str
    rotate_keys: float | str
    keys: Sequence[str]
    client: Sequence[Mapping[str, Any]]


class ProxySettings(Struct, frozen=True):
    """What `[auth.proxy]` says; the names of the server are not known yet."""

    login: LoginSettings
    face: dict[str, Any]
    keys: tuple[str, ...] = ()

    def face_for(self, issuer: str, resource: str) -> FaceSettings:
        try:
            check_url(issuer)
            check_url(resource)
        except UnsafeAddress as unfit:
            raise UsageError(f"auth.proxy: {unfit}") from None
        if urlsplit(issuer).query or "#" in issuer:
            raise UsageError("auth.proxy: an issuer has no query and no fragment")
        return FaceSettings(issuer=issuer, resource=resource, **self.face)


def read(said: Any) -> ProxySettings:
    """Raises UsageError with what is wrong in it."""
    if not isinstance(said, Mapping):
        raise UsageError("auth.proxy is no table")
    check_options("auth.proxy", said, ProxyOptions)
    given = Secrets().filled(dict(said))
    login = {name: given.pop(name) for name in LoginOptions.__annotations__ if name in given}
    if "login_scopes" in login:
        login["scopes"] = login.pop("login_scopes")
    keys = tuple(given.pop("keys", ()))
    given["clients"] = tuple(_client(one) for one in given.pop("client", ()))
    for name, field in _DURATIONS.items():
        if name in given:
            given[field] = read_seconds(f"auth.proxy: {name}", given.pop(name), _LONGEST_SECONDS)
    if given.get("access_seconds", 0.0) > _LONGEST_ACCESS_SECONDS:
        raise UsageError("auth.proxy: access is at most an hour: what is revoked may still be used for so long")
    scopes = given.pop("scopes", {})
    given["scopes"] = dict(scopes) if isinstance(scopes, Mapping) else {scope: scope for scope in scopes}
    for name in ("default_scopes", "client_hosts", "client_networks"):
        if name in given:
            given[name] = tuple(given[name])
    return ProxySettings(login_settings(login), given, keys)


def put_on(server: Server, said: ProxySettings, issuer: str, resource: str, *, only: bool = False) -> Face:
    """Give a server the pages of a face, which is open for as long as the server is. `only`: all its tokens are for
    this resource, whatever clients call it."""
    settings = replace(said.face_for(issuer, resource), audience_only=only)
    if not said.face.get("title"):
        settings = replace(settings, title=shown(server.info.title or server.name))
    logins = logins_for(server, said.login, issuer, said.keys)
    face = Face(settings, logins)
    server.pages += FaceEndpoints(face).pages()
    server.hold(face.serving)
    connect_with(server, logins, issuer)
    return face


def let_connect(server: Server, said: Any, home: str, subject: str) -> Connector:
    """`[auth.login]`: where people log in at our pages, to connect their accounts; `subject` is the claim that says who
    they are, in their tokens as here."""
    if not isinstance(said, Mapping):
        raise UsageError("auth.login is no table")
    check_options("auth.login", said, LoginOptions)
    given = Secrets().filled({"subject": subject, **said})
    if "login_scopes" in given:
        given["scopes"] = given.pop("login_scopes")
    where = login_settings(given)
    return connect_with(server, logins_for(server, where, home), where.issuer)


def connect_with(server: Server, logins: BrowserLogins, issuer: str) -> Connector:
    """Let the principals that an issuer names connect their accounts elsewhere: they log in as they always do."""
    vault = Vault(logins.home, _store(server), logins.ring)
    title = shown(server.info.title or server.name)
    server.connector = connector = Connector(logins, vault, issuer, title, server.accounts)
    server.pages += connector.pages()
    server.hold(vault.serving)
    return connector


def logins_for(server: Server, where: LoginSettings, home: str, keys: Sequence[str] = ()) -> BrowserLogins:
    """How people log in at the pages of a server."""
    store = _store(server)
    logins = BrowserLogins(home.rstrip("/"), where, store, ring_for(store, keys))
    server.pages += logins.routes()
    server.hold(logins.serving)
    return logins


def _store(server: Server) -> str:
    """Where the server keeps its things; else a file: people do not log in anew because a server was restarted."""
    return server.store or os.environ.get("PORTICO_STORE") or str(data_directory() / "access.db")


def _client(said: Any) -> KnownClient:
    check_options("auth.proxy.client", said, ProxyClientOptions)
    if not said.get("id"):
        raise UsageError("auth.proxy.client needs an id")
    try:
        uris = checked_redirect_uris(said.get("redirect_uris", ()), configured=True)
    except GrantRefused as unfit:
        raise UsageError(f"auth.proxy.client {said['id']!r}: {unfit}") from None
    secret = said.get("secret")
    if secret == "":
        raise UsageError(f"auth.proxy.client {said['id']!r}: the secret is empty; leave it out for a program without")
    return KnownClient(
        id=said["id"],
        redirect_uris=uris,
        name=shown(said.get("name")),
        secret=None if secret is None else digest(secret),
        method=NONE if secret is None else BASIC,
    )
