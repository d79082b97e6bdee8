"""`[auth]`: who may come in over HTTP, and who says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct, field

from portico._lazy import LazyModule
from portico.auth.resource_server import Proving, ResourceServer
from portico.auth.verifiers.base import Verifier
from portico.auth.verifiers.claims import ClaimNames
from portico.auth.verifiers.client_certificate import CertificateVerifier
from portico.auth.verifiers.introspection import IntrospectionVerifier
from portico.auth.verifiers.jwt import ALGORITHMS, LEEWAY_SECONDS, JwtVerifier
from portico.protocol.errors import UsageError
from portico.secret_references import Secrets

if TYPE_CHECKING:
    from portico import plugins
    from portico.server.server import Server
else:
    plugins = LazyModule("portico.plugins")

Texts = str | tuple[str, ...]

# Where endpoints are, unless it is said otherwise.
ENDPOINT = "/mcp"


class ClaimSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[auth.claims]`: where in a token to look."""

    id: str = "sub"
    scopes: Texts = ("scope", "scp")
    groups: Texts = ("groups",)

    def names(self) -> ClaimNames:
        return ClaimNames(self.id, _many(self.scopes), _many(self.groups))


class IssuerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[auth.issuer]]`: an issuer of which there is more to say than where it is."""

    url: str
    audience: Texts | None = None
    jwks_uri: str | None = None
    algorithms: tuple[str, ...] | None = None
    claims: ClaimSettings | None = None


class IntrospectionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth.introspection]`: an issuer that is asked what its tokens stand for."""

    issuer: str
    client_id: str
    client_secret: str
    url: str | None = None
    audience: Texts | None = None
    require_audience: bool = True


class CertificateSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth.certificate]`: clients whose certificate a trusted proxy has checked."""

    header: str
    verified_header: str | None = None
    scopes: tuple[str, ...] = ()


class AuthorizationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `[auth]` says."""

    # Whose tokens are good here.
    issuers: tuple[str, ...] = ()
    issuer: tuple[IssuerSettings, ...] = ()
    # What a token has to be for. None: the URL of the endpoint.
    audience: Texts | None = None
    # What this server is called from outside, without the path of the endpoint.
    public_url: str | None = None
    # What each scope implies.
    scopes: dict[str, Texts] = field(default_factory=dict)
    # Without these nothing is answered.
    required: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway: float = LEEWAY_SECONDS
    claims: ClaimSettings = ClaimSettings()
    # A file of tokens that were given out by hand.
    tokens: str | None = None
    introspection: IntrospectionSettings | None = None
    certificate: CertificateSettings | None = None
    dpop: Proving = "optional"
    dpop_nonce: bool = False
    # Whether those who show nothing are let in, too.
    anonymous: bool = False
    documentation: str | None = None
    # An authorization server in front of an existing login. This and the next need portico-gateway.
    proxy: dict[str, Any] | None = None
    # Where people log in at our pages, if not by the proxy: to connect their accounts at upstreams.
    login: dict[str, Any] | None = None


def read(said: Any, folder: Path) -> AuthorizationSettings:
    """What the section says, its secrets filled in. Relative paths are below the folder of the file."""
    try:
        settings = msgspec.convert(said, AuthorizationSettings)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"[auth]: {mistake}") from None
    if settings.tokens is not None:
        settings = msgspec.structs.replace(settings, tokens=str(folder / os.path.expanduser(settings.tokens)))
    if settings.introspection is not None:
        secret = Secrets().resolve(settings.introspection.client_secret)
        asking = msgspec.structs.replace(settings.introspection, client_secret=secret)
        settings = msgspec.structs.replace(settings, introspection=asking)
    return settings


def changed(settings: AuthorizationSettings | None, given: Mapping[str, Any]) -> AuthorizationSettings:
    """The settings with these fields in place of their own."""
    return msgspec.structs.replace(settings or AuthorizationSettings(), **given)


class LoginServer(Protocol):
    """The authorization server of `[auth.proxy]`, as the resource server knows it."""

    @property
    def verifier(self) -> Verifier:
        """Verify the tokens that it has issued."""

    @property
    def default_scopes(self) -> tuple[str, ...]:
        """Return the scopes that clients ask for first."""

    def connect(self, auth: ResourceServer) -> None:
        """Report revoked tokens to the resource server."""


def apply(server: Server, settings: AuthorizationSettings) -> None:
    """Set the authorization of a server, in place of its own."""
    login: LoginServer | None = None
    if settings.proxy is not None or settings.login is not None:
        section = "proxy" if settings.proxy is not None else "login"
        home, audience = _names(settings, section)
        gateway = plugins.require_plugin("gateway", f"[auth.{section}]")
        login = gateway.add_login(server, settings, home, audience)
    server.auth = _resource_server(settings, server, login)
    if login is not None:
        login.connect(server.auth)


def _names(settings: AuthorizationSettings, section: str) -> tuple[str, str]:
    """Return the public URL of the pages, and the audience of tokens for clients that name none."""
    if settings.public_url is None:
        raise UsageError(f"{section} needs public_url: what this server is called from outside, without /mcp")
    home = settings.public_url.rstrip("/")
    home = home.removesuffix(ENDPOINT)
    return home, _many(settings.audience)[0] if settings.audience else home + ENDPOINT


def _resource_server(
    settings: AuthorizationSettings, server: Server, login: LoginServer | None = None
) -> ResourceServer:
    own: list[Verifier] = [] if login is None else [login.verifier]
    scopes = settings.scopes_supported
    if scopes is None and login is not None:
        # What clients ask for at first (2026-07-28, Scope Selection Strategy); of the rest they hear when it is needed.
        scopes = login.default_scopes
    return ResourceServer(
        [*own, *_verifiers(settings)],
        audience=_texts(settings.audience),
        public_url=settings.public_url,
        tokens=settings.tokens,
        required=settings.required,
        implies={scope: _many(implied) for scope, implied in settings.scopes.items()},
        scopes_supported=scopes,
        dpop=settings.dpop,
        dpop_nonce=settings.dpop_nonce,
        anonymous=settings.anonymous,
        name=server.info.title or server.info.name,
        documentation=settings.documentation,
    )


def _verifiers(settings: AuthorizationSettings) -> list[Verifier]:
    listed = [IssuerSettings(url=url) for url in settings.issuers]
    found: list[Verifier] = [_jwt(one, settings) for one in (*listed, *settings.issuer)]
    if settings.certificate is not None:
        about = settings.certificate
        found.append(CertificateVerifier(about.header, scopes=about.scopes, verified_header=about.verified_header))
    if settings.introspection is not None:
        asked = settings.introspection
        found.append(
            IntrospectionVerifier(
                asked.issuer,
                asked.client_id,
                asked.client_secret,
                url=asked.url,
                audience=_texts(asked.audience),
                require_audience=asked.require_audience,
                leeway=settings.leeway,
                claims=settings.claims.names(),
            )
        )
    return found


def _jwt(issuer: IssuerSettings, settings: AuthorizationSettings) -> JwtVerifier:
    return JwtVerifier(
        issuer.url,
        audience=_texts(issuer.audience),
        algorithms=issuer.algorithms or settings.algorithms,
        leeway=settings.leeway,
        jwks_uri=issuer.jwks_uri,
        claims=(issuer.claims or settings.claims).names(),
    )


def _many(said: Texts) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said)


def _texts(said: Texts | None) -> str | list[str] | None:
    return list(said) if isinstance(said, tuple) else said
