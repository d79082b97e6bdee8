"""The `[auth]` section: which HTTP clients are accepted, and by which issuers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct, field

from portico.auth.resource_server import DpopMode, ResourceServer
from portico.auth.verifiers.base import Verifier
from portico.auth.verifiers.claims import ClaimNames
from portico.auth.verifiers.client_certificate import ClientCertificateVerifier
from portico.auth.verifiers.introspection import IntrospectionVerifier
from portico.auth.verifiers.jwt import ALGORITHMS, LEEWAY_SECONDS, JwtVerifier
from portico.protocol.errors import UsageError
from portico.secret_references import SecretResolver
from portico.settings_file import convert

if TYPE_CHECKING:
    from portico.server.server import Server

StringOrList = str | tuple[str, ...]

# Default path of the MCP endpoint.
DEFAULT_ENDPOINT = "/mcp"


class ClaimSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[auth.claims]`: claims that hold the id, scopes and groups."""

    # Claim with the user's id.
    subject: str = "sub"
    # Claims with the scopes; the first that the token has is used.
    scopes: StringOrList = ("scope", "scp")
    # Claims with the groups.
    groups: StringOrList = ("groups",)

    def to_claim_names(self) -> ClaimNames:
        return ClaimNames(self.subject, _as_tuple(self.scopes), _as_tuple(self.groups))


class IssuerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[auth.issuer]]`: an issuer with its own options."""

    # URL of the issuer, exactly as in its tokens.
    issuer: str
    # Required audience of its tokens. None: `audience` of `[auth]`.
    audience: StringOrList | None = None
    # URL of its public keys. None: discovered from its metadata.
    jwks_uri: str | None = None
    # Accepted signature algorithms. None: `algorithms` of `[auth]`.
    algorithms: tuple[str, ...] | None = None
    # Names of its claims. None: `[auth.claims]`.
    claims: ClaimSettings | None = None


class IntrospectionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth.introspection]`: an issuer whose tokens are checked by introspection (RFC 7662)."""

    # URL of the issuer.
    issuer: str
    # This server's client id at the issuer.
    client_id: str
    # Secret of that client, such as `${env:NAME}` or `${file:PATH}`.
    client_secret: str
    # URL of the introspection endpoint. None: discovered from the issuer's metadata.
    introspection_endpoint: str | None = None
    # Required audience of its tokens. None: `audience` of `[auth]`.
    audience: StringOrList | None = None
    # Whether to reject tokens for which the response has no audience.
    require_audience: bool = True


class ClientCertificateSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth.client_certificate]`: client certificates verified by a trusted proxy."""

    # Header in which the trusted proxy sends the subject of the certificate.
    subject_header: str
    # Header that must be `SUCCESS`, as nginx sends it for a verified certificate. None: no check.
    verify_header: str | None = None
    # Scopes of clients with a certificate.
    scopes: tuple[str, ...] = ()


class AuthSectionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[auth]` section."""

    # URLs of accepted issuers, exactly as in their tokens.
    issuers: tuple[str, ...] = ()
    # Accepted issuers with their own options.
    issuer: tuple[IssuerSettings, ...] = ()
    # Required audience of tokens, one or several. None: the URL of the endpoint.
    audience: StringOrList | None = None
    # URL that clients use, without the path of the endpoint. Required unless the server binds a loopback address.
    public_url: str | None = None
    # Scopes that include others, such as notes:write = "notes:read". Principals get the transitive closure.
    implied_scopes: dict[str, StringOrList] = field(default_factory=dict)
    # Scopes that every request needs.
    required_scopes: tuple[str, ...] = ()
    # Scopes in the metadata that clients read. None: the required scopes.
    scopes_supported: tuple[str, ...] | None = None
    # Accepted signature algorithms of tokens. Symmetric algorithms and `none` are rejected.
    algorithms: tuple[str, ...] = ALGORITHMS
    # Tolerance for differing clocks when `exp` and `nbf` are checked.
    leeway: float = LEEWAY_SECONDS
    # Names of the claims with the id, the scopes and the groups.
    claims: ClaimSettings = ClaimSettings()
    # File of manually issued tokens, relative to the settings file.
    token_file: str | None = None
    # Issuer of opaque tokens, which are checked by introspection.
    introspection: IntrospectionSettings | None = None
    # Client certificates that a trusted proxy has verified.
    client_certificate: ClientCertificateSettings | None = None
    # Tokens bound to a client key (RFC 9449): ignored, accepted or required.
    dpop: DpopMode = "optional"
    # Whether DPoP proofs need a nonce of the server.
    require_dpop_nonce: bool = False
    # Whether requests without credentials are accepted, without a principal.
    allow_anonymous: bool = False
    # URL of a page for developers, shown in the metadata.
    resource_documentation: str | None = None
    # OAuth proxy in front of an existing identity provider. Needs portico-gateway.
    proxy: dict[str, Any] | None = None
    # Identity provider of the pages where users connect upstream accounts, if it is not that of the proxy. Needs
    # portico-gateway.
    login: dict[str, Any] | None = None


def parse_auth_settings(table: Any, base_dir: Path) -> AuthSectionSettings:
    """Parse the section and resolve its secrets. Relative paths are relative to `base_dir`, the directory of the file.

    Raises `SettingsError` for unknown keys and values of another type.
    """
    settings = convert(table, AuthSectionSettings, "auth")
    if settings.token_file is not None:
        token_file = str(base_dir / os.path.expanduser(settings.token_file))
        settings = msgspec.structs.replace(settings, token_file=token_file)
    if settings.introspection is not None:
        # Resolved when the file is read, so that a missing secret stops the start and not the first request.
        secret = SecretResolver().resolve(settings.introspection.client_secret)
        introspection = msgspec.structs.replace(settings.introspection, client_secret=secret)
        settings = msgspec.structs.replace(settings, introspection=introspection)
    return settings


def with_overrides(settings: AuthSectionSettings | None, overrides: Mapping[str, Any]) -> AuthSectionSettings:
    """Return the settings with some fields replaced."""
    return msgspec.structs.replace(settings or AuthSectionSettings(), **overrides)


class LoginServer(Protocol):
    """Authorization server of `[auth.proxy]`, as seen by the resource server."""

    @property
    def verifier(self) -> Verifier:
        """Verify the tokens that it has issued."""

    @property
    def default_scopes(self) -> tuple[str, ...]:
        """Return the scopes that clients ask for first."""

    def connect(self, auth: ResourceServer) -> None:
        """Report revoked tokens to the resource server."""


def apply(server: Server, settings: AuthSectionSettings) -> None:
    """Configure the authorization of a server from the settings."""
    login: LoginServer | None = None
    if settings.proxy is not None or settings.login is not None:
        section = "proxy" if settings.proxy is not None else "login"
        home, audience = _names(settings, section)
        from portico import plugins

        gateway = plugins.require_plugin("gateway", f"[auth.{section}]")
        login = gateway.add_login(server, settings, home, audience)
    server.auth = _resource_server(settings, server, login)
    if login is not None:
        login.connect(server.auth)


def _names(settings: AuthSectionSettings, section: str) -> tuple[str, str]:
    """Return the public URL of the pages, and the audience of tokens for clients that name none."""
    if settings.public_url is None:
        raise UsageError(f"[auth.{section}] needs [auth].public_url: the public URL of this server, without /mcp")
    home = settings.public_url.rstrip("/")
    # A public_url that includes the endpoint is a common mistake and names the same server.
    home = home.removesuffix(DEFAULT_ENDPOINT)
    return home, _as_tuple(settings.audience)[0] if settings.audience else home + DEFAULT_ENDPOINT


def _resource_server(settings: AuthSectionSettings, server: Server, login: LoginServer | None = None) -> ResourceServer:
    # First in the chain, so that its tokens are never sent to the introspection endpoint of another issuer.
    own: list[Verifier] = [] if login is None else [login.verifier]
    scopes = settings.scopes_supported
    if scopes is None and login is not None:
        # The scopes that clients request first (2026-07-28, Scope Selection Strategy); step-up challenges name the
        # others.
        scopes = login.default_scopes
    return ResourceServer(
        [*own, *_verifiers(settings)],
        audience=_as_argument(settings.audience),
        public_url=settings.public_url,
        token_file=settings.token_file,
        required_scopes=settings.required_scopes,
        implied_scopes={scope: _as_tuple(implied) for scope, implied in settings.implied_scopes.items()},
        scopes_supported=scopes,
        dpop=settings.dpop,
        dpop_nonce=settings.require_dpop_nonce,
        allow_anonymous=settings.allow_anonymous,
        resource_name=server.info.title or server.info.name,
        resource_documentation=settings.resource_documentation,
    )


def _verifiers(settings: AuthSectionSettings) -> list[Verifier]:
    # `issuers` is the short form of `[[auth.issuer]]` without options.
    listed = [IssuerSettings(issuer=url) for url in settings.issuers]
    result: list[Verifier] = [_make_jwt_verifier(item, settings) for item in (*listed, *settings.issuer)]
    if settings.client_certificate is not None:
        certificate = settings.client_certificate
        result.append(
            ClientCertificateVerifier(
                certificate.subject_header, scopes=certificate.scopes, verify_header=certificate.verify_header
            )
        )
    if settings.introspection is not None:
        introspection = settings.introspection
        result.append(
            IntrospectionVerifier(
                introspection.issuer,
                introspection.client_id,
                introspection.client_secret,
                introspection_url=introspection.introspection_endpoint,
                audience=_as_argument(introspection.audience),
                require_audience=introspection.require_audience,
                leeway=settings.leeway,
                claim_names=settings.claims.to_claim_names(),
            )
        )
    return result


def _make_jwt_verifier(issuer: IssuerSettings, settings: AuthSectionSettings) -> JwtVerifier:
    return JwtVerifier(
        issuer.issuer,
        audience=_as_argument(issuer.audience),
        algorithms=issuer.algorithms or settings.algorithms,
        leeway=settings.leeway,
        jwks_uri=issuer.jwks_uri,
        claim_names=(issuer.claims or settings.claims).to_claim_names(),
    )


def _as_tuple(value: StringOrList) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _as_argument(value: StringOrList | None) -> str | list[str] | None:
    return list(value) if isinstance(value, tuple) else value
