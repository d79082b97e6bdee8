"""Token verifiers and auth providers of FastMCP that need no authorization server of Portico."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from portico.auth.access_token import AccessToken
from portico.auth.principal import Principal
from portico.auth.resource_server import ResourceServer
from portico.auth.verifiers.base import Fetcher, InvalidToken, RequestCredentials, VerificationPending, VerifiedToken
from portico.auth.verifiers.combined import FirstMatchVerifier
from portico.auth.verifiers.introspection import IntrospectionVerifier
from portico.auth.verifiers.jws import ParsedJws, parse_pem
from portico.auth.verifiers.jwt import ALGORITHMS, JwtVerifier
from portico.compat.mcp_sdk.auth import AuthProvider, TokenVerifier, required_by, server_url, to_verifier
from portico.compat.unsupported import UnsupportedFeature, reject_options
from portico.protocol.errors import UsageError

_CACHED = "Portico caches keys and results itself; leave it out"
_FETCHED = "Portico fetches with its own HTTP client and its own limits; leave it out"
_BASE_URL = "base_url is the URL of the server and of the resource"
_VERIFIER_UNSUPPORTED = {
    "http_client": UnsupportedFeature(_FETCHED),
    "timeout_seconds": UnsupportedFeature(_FETCHED),
    "jwks_refresh_interval": UnsupportedFeature(_CACHED),
    "cache_ttl_seconds": UnsupportedFeature(_CACHED),
    "max_cache_size": UnsupportedFeature(_CACHED),
    "ssrf_safe": UnsupportedFeature("private addresses are always refused", accepted=(None, True)),
    "client_auth_method": UnsupportedFeature(
        "the client authenticates with HTTP Basic", accepted=(None, "client_secret_basic")
    ),
    "resource_base_url": UnsupportedFeature(_BASE_URL),
}
_PROVIDER_UNSUPPORTED = {
    "resource_base_url": UnsupportedFeature(_BASE_URL),
    "resource_documentation": UnsupportedFeature("use ResourceServer(resource_documentation=…)"),
    "challenge_scopes": UnsupportedFeature("use required_scopes="),
    "server_source_id": UnsupportedFeature("omit it: the first verifier that accepts a token decides"),
}


class StaticTokenVerifier(TokenVerifier):
    """Tokens defined in code, for development: `{"token": {"client_id": "…", "scopes": […]}}`."""

    def __init__(self, tokens: Mapping[str, Mapping[str, Any]], required_scopes: Collection[str] | None = None) -> None:
        super().__init__(None, required_scopes)
        self._tokens = dict(tokens)

    async def verify_token(self, token: str) -> AccessToken | None:
        result = self._tokens.get(token)
        if result is None:
            return None
        return AccessToken(
            token=token,
            client_id=str(result.get("client_id", "")),
            scopes=list(result.get("scopes", ())),
            expires_at=result.get("expires_at"),
            subject=result.get("sub"),
            claims=dict(result),
        )


class _StaticKeySource:
    """A fixed key."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def find_keys(self, token: ParsedJws) -> list[Any]:
        return [self._key]

    def needs_fetch(self, token: ParsedJws) -> bool:
        return False

    async def fetch(self, token: ParsedJws, fetcher: Fetcher | None) -> None: ...

    def refresh_in_background(self, fetcher: Fetcher) -> None: ...


class JWTVerifier(AuthProvider):
    """Verifies JWTs of one issuer with its published keys or with a given public key."""

    def __init__(
        self,
        *,
        public_key: str | None = None,
        jwks_uri: str | None = None,
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        algorithm: str | None = None,
        required_scopes: Collection[str] | None = None,
        base_url: str | None = None,
        **unsupported: Any,
    ) -> None:
        reject_options("JWTVerifier", unsupported, _VERIFIER_UNSUPPORTED)
        self._issuer, self._key, self._jwks_uri, self._algorithm = issuer, public_key, jwks_uri, algorithm
        self.required_scopes = list(required_scopes or ())
        self._audience, self._home = audience, base_url

    def _verifier(self) -> JwtVerifier:
        """Create the verifier; called when the server opens."""
        if self._issuer is None:
            # FastMCP accepts a missing issuer and then does not check the claim. Any issuer whose
            # key can be obtained could mint tokens for this server.
            raise UsageError("JWTVerifier requires issuer: without it tokens of every issuer would be accepted")
        algorithms = ALGORITHMS if self._algorithm is None else (self._algorithm,)
        keys = None if self._key is None else _StaticKeySource(parse_pem(self._key, self._algorithm or "RS256"))
        return JwtVerifier(
            str(self._issuer), audience=self._audience, algorithms=algorithms, jwks_uri=self._jwks_uri, key_source=keys
        )

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return ResourceServer(
            self._verifier(),
            required_scopes=self.required_scopes,
            audience=self._audience,
            public_url=server_url(self._home),
        )


class IntrospectionTokenVerifier(AuthProvider):
    """Verifies opaque tokens by introspection at their issuer (RFC 7662)."""

    def __init__(
        self,
        *,
        introspection_url: str,
        client_id: str,
        client_secret: str,
        required_scopes: Collection[str] | None = None,
        base_url: str | None = None,
        **unsupported: Any,
    ) -> None:
        reject_options("IntrospectionTokenVerifier", unsupported, _VERIFIER_UNSUPPORTED)
        self._introspection_verifier = IntrospectionVerifier(
            server_url(introspection_url) or "", client_id, client_secret, introspection_url=introspection_url
        )
        self.required_scopes, self._home = list(required_scopes or ()), base_url

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return ResourceServer(
            self._introspection_verifier, required_scopes=self.required_scopes, public_url=server_url(self._home)
        )


class RemoteAuthProvider(AuthProvider):
    """Accepts tokens of remote authorization servers, and publishes the metadata document that names them."""

    def __init__(
        self,
        token_verifier: Any,
        authorization_servers: Sequence[Any],
        base_url: Any,
        scopes_supported: Sequence[str] | None = None,
        resource_name: str | None = None,
        **unsupported: Any,
    ) -> None:
        reject_options("RemoteAuthProvider", unsupported, _PROVIDER_UNSUPPORTED)
        self._verifier, self._servers, self._home = token_verifier, authorization_servers, base_url
        self._scopes, self._name = scopes_supported, resource_name
        self.required_scopes = required_by(token_verifier)

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        made = to_verifier(self._verifier)
        return ResourceServer(
            made.verifier if isinstance(made, ResourceServer) else made,
            public_url=server_url(str(self._home)),
            authorization_servers=[str(item) for item in self._servers],
            required_scopes=self.required_scopes,
            scopes_supported=self._scopes,
            resource_name=self._name,
        )


class MultiAuth(AuthProvider):
    """Accepts tokens of a login, and any token that one of the verifiers accepts."""

    def __init__(
        self,
        *,
        server: Any = None,
        verifiers: Any = (),
        base_url: Any = None,
        required_scopes: Collection[str] | None = None,
        **unsupported: Any,
    ) -> None:
        reject_options("MultiAuth", unsupported, _PROVIDER_UNSUPPORTED)
        self._login = server
        self._verifiers = list(verifiers) if isinstance(verifiers, list | tuple) else [verifiers]
        self._home, self.required_scopes = base_url, list(required_scopes or ())

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        # Each verifier has its own required scopes. Adding them all to the server's would reject
        # tokens of the other verifiers.
        others: list[Any] = [_ScopeRequiringVerifier(to_verifier(item), required_by(item)) for item in self._verifiers]
        made: ResourceServer
        if self._login is None:
            made = ResourceServer(others, required_scopes=self.required_scopes, public_url=server_url(self._home))
        else:
            made = self._login.create_resource_server(server, verifier)
            made.required_scopes |= frozenset(self.required_scopes)
            # The login's own tokens first: verifying them needs no request to another server.
            others = [*made.verifiers, *others]
        made.set_verifiers(others, _AnyMatchVerifier)
        return made


class _ScopeRequiringVerifier:
    """A verifier whose tokens must have these scopes."""

    def __init__(self, verifier: Any, required: Collection[str]) -> None:
        self._verifier, self._required = verifier, frozenset(required)

    def __getattr__(self, name: str) -> Any:
        # No synchronous fast path: `try_verify` would bypass the scope check.
        if name == "try_verify":
            raise AttributeError(name)
        return getattr(self._verifier, name)

    async def __call__(self, credentials: RequestCredentials) -> Principal | VerifiedToken | None:
        result: Principal | VerifiedToken | None = await self._verifier(credentials)
        principal = result.principal if isinstance(result, VerifiedToken) else result
        if principal is not None and principal.missing_scopes(self._required):
            raise InvalidToken("it lacks scopes that its verifier requires")
        return result


class _AnyMatchVerifier(FirstMatchVerifier):
    """Tries all verifiers, even if one rejects the token: they cannot tell which issuer a token belongs to."""

    def try_verify(self, credentials: RequestCredentials) -> Principal | VerifiedToken | None:
        raise VerificationPending

    async def __call__(self, credentials: RequestCredentials) -> Principal | VerifiedToken | None:
        # The last rejection is reported. It cannot be known which verifier the client meant.
        refusal: InvalidToken | None = None
        for verifier in self._all:
            try:
                result = await verifier(credentials)
            except InvalidToken as refused:
                refusal = refused
                continue
            if result is not None:
                return result
        if refusal is not None:
            raise refusal
        return None


class DebugTokenVerifier(TokenVerifier):
    """Accepts every non-empty token, or every token that `validate(token)` accepts. For development only."""

    def __init__(
        self,
        validate: Any = None,
        client_id: str = "debug-client",
        scopes: Collection[str] | None = None,
        required_scopes: Collection[str] | None = None,
    ) -> None:
        super().__init__(None, required_scopes)
        self._validate, self._client, self._scopes = validate, client_id, list(scopes or ())

    async def verify_token(self, token: str) -> AccessToken | None:
        good = bool(token) if self._validate is None else self._validate(token)
        if isawaitable(good):
            good = await good
        return AccessToken(token=token, client_id=self._client, scopes=self._scopes) if good else None


class IssuerAuthProvider(AuthProvider):
    """Accepts tokens of an authorization server that clients contact themselves. Subclasses preset the server.

    * **base_url** – the URL of this server.
    * **required_scopes** – the scopes that tokens need.
    * **scopes_supported**, **resource_name** – for the metadata of the protected resource.
    * **token_verifier** – verifies the tokens instead of the published keys of the issuer.
    * **audience** – the audience of the tokens; Scalekit calls it resource_id, PropelAuth resource, Azure client_id.
    """

    # The option that names the issuer, and the issuer's URL derived from it.
    issuer_option = ""
    issuer_url: Callable[[str], str]
    # The option with the audience of the tokens.
    audience_option = "audience"

    def __init__(
        self,
        *,
        base_url: Any = None,
        required_scopes: Collection[str] | None = None,
        scopes_supported: Sequence[str] | None = None,
        resource_name: str | None = None,
        token_verifier: Any = None,
        **options: Any,
    ) -> None:
        self._audience = options.pop(self.audience_option, None) or None
        self._location = options.pop(self.issuer_option, None)
        reject_options(type(self).__name__, options, _ISSUER_UNSUPPORTED)
        self._home, self._scopes, self._name = base_url, scopes_supported, resource_name
        self._verifier = token_verifier
        self.required_scopes = list(required_scopes or ())

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        if not self._location:
            raise UsageError(f"{type(self).__name__} requires {self.issuer_option}")
        issuer = type(self).issuer_url(str(self._location).rstrip("/"))
        verifier = self._verifier if verifier is None else verifier
        return ResourceServer(
            issuer if verifier is None else to_verifier(verifier),
            audience=self._audience,
            required_scopes={*self.required_scopes, *required_by(verifier)},
            public_url=server_url(self._home),
            authorization_servers=[issuer.rstrip("/")],
            scopes_supported=self._scopes,
            resource_name=self._name,
        )


_INTROSPECTED = "use IntrospectionTokenVerifier with RemoteAuthProvider"
_ISSUER_UNSUPPORTED = {
    **_PROVIDER_UNSUPPORTED,
    "auth_route": UnsupportedFeature("use JWTVerifier with RemoteAuthProvider", accepted=(None, "/auth/v1")),
    "algorithm": UnsupportedFeature("use JWTVerifier(algorithm=…) as token_verifier="),
    "client_id": UnsupportedFeature("clients have their own id at the issuer; omit it"),
    "mcp_url": UnsupportedFeature("use base_url="),
    "project_id": UnsupportedFeature("use config_url="),
    "descope_base_url": UnsupportedFeature("use config_url="),
    "introspection_client_id": UnsupportedFeature(_INTROSPECTED),
    "introspection_client_secret": UnsupportedFeature(_INTROSPECTED),
    "token_introspection_overrides": UnsupportedFeature(_INTROSPECTED),
}


def _create_provider(
    name: str, issuer_option: str, issuer_url: Callable[[str], str], audience_option: str = "audience"
) -> type[IssuerAuthProvider]:
    members = {
        "__doc__": f"Tokens of the issuer that {issuer_option} names.",
        "__module__": __name__,
        "issuer_option": issuer_option,
        "issuer_url": staticmethod(issuer_url),
        "audience_option": audience_option,
    }
    return type(name, (IssuerAuthProvider,), members)


AuthKitProvider = _create_provider("AuthKitProvider", "authkit_domain", str)
ScalekitProvider = _create_provider("ScalekitProvider", "environment_url", str, "resource_id")
SupabaseProvider = _create_provider("SupabaseProvider", "project_url", "{}/auth/v1".format)
PropelAuthProvider = _create_provider("PropelAuthProvider", "auth_url", str, "resource")
DescopeProvider = _create_provider(
    "DescopeProvider", "config_url", lambda url: url.removesuffix("/.well-known/openid-configuration")
)
AzureJWTVerifier = _create_provider(
    "AzureJWTVerifier", "tenant_id", "https://login.microsoftonline.com/{}/v2.0".format, "client_id"
)
