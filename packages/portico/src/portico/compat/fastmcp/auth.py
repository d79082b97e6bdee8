"""The words that FastMCP and the official SDK have for whose tokens are good: for servers written for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from inspect import isawaitable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from portico.auth.principal import Principal
from portico.auth.resource_server import ResourceServer
from portico.auth.verifiers.base import Fetcher, MustWait, RequestCredentials, TokenInvalid, Verified
from portico.auth.verifiers.combined import Verifiers
from portico.auth.verifiers.introspection import IntrospectionVerifier
from portico.auth.verifiers.jws import SignedToken, pem_key
from portico.auth.verifiers.jwt import ALGORITHMS, JwtVerifier
from portico.protocol.errors import UsageError


class AccessToken(Struct, kw_only=True):
    """What is known of the token of a request. The token itself is there only for who verifies it, and not kept."""

    token: str = ""
    client_id: str = ""
    scopes: list[str] = []
    expires_at: int | None = None
    resource: str | None = None
    subject: str | None = None
    claims: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"AccessToken(client_id={self.client_id!r}, scopes={self.scopes!r})"  # the rest is secret


def access_token_of(principal: Principal) -> AccessToken:
    return AccessToken(
        client_id=principal.client_id or principal.id,
        scopes=sorted(principal.scopes or ()),
        subject=principal.id,
        claims={"sub": principal.id, **principal.claims},
    )


class TokenVerifier:
    """A subclass says whose a token is: `async def verify_token(self, token) -> AccessToken | None`."""

    def __init__(self, base_url: str | None = None, required_scopes: Collection[str] | None = None, **_: Any) -> None:
        self.base_url = base_url
        self.required_scopes = list(required_scopes or ())

    async def verify_token(self, token: str) -> AccessToken | None:
        raise NotImplementedError


class VerifiesByMethod:
    """A verifier of theirs as one of ours."""

    by_address = False

    def __init__(self, verifier: Any) -> None:
        self._verifier = verifier

    async def __call__(self, credentials: RequestCredentials) -> Verified | None:
        if credentials.scheme != "bearer":
            return None
        found = await self._verifier.verify_token(credentials.token)
        if found is None:
            raise TokenInvalid("the verifier does not know it")
        ends = getattr(found, "expires_at", None)
        if ends is not None and ends <= time.time():
            raise TokenInvalid("it has ended")
        resource = getattr(found, "resource", None)
        if resource is not None and credentials.audiences and str(resource) not in credentials.audiences:
            raise TokenInvalid("it is for another server")
        claims = dict(getattr(found, "claims", None) or {})
        principal = Principal(
            id=str(getattr(found, "subject", None) or claims.get("sub") or found.client_id),
            scopes=frozenset(found.scopes or ()),
            claims=claims,
            client_id=found.client_id,
        )
        return Verified(principal, expires=ends)


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


class _GivenKey:
    """A key that does not change."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def candidates(self, token: SignedToken) -> list[Any]:
        return [self._key]

    def must_fetch(self, token: SignedToken) -> bool:
        return False

    async def fetch(self, token: SignedToken, fetcher: Fetcher | None) -> None: ...

    def freshen(self, fetcher: Fetcher) -> None: ...


class FamiliarAuth:
    """What `Server(auth=…)` may be given besides what is Portico's own: it makes a ResourceServer."""

    # Without which none of its tokens is good, wherever it is a part of something else.
    required_scopes: Collection[str] = ()

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        raise NotImplementedError


class JWTVerifier(FamiliarAuth):
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
        **_: Any,
    ) -> None:
        self._issuer, self._key, self._jwks_uri, self._algorithm = issuer, public_key, jwks_uri, algorithm
        self.required_scopes = list(required_scopes or ())
        self._audience, self._home = audience, base_url

    def _verifier(self) -> JwtVerifier:
        """Made when the server is opened, as everything about logins is."""
        if self._issuer is None:
            raise UsageError("JWTVerifier needs issuer: tokens of all issuers would be good")
        algorithms = ALGORITHMS if self._algorithm is None else (self._algorithm,)
        keys = None if self._key is None else _GivenKey(pem_key(self._key, self._algorithm or "RS256"))
        return JwtVerifier(
            str(self._issuer), audience=self._audience, algorithms=algorithms, jwks_uri=self._jwks_uri, keys=keys
        )

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        return ResourceServer(
            self._verifier(), required=self.required_scopes, audience=self._audience, public_url=_origin(self._home)
        )


class IntrospectionTokenVerifier(FamiliarAuth):
    """Tokens that only their issuer can read: it is asked."""

    def __init__(
        self,
        *,
        introspection_url: str,
        client_id: str,
        client_secret: str,
        required_scopes: Collection[str] | None = None,
        base_url: str | None = None,
        **_: Any,
    ) -> None:
        self._made = IntrospectionVerifier(
            _origin(introspection_url) or "", client_id, client_secret, url=introspection_url
        )
        self.required_scopes, self._home = list(required_scopes or ()), base_url

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        return ResourceServer(self._made, required=self.required_scopes, public_url=_origin(self._home))


class RemoteAuthProvider(FamiliarAuth):
    """Tokens of authorization servers elsewhere, and the document that says which those are."""

    def __init__(
        self,
        token_verifier: Any,
        authorization_servers: Sequence[Any],
        base_url: Any,
        scopes_supported: Sequence[str] | None = None,
        resource_name: str | None = None,
        **_: Any,
    ) -> None:
        self._verifier, self._servers, self._home = token_verifier, authorization_servers, base_url
        self._scopes, self._name = scopes_supported, resource_name
        self.required_scopes = _required_by(token_verifier)

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        made = verifier_of(self._verifier)
        return ResourceServer(
            made.verifier if isinstance(made, ResourceServer) else made,
            public_url=_origin(str(self._home)),
            authorization_servers=[str(one) for one in self._servers],
            required=self.required_scopes,
            scopes_supported=self._scopes,
            name=self._name,
        )


class MultiAuth(FamiliarAuth):
    """Tokens of several kinds: those of a login, and those that one of the verifiers knows."""

    def __init__(
        self,
        *,
        server: Any = None,
        verifiers: Any = (),
        base_url: Any = None,
        required_scopes: Collection[str] | None = None,
        **_: Any,
    ) -> None:
        self._login = server
        self._verifiers = list(verifiers) if isinstance(verifiers, list | tuple) else [verifiers]
        self._home, self.required_scopes = base_url, list(required_scopes or ())

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        others: list[Any] = [_Requiring(verifier_of(one), _required_by(one)) for one in self._verifiers]
        made: ResourceServer
        if self._login is None:
            made = ResourceServer(others, required=self.required_scopes, public_url=_origin(self._home))
        else:
            made = self._login.resource_for(server, verifier)
            made.required |= frozenset(self.required_scopes)
            others = [*made.verifiers, *others]
        made.use(others, _InTurn)
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


class _InTurn(Verifiers):
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


class IssuerAuth(FamiliarAuth):
    """Tokens of an authorization server that knows by itself what clients need: a subclass says which it is."""

    def __init__(self, *, base_url: Any = None, required_scopes: Collection[str] | None = None, **more: Any) -> None:
        self._home, self.required_scopes, self._more = base_url, list(required_scopes or ()), more

    def issuer(self, more: Mapping[str, Any]) -> str:
        raise NotImplementedError

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        issuer = self.issuer(self._more)
        verifiers = issuer if verifier is None else verifier_of(verifier)
        return ResourceServer(
            verifiers,
            required={*self.required_scopes, *_required_by(verifier)},
            public_url=_origin(self._home),
            authorization_servers=[issuer.rstrip("/")],
        )

    def _url(self, name: str) -> str:
        if not self._more.get(name):
            raise UsageError(f"{type(self).__name__} needs {name}")
        return str(self._more[name]).rstrip("/")


class AuthKitProvider(IssuerAuth):
    """Tokens of an AuthKit domain of WorkOS."""

    def issuer(self, more: Mapping[str, Any]) -> str:
        return self._url("authkit_domain")


class ScalekitProvider(IssuerAuth):
    """Tokens of a Scalekit environment."""

    def issuer(self, more: Mapping[str, Any]) -> str:
        return self._url("environment_url")


class SupabaseProvider(IssuerAuth):
    """Tokens of a Supabase project."""

    def issuer(self, more: Mapping[str, Any]) -> str:
        return self._url("project_url") + "/auth/v1"


class PropelAuthProvider(IssuerAuth):
    """Tokens of PropelAuth."""

    def issuer(self, more: Mapping[str, Any]) -> str:
        return self._url("auth_url")


class DescopeProvider(IssuerAuth):
    """Tokens of Descope."""

    def issuer(self, more: Mapping[str, Any]) -> str:
        return self._url("config_url").removesuffix("/.well-known/openid-configuration")


class AzureJWTVerifier(IssuerAuth):
    """Tokens of Microsoft, of the tenant `tenant_id`."""

    def issuer(self, more: Mapping[str, Any]) -> str:
        return f"https://login.microsoftonline.com/{self._url('tenant_id')}/v2.0"


class AuthSettings(FamiliarAuth):
    """The official SDK's: whose tokens they are, what this server is called, and what they have to allow."""

    def __init__(
        self,
        *,
        issuer_url: Any,
        resource_server_url: Any = None,
        required_scopes: Collection[str] | None = None,
        service_documentation_url: Any = None,
        **_: Any,
    ) -> None:
        self._issuer, self._resource = str(issuer_url).rstrip("/"), str(resource_server_url or "") or None
        self.required_scopes, self._documentation = list(required_scopes or ()), service_documentation_url

    def resource_for(self, server: Any, verifier: Any) -> ResourceServer:
        return ResourceServer(
            self._issuer if verifier is None else verifier_of(verifier),
            audience=self._resource,
            public_url=_origin(self._resource),
            authorization_servers=[self._issuer],
            required={*self.required_scopes, *_required_by(verifier)},
            documentation=None if self._documentation is None else str(self._documentation),
        )


def verifier_of(given: Any) -> Any:
    """A verifier of ours, from one of theirs or ours."""
    if isinstance(given, FamiliarAuth):
        return given.resource_for(None, None).verifier
    return VerifiesByMethod(given) if hasattr(given, "verify_token") else given


def _required_by(verifier: Any) -> list[str]:
    return list(getattr(verifier, "required_scopes", None) or ())


def is_familiar(auth: Any, verifier: Any) -> bool:
    """Whether these are what theirs are given."""
    good = auth is None or isinstance(auth, FamiliarAuth) or _is_settings(auth) or hasattr(auth, "verify_token")
    return good and (verifier is None or isinstance(verifier, FamiliarAuth) or hasattr(verifier, "verify_token"))


def familiar_resource(auth: Any, verifier: Any, server: Any) -> ResourceServer:
    """What `auth=` and `token_verifier=` of theirs come to."""
    if isinstance(auth, FamiliarAuth):
        return auth.resource_for(server, verifier)
    if _is_settings(auth):
        return AuthSettings(
            issuer_url=auth.issuer_url,
            resource_server_url=auth.resource_server_url,
            required_scopes=auth.required_scopes,
        ).resource_for(server, verifier)
    chosen = auth if hasattr(auth, "verify_token") else verifier
    home = _origin(str(getattr(chosen, "base_url", None) or "") or None)
    return ResourceServer(verifier_of(chosen), required=_required_by(chosen), public_url=home)


def _is_settings(auth: Any) -> bool:
    return hasattr(auth, "issuer_url") and hasattr(auth, "resource_server_url")


def _origin(url: Any) -> str | None:
    """What a server is called, without the path of its endpoint."""
    if url is None or not str(url):
        return None
    parts = urlsplit(str(url))
    path = parts.path.rstrip("/").removesuffix("/mcp")
    return f"{parts.scheme}://{parts.netloc}{path}"
