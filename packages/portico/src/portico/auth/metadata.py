"""Discovery of protected resource metadata and authorization server metadata.

The order of the URLs follows the specification (2026-07-28, Authorization Server Discovery). Identifiers are compared
as strings: a URL class that appends a slash to `https://example.com` changes the issuer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from portico.auth.challenges import AuthChallenge
from portico.auth.errors import (
    AuthorizationError,
    DiscoveryError,
    IssuerMismatch,
    ResourceMismatch,
    UnsafeUrl,
    quote_untrusted,
)
from portico.auth.flow import AuthFlow, FetchResponse, fetch
from portico.auth.url_policy import check_url, resource_covers, split_url

S = TypeVar("S", bound=Struct)

_RESOURCE = "/.well-known/oauth-protected-resource"
_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"

# Limits how many issuers a server can make the client contact.
_MAX_ISSUERS = 4


class ProtectedResourceMetadata(Struct, frozen=True):
    """Protected resource metadata (RFC 9728, section 2)."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class AuthorizationServerMetadata(Struct, frozen=True, kw_only=True):
    """Authorization server metadata (RFC 8414, section 2, and OpenID Connect Discovery, section 3)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    # RFC 8628, section 4.
    device_authorization_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    token_endpoint_auth_signing_alg_values_supported: list[str] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False
    dpop_signing_alg_values_supported: list[str] | None = None
    userinfo_endpoint: str | None = None
    jwks_uri: str | None = None


class DiscoveredAuthorizationServer(Struct, frozen=True):
    """Authorization server of a resource. `resource` is sent exactly as it was published."""

    resource: str
    server: AuthorizationServerMetadata
    scopes: tuple[str, ...] = ()
    dpop_required: bool = False


class MetadataDiscovery(Struct, frozen=True):
    """Parameters of a discovery: the MCP server and how strictly issuers are compared."""

    server: str
    # 2025-03-26 requires `MCP-Protocol-Version` on metadata requests (Server Metadata Discovery Headers).
    protocol_version: str | None = None
    # Google, Atlassian and others publish `https://issuer` in one place and `https://issuer/` in another. Treating the
    # two as equal violates the specification, so it is opt-in.
    ignore_trailing_slash: bool = False

    def get(self, url: str) -> AuthFlow[FetchResponse]:
        """Fetch a metadata URL."""
        headers = (("MCP-Protocol-Version", self.protocol_version),) if self.protocol_version else ()
        return fetch("GET", url, (("Accept", "application/json"), *headers))


def discover(
    discovery: MetadataDiscovery, challenge: AuthChallenge, preferred_issuer: str | None = None
) -> AuthFlow[DiscoveredAuthorizationServer]:
    """Return the authorization server of an MCP server. `preferred_issuer` is tried first.

    Raises `DiscoveryError` if no issuer publishes usable metadata.
    """
    resource = yield from fetch_protected_resource_metadata(discovery, challenge)
    if resource is None:
        return (yield from _discover_2025_03_26(discovery))
    issuers = list(dict.fromkeys(resource.authorization_servers))
    if not issuers:
        raise DiscoveryError(
            f"{quote_untrusted(discovery.server)} requires a token, but its protected resource metadata names no "
            "authorization server. Its operator has to set `authorization_servers`."
        )
    # RFC 9728, section 7.6: the client may choose any of them. One with stored credentials saves a login.
    issuers.sort(key=lambda issuer: issuer != preferred_issuer)
    failure: AuthorizationError | None = None
    for issuer in issuers[:_MAX_ISSUERS]:
        try:
            server = yield from fetch_authorization_server_metadata(discovery, issuer)
        except (DiscoveryError, UnsafeUrl) as error:
            failure = failure or error
        else:
            scopes = tuple(dict.fromkeys(resource.scopes_supported or ()))
            return DiscoveredAuthorizationServer(
                resource.resource, server, scopes, resource.dpop_bound_access_tokens_required
            )
    assert failure is not None
    raise failure


def fetch_protected_resource_metadata(
    discovery: MetadataDiscovery, challenge: AuthChallenge
) -> AuthFlow[ProtectedResourceMetadata | None]:
    """Return the server's metadata, from the URL in the challenge or a well-known URL, or None if it publishes none."""
    failure_text = ""
    challenge_url = challenge.resource_metadata if _is_absolute(challenge.resource_metadata) else None
    for url in dict.fromkeys((*([challenge_url] if challenge_url else []), *protected_resource_urls(discovery.server))):
        response = yield from discovery.get(url)
        result = _decode(response, ProtectedResourceMetadata)
        if result is not None:
            # Checked before a browser opens: a token for a resource that another server named would be given away.
            if not resource_covers(result.resource, discovery.server):
                raise ResourceMismatch(discovery.server, url, result.resource)
            return result
        if response.status >= 500 or url == challenge_url:
            failure_text = failure_text or f" at {quote_untrusted(url)} (HTTP {response.status})"
    if failure_text or challenge.resource_metadata is not None:
        # A server that advertises metadata is not a 2025-03-26 server: falling back would allow a downgrade.
        raise DiscoveryError(
            f"{quote_untrusted(discovery.server)} requires a token, but its protected resource metadata{failure_text} "
            "could not be read. Try again later, or contact the operator of the server."
        )
    return None


def fetch_authorization_server_metadata(
    discovery: MetadataDiscovery, issuer: str
) -> AuthFlow[AuthorizationServerMetadata]:
    """Return the metadata of one issuer, from the first document that names this issuer."""
    mismatch: IssuerMismatch | None = None
    statuses = []
    for url in authorization_server_urls(issuer):
        response = yield from discovery.get(url)
        statuses.append(f"{url} (HTTP {response.status})")
        result = _decode(response, AuthorizationServerMetadata)
        if result is None:
            continue
        # RFC 8414, section 3.3: otherwise one issuer could impersonate another (mix-up attack).
        if not _same_issuer(result.issuer, issuer, discovery.ignore_trailing_slash):
            mismatch = mismatch or IssuerMismatch(issuer, url, result.issuer)
            continue
        return _check_endpoints(result)
    raise mismatch or DiscoveryError(
        f"The server {quote_untrusted(discovery.server)} names the authorization server {quote_untrusted(issuer)}, "
        f"which publishes no readable metadata. Tried: {', '.join(statuses)}."
    )


def protected_resource_urls(server: str) -> Iterator[str]:
    """Yield the well-known metadata URLs of a server: for its path, then its root (RFC 9728, section 3.1)."""
    parts = split_url(server)
    root = f"{parts.scheme}://{parts.netloc}{_RESOURCE}"
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    if path:
        yield root + path
    yield root


def authorization_server_urls(issuer: str) -> Iterator[str]:
    """Yield the metadata URLs of an issuer in the order of the specification.

    An issuer with a path is never looked up at the root, which may belong to another issuer.
    """
    parts = split_url(issuer)
    if "?" in issuer or "#" in issuer:
        raise DiscoveryError(
            f"invalid issuer {quote_untrusted(issuer)}: RFC 8414, section 2 forbids a query or a fragment."
        )
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    yield f"{root}{_SERVER}{path}"
    yield f"{root}{_OPENID}{path}"
    if path:
        yield f"{root}{path}{_OPENID}"


def canonical_server_uri(server: str) -> str:
    """Return the resource identifier of a server without metadata (2026-07-28, authorization, Canonical Server URI)."""
    parts = split_url(server)
    path = parts.path if parts.path != "/" else ""
    return f"{parts.scheme}://{parts.netloc.lower()}{path}" + (f"?{parts.query}" if parts.query else "")


def _discover_2025_03_26(discovery: MetadataDiscovery) -> AuthFlow[DiscoveredAuthorizationServer]:
    """Treat a server without metadata as its own authorization server, at the root of its origin.

    2025-03-26, authorization, Authorization Base URL; and Fallbacks for Servers without Metadata Discovery.
    """
    parts = split_url(discovery.server)
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        # No issuer was published, so there is nothing to compare with; 2025-03-26 does not fix the spelling of the
        # root.
        lenient = msgspec.structs.replace(discovery, ignore_trailing_slash=True)
        server = yield from fetch_authorization_server_metadata(lenient, root)
    except IssuerMismatch:
        raise
    except DiscoveryError:
        server = AuthorizationServerMetadata(
            issuer=root,
            authorization_endpoint=f"{root}/authorize",
            token_endpoint=f"{root}/token",
            registration_endpoint=f"{root}/register",
            code_challenge_methods_supported=["S256"],  # 2025-03-26 requires PKCE of every server
        )
    return DiscoveredAuthorizationServer(canonical_server_uri(discovery.server), server)


def _check_endpoints(metadata: AuthorizationServerMetadata) -> AuthorizationServerMetadata:
    # The metadata is untrusted: an endpoint could name an internal host, or send credentials over plain http.
    for endpoint in (metadata.token_endpoint, metadata.authorization_endpoint, metadata.registration_endpoint):
        if endpoint is not None:
            check_url(endpoint)
            if "#" in endpoint:
                raise DiscoveryError(
                    f"invalid endpoint {quote_untrusted(endpoint)}: RFC 6749, section 3.1 forbids a fragment."
                )
    return metadata


def _same_issuer(received: str, expected: str, ignore_trailing_slash: bool) -> bool:
    if received == expected:
        return True
    # Only for an issuer without a path: `https://example.com/a` and `https://example.com/a/` may be two tenants.
    return (
        ignore_trailing_slash and urlsplit(expected).path in ("", "/") and received.rstrip("/") == expected.rstrip("/")
    )


def _is_absolute(url: str | None) -> bool:
    """Return whether the metadata URL of a challenge is absolute (RFC 9728, section 5.1); others are ignored."""
    try:
        return url is not None and bool(split_url(url))
    except UnsafeUrl:
        return False


def _decode(response: FetchResponse, kind: type[S]) -> S | None:
    """Decode a metadata document, or return None. Some servers answer 200 with an HTML page for missing documents."""
    if response.status != 200:
        return None
    result = response.json_object()
    if result is None:
        return None
    # Some servers publish null for every field they do not use.
    present: dict[str, Any] = {name: value for name, value in result.items() if value is not None}
    try:
        return msgspec.convert(present, kind)
    except msgspec.ValidationError:
        return None
