"""`[auth.proxy]` and `[auth.login]`: settings of the authorization server and of logins at its pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from portico._options import check_table, parse_duration
from portico.auth.client_registration import AUTH_NONE, CLIENT_SECRET_BASIC
from portico.auth.errors import UnsafeUrl
from portico.auth.url_policy import check_url
from portico.protocol.errors import UsageError
from portico.secret_references import SecretResolver
from portico.server.server import Server
from portico.settings_file import wrong_value
from portico.store.data_directory import find_store
from portico_gateway.authserver.clients import OAuthClient, sanitize_display_name, validate_redirect_uris
from portico_gateway.authserver.config import AuthorizationServerConfig
from portico_gateway.authserver.device_grant import DeviceEndpoints
from portico_gateway.authserver.endpoints import OAuthEndpoints
from portico_gateway.authserver.errors import OAuthErrorResponse
from portico_gateway.authserver.identity_providers import IdentityProviderSettings, parse_identity_provider
from portico_gateway.authserver.login_flow import LoginFlow
from portico_gateway.authserver.server import AuthorizationServer
from portico_gateway.credentials.connect_pages import AccountConnector
from portico_gateway.credentials.encryption import digest, load_key_ring
from portico_gateway.credentials.token_vault import TokenVault

_MAX_DURATION_SECONDS = 1e9
_DURATIONS = {
    "access_token_ttl": "access_seconds",
    "max_session_age": "max_session_age",
    "session_idle_timeout": "idle_seconds",
    "key_rotation_interval": "key_seconds",
}
_MAX_ACCESS_TOKEN_TTL_SECONDS = 3600.0


class OAuthClientOptions(TypedDict, total=False):
    """Keys of `[[auth.proxy.client]]`: a client registered by the operator."""

    # Id of the client.
    client_id: str
    # Secret of a confidential client. None: a public client.
    client_secret: str
    # Name on the consent page.
    client_name: str
    # Redirect URIs, compared exactly; on loopback addresses any port is allowed.
    redirect_uris: Sequence[str]
    # Whether the client may use the device authorization grant; it then needs no redirect URI.
    device_authorization: bool


class LoginOptions(TypedDict, total=False):
    """Keys that describe the identity provider and the users who may log in."""

    # Kind of identity provider: `github`, `google`, `entra`, `auth0`, `keycloak`, `oidc` or `oauth`.
    provider: str
    # Client id of this server at the provider.
    client_id: str
    # Secret of that client, such as `${env:NAME}` or `${file:PATH}`.
    client_secret: str
    # `oidc`, `oauth`: URL of the provider; required there.
    issuer: str
    # `entra`: id of the tenant; required there.
    tenant: str
    # `auth0`: domain of the tenant; required there.
    domain: str
    # `keycloak`: URL of the server, required there; `github`: URL of GitHub Enterprise.
    base_url: str
    # `keycloak`: name of the realm; required there.
    realm: str
    # Scopes to request from the provider.
    provider_scopes: Sequence[str]
    # `oauth`: URL of the authorization endpoint.
    authorization_endpoint: str
    # `oauth`: URL of the token endpoint.
    token_endpoint: str
    # `oauth`: URL of the userinfo endpoint.
    userinfo_endpoint: str
    # Claim with the user's id; a dot selects a member of an object.
    subject_claim: str
    # Claim with the user's name, for `user:NAME` in `allow`.
    username_claim: str
    # Claim with the user's groups.
    groups_claim: str
    # `github`: whether to read the user's organizations and teams as groups.
    fetch_memberships: bool
    # Users who may log in: `*`, `user:NAME`, `group:NAME`, `sub:ID`, `claim:NAME=VALUE`, or `name@host` and `*@host`
    # for verified addresses. Required for `github` and `google`; elsewhere all users by default.
    allow: Sequence[str]
    # Further parameters of the authorization request, such as `prompt` or `hd`.
    extra_authorize_params: Mapping[str, str]
    # Path to which the provider redirects the browser.
    callback_path: str


class OAuthProxyOptions(LoginOptions, total=False):
    """Keys of `[auth.proxy]`."""

    # Name of the server on the consent page. None: the server's title.
    title: str
    # Scopes that clients can get, with descriptions for the consent page.
    scopes: Mapping[str, str] | Sequence[str]
    # Scopes of a client that requests none. None: all scopes.
    default_scopes: Sequence[str]
    # Whether clients may register themselves (RFC 7591).
    dynamic_client_registration: bool
    # Whether clients may identify themselves by the URL of a metadata document.
    client_id_metadata_documents: bool
    # Whether clients without a browser may use the device authorization grant (RFC 8628).
    device_authorization: bool
    # Hosts from which metadata documents are accepted; all if empty.
    allowed_client_hosts: Sequence[str]
    # Networks from which metadata documents may be fetched, in addition to public addresses.
    allowed_client_networks: Sequence[str]
    # Lifetime of an access token, at most one hour, because a revoked one may be accepted until it expires.
    access_token_ttl: float | str
    # Time after which a user must log in again.
    max_session_age: float | str
    # Lifetime of an unused refresh token.
    session_idle_timeout: float | str
    # Time after which the signing key is replaced.
    key_rotation_interval: float | str
    # Keys that encrypt secrets, the current one first. None: `PORTICO_ENCRYPTION_KEYS`, or a file next to the database.
    encryption_keys: Sequence[str]
    # Clients that you register.
    client: Sequence[Mapping[str, Any]]


class OAuthProxySettings(Struct, frozen=True):
    """Parsed `[auth.proxy]` settings. The issuer and the resource are added when the server's URL is known."""

    login: IdentityProviderSettings
    server_options: dict[str, Any]
    keys: tuple[str, ...] = ()

    def server_settings(self, issuer: str, resource: str) -> AuthorizationServerConfig:
        """Return the configuration of the authorization server. Raises UsageError for an invalid URL."""
        try:
            check_url(issuer)
            check_url(resource)
        except UnsafeUrl as unfit:
            raise UsageError(f"auth.proxy: {unfit}") from None
        # RFC 8414, section 2: an issuer has no query and no fragment.
        if urlsplit(issuer).query or "#" in issuer:
            raise UsageError("auth.proxy: the issuer must not have a query or a fragment")
        return AuthorizationServerConfig(issuer=issuer, resource=resource, **self.server_options)


def parse_proxy_settings(table: Any) -> OAuthProxySettings:
    """Parse `[auth.proxy]`. Raises UsageError if it is invalid."""
    if not isinstance(table, Mapping):
        raise wrong_value("auth", "proxy", "a table", table)
    check_table("auth.proxy", table, OAuthProxyOptions)
    # After `check_table`, whose messages may quote the settings: references to secrets, not their values.
    options = SecretResolver().resolve_all(dict(table))
    login = {name: options.pop(name) for name in LoginOptions.__annotations__ if name in options}
    keys = tuple(options.pop("encryption_keys", ()))
    options["clients"] = tuple(_parse_client(item) for item in options.pop("client", ()))
    for name, field in _DURATIONS.items():
        if name in options:
            options[field] = parse_duration(f"auth.proxy: {name}", options.pop(name), _MAX_DURATION_SECONDS)
    if options.get("access_seconds", 0.0) > _MAX_ACCESS_TOKEN_TTL_SECONDS:
        raise UsageError(
            "auth.proxy: access_token_ttl must be at most 1h, because a revoked token may be accepted until it expires"
        )
    scopes = options.pop("scopes", {})
    options["scopes"] = dict(scopes) if isinstance(scopes, Mapping) else {scope: scope for scope in scopes}
    for name in ("default_scopes", "allowed_client_hosts", "allowed_client_networks"):
        if name in options:
            options[name] = tuple(options[name])
    return OAuthProxySettings(parse_identity_provider(login), options, keys)


def install_authorization_server(
    server: Server, proxy: OAuthProxySettings, issuer: str, resource: str, *, audience_only: bool = False
) -> AuthorizationServer:
    """Add an authorization server to a server; it is open while the server is.

    With `audience_only`, all tokens are issued for `resource`, whatever resource the client requests.
    """
    settings = replace(proxy.server_settings(issuer, resource), audience_only=audience_only)
    if not proxy.server_options.get("title"):
        settings = replace(settings, title=sanitize_display_name(server.info.title or server.name))
    logins = make_login_flow(server, proxy.login, issuer, proxy.keys)
    authorization_server = AuthorizationServer(settings, logins)
    server.custom_routes += OAuthEndpoints(authorization_server).routes()
    if settings.device_authorization:
        server.custom_routes += DeviceEndpoints(authorization_server).routes()
    server.add_lifespan(authorization_server.lifespan)
    install_account_connector(server, logins, issuer)
    return authorization_server


def install_login(server: Server, table: Any, home: str, subject: str) -> AccountConnector:
    """Add the login pages of `[auth.login]` to a server, where users connect their upstream accounts.

    `subject` is the claim that identifies the user, both in access tokens and here.
    """
    if not isinstance(table, Mapping):
        raise wrong_value("auth", "login", "a table", table)
    check_table("auth.login", table, LoginOptions)
    resolved = SecretResolver().resolve_all({"subject_claim": subject, **table})
    where = parse_identity_provider(resolved)
    return install_account_connector(server, make_login_flow(server, where, home), where.issuer)


def install_account_connector(server: Server, logins: LoginFlow, issuer: str) -> AccountConnector:
    """Let users whose tokens come from `issuer` connect upstream accounts, after they log in with `logins`."""
    vault = TokenVault(logins.base_url, _store_url(server), logins.keyring)
    title = sanitize_display_name(server.info.title or server.name)
    server.account_connector = connector = AccountConnector(logins, vault, issuer, title, server.connected_accounts)
    server.custom_routes += connector.routes()
    server.add_lifespan(vault.lifespan)
    return connector


def make_login_flow(server: Server, where: IdentityProviderSettings, home: str, keys: Sequence[str] = ()) -> LoginFlow:
    """Create the login flow of a server and add its routes and lifespan."""
    store = _store_url(server)
    logins = LoginFlow(home.rstrip("/"), where, store, load_key_ring(store, keys))
    server.custom_routes += logins.routes()
    server.add_lifespan(logins.lifespan)
    return logins


def _store_url(server: Server) -> str:
    """Return the server's store, or a file in its data directory, so that logins survive a restart."""
    return find_store(server.store, server.data_dir, "access")


def _parse_client(table: Any) -> OAuthClient:
    check_table("auth.proxy.client", table, OAuthClientOptions)
    if not table.get("client_id"):
        raise UsageError("auth.proxy.client: client_id is required")
    try:
        uris = table.get("redirect_uris", ())
        uses_device_grant = table.get("device_authorization", False)
        uris = validate_redirect_uris(uris, configured=True) if uris or not uses_device_grant else ()
    except OAuthErrorResponse as unfit:
        raise UsageError(f"auth.proxy.client {table['client_id']!r}: {unfit}") from None
    secret = table.get("client_secret")
    # An unset variable in the settings often becomes an empty text, which anyone could send as the secret.
    if secret == "":
        raise UsageError(
            f"auth.proxy.client {table['client_id']!r}: client_secret must not be empty; remove it for a public client"
        )
    return OAuthClient(
        id=table["client_id"],
        redirect_uris=uris,
        name=sanitize_display_name(table.get("client_name")),
        secret=None if secret is None else digest(secret),
        method=AUTH_NONE if secret is None else CLIENT_SECRET_BASIC,
        device_grant=uses_device_grant,
    )
