"""Token verifiers and auth providers of FastMCP that need no authorization server of Portico."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from portico.auth.access_token import AccessToken
from portico.auth.principal import Principal
from portico.auth.resource_server import ResourceServer
from portico.auth.verifiers.base import Fetcher, MustWait, RequestCredentials, TokenInvalid, Verified
from portico.auth.verifiers.combined import Verifiers
from portico.auth.verifiers.introspection import IntrospectionVerifier
from portico.auth.verifiers.jws import SignedToken, pem_key
from portico.auth.verifiers.jwt import ALGORITHMS, JwtVerifier
from portico.compat.mcp_sdk.auth import AuthProvider, TokenVerifier, required_by, server_url, to_verifier
from portico.compat.unsupported import Unsupported, reject_options
from portico.protocol.errors import UsageError

_CACHED = "Portico caches keys and results itself; leave it out"
_FETCHED = "Portico fetches with its own HTTP client and its own limits; leave it out"
_BASE_URL = "base_url is the URL of the server and of the resource"
_VERIFIER_UNSUPPORTED = {
    "http_client": Unsupported(_FETCHED),
    "timeout_seconds": Unsupported(_FETCHED),
    "jwks_refresh_interval": Unsupported(_CACHED),
    "cache_ttl_seconds": Unsupported(_CACHED),
    "max_cache_size": Unsupported(_CACHED),
    "ssrf_safe": Unsupported("private addresses are always refused", accepted=(None, True)),
    "client_auth_method": Unsupported(
        "the client authenticates with HTTP Basic", accepted=(None, "client_secret_basic")
    ),
    "resource_base_url": Unsupported(_BASE_URL),
}
_PROVIDER_UNSUPPORTED = {
    "resource_base_url": Unsupported(_BASE_URL),
    "resource_documentation": Unsupported("use ResourceServer(documentation=…)"),
    "challenge_scopes": Unsupported("use required_scopes="),
    "server_source_id": Unsupported("leave it out: the first verifier that knows a token decides"),
}


class StaticTokenVerifier(TokenVerifier):
    """Tokens that stand in the program: for trying things out. `{"token": {"client_id": "…", "scopes": […]}}`"""

    def __init__(self, tokens: Mapping[str, Mapping[str, Any]], required_scopes: Collection[str] | None = None) -> None:
        super().__init__(None, required_scopes)
        self._tokens = dict(tokens)

    async def verify_token(self, token: str) -> AccessToken | None:
        found = self._tokens.get(token)
        if found is None:
            return None
        return AccessToken(
            token=token,
            client_id=str(found.get("client_id", "")),
            scopes=list(found.get("scopes", ())),
            expires_at=found.get("expires_at"),
            subject=found.get("sub"),
            claims=dict(found),
        )


class _StaticKeySource:
    """A key that does not change."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def candidates(self, token: SignedToken) -> list[Any]:
        return [self._key]

    def must_fetch(self, token: SignedToken) -> bool:
        return False

    async def fetch(self, token: SignedToken, fetcher: Fetcher | None) -> None: ...

    def freshen(self, fetcher: Fetcher) -> None: ...


class JWTVerifier(AuthProvider):
    """Signed tokens of one issuer, by its published keys or by a public key that is given."""

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
        """Made when the server is opened, as everything about logins is."""
        if self._issuer is None:
            raise UsageError("JWTVerifier needs issuer: tokens of all issuers would be good")
        algorithms = ALGORITHMS if self._algorithm is None else (self._algorithm,)
        keys = None if self._key is None else _StaticKeySource(pem_key(self._key, self._algorithm or "RS256"))
        return JwtVerifier(
            str(self._issuer), audience=self._audience, algorithms=algorithms, jwks_uri=self._jwks_uri, keys=keys
        )

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return ResourceServer(
            self._verifier(), required=self.required_scopes, audience=self._audience, public_url=server_url(self._home)
        )


class IntrospectionTokenVerifier(AuthProvider):
    """Tokens that only their issuer can read: it is asked."""

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
        self._made = IntrospectionVerifier(
            server_url(introspection_url) or "", client_id, client_secret, url=introspection_url
        )
        self.required_scopes, self._home = list(required_scopes or ()), base_url

    def create_resource_server(self, server: Any, verifier: Any = None) -> ResourceServer:
        return ResourceServer(self._made, required=self.required_scopes, public_url=server_url(self._home))


class RemoteAuthProvider(AuthProvider):
    """Tokens of authorization servers elsewhere, and the document that says which those are."""

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
            authorization_servers=[str(one) for one in self._servers],
            required=self.required_scopes,
            scopes_supported=self._scopes,
            name=self._name,
        )


class MultiAuth(AuthProvider):
    """Tokens of several kinds: those of a login, and those that one of the verifiers knows."""

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
        others: list[Any] = [_Requiring(to_verifier(one), required_by(one)) for one in self._verifiers]
        made: ResourceServer
        if self._login is None:
            made = ResourceServer(others, required=self.required_scopes, public_url=server_url(self._home))
        else:
            made = self._login.create_resource_server(server, verifier)
            made.required |= frozenset(self.required_scopes)
            others = [*made.verifiers, *others]
        made.use(others, _AnyMatchVerifier)
        return made


class _Requiring:
    """A verifier whose tokens have to have these scopes."""

    def __init__(self, verifier: Any, required: Collection[str]) -> None:
        self._verifier, self._required = verifier, frozenset(required)

    def __getattr__(self, name: str) -> Any:
        # It waits where the verifier would not: who asks `at_once` would not be told of the scopes.
        if name == "at_once":
            raise AttributeError(name)
        return getattr(self._verifier, name)

    async def __call__(self, credentials: RequestCredentials) -> Principal | Verified | None:
        found: Principal | Verified | None = await self._verifier(credentials)
        principal = found.principal if isinstance(found, Verified) else found
        if principal is not None and principal.lacks(self._required):
            raise TokenInvalid("it lacks scopes that its verifier requires")
        return found


class _AnyMatchVerifier(Verifiers):
    """Several verifiers, of which one may know what another refuses: theirs cannot tell whose a token is."""

    def at_once(self, credentials: RequestCredentials) -> Principal | Verified | None:
        raise MustWait

    async def __call__(self, credentials: RequestCredentials) -> Principal | Verified | None:
        refusal: TokenInvalid | None = None
        for verifier in self._all:
            try:
                found = await verifier(credentials)
            except TokenInvalid as refused:
                refusal = refused
                continue
            if found is not None:
                return found
        if refusal is not None:
            raise refusal
        return None


class DebugTokenVerifier(TokenVerifier):
    """Every token that is not empty is good, or those of which `validate(token)` says so: for trying things out."""

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
    """Tokens of an authorization server that clients reach themselves. A preset says which it is.

    * **base_url** – the URL of this server.
    * **required_scopes** – the scopes that tokens need.
    * **scopes_supported**, **resource_name** – for the metadata of the protected resource.
    * **token_verifier** – verifies the tokens instead of the published keys of the issuer.
    * **audience** – that tokens are issued for; resource_id of Scalekit, resource of PropelAuth, client_id of Azure.
    """

    # The option that names the issuer, and its URL made of that option.
    issuer_option = ""
    issuer_url: Callable[[str], str]
    # The option with the audience that tokens are issued for.
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
            raise UsageError(f"{type(self).__name__} needs {self.issuer_option}")
        issuer = type(self).issuer_url(str(self._location).rstrip("/"))
        verifier = self._verifier if verifier is None else verifier
        return ResourceServer(
            issuer if verifier is None else to_verifier(verifier),
            audience=self._audience,
            required={*self.required_scopes, *required_by(verifier)},
            public_url=server_url(self._home),
            authorization_servers=[issuer.rstrip("/")],
            scopes_supported=self._scopes,
            name=self._name,
        )


_INTROSPECTED = "use IntrospectionTokenVerifier with RemoteAuthProvider"
_ISSUER_UNSUPPORTED = {
    **_PROVIDER_UNSUPPORTED,
    "auth_route": Unsupported("use JWTVerifier with RemoteAuthProvider", accepted=(None, "/auth/v1")),
    "algorithm": Unsupported("use JWTVerifier(algorithm=…) as token_verifier="),
    "client_id": Unsupported("clients have an id of their own at the issuer; leave it out"),
    "mcp_url": Unsupported("use base_url="),
    "project_id": Unsupported("use config_url="),
    "descope_base_url": Unsupported("use config_url="),
    "introspection_client_id": Unsupported(_INTROSPECTED),
    "introspection_client_secret": Unsupported(_INTROSPECTED),
    "token_introspection_overrides": Unsupported(_INTROSPECTED),
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
