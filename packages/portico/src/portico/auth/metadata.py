"""Who gives out tokens for a server: its protected resource metadata, and its authorization server's.

The order of the places to look is the specification's (2026-07-28, authorization server discovery). Identifiers are
strings and stay strings: a URL class that adds a slash to `https://example.com` has made another issuer of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from portico.auth.challenges import Demand
from portico.auth.errors import (
    AuthorizationFailed,
    DiscoveryFailed,
    IssuerMismatch,
    ResourceMismatch,
    UnsafeAddress,
    quoted,
)
from portico.auth.flow import Conversation, Fetched, fetch
from portico.auth.url_policy import check_url, covers, split

S = TypeVar("S", bound=Struct)

_RESOURCE = "/.well-known/oauth-protected-resource"
_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"

# How many a server can make us ask.
_MOST_ISSUERS = 4


class ResourceMetadata(Struct, frozen=True):
    """What a server says of itself (RFC 9728, section 2)."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool = False


class ServerMetadata(Struct, frozen=True, kw_only=True):
    """What an authorization server says of itself (RFC 8414, section 2, and OpenID Connect Discovery, section 3)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    token_endpoint_auth_signing_alg_values_supported: list[str] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False
    dpop_signing_alg_values_supported: list[str] | None = None
    userinfo_endpoint: str | None = None
    jwks_uri: str | None = None


class DiscoveredServer(Struct, frozen=True):
    """Where tokens for a server come from. `resource` is sent as it was published, byte for byte."""

    resource: str
    server: ServerMetadata
    scopes: tuple[str, ...] = ()
    dpop_required: bool = False


class MetadataSearch(Struct, frozen=True):
    """How to look: on whose behalf, and how strictly."""

    server: str
    # 2025-03-26 wants `MCP-Protocol-Version` on metadata requests (Server Metadata Discovery Headers).
    revision: str | None = None
    # Google, Atlassian and others publish `https://issuer` in one place and `https://issuer/` in another. To take the
    # two for one is against the specification, so it has to be asked for.
    tolerate_slash: bool = False

    def get(self, url: str) -> Conversation[Fetched]:
        said = (("MCP-Protocol-Version", self.revision),) if self.revision else ()
        return fetch("GET", url, (("Accept", "application/json"), *said))


def discover(search: MetadataSearch, demand: Demand, prefer: str | None = None) -> Conversation[DiscoveredServer]:
    """Find the authorization server of a server, and what it can do. `prefer` is an issuer that we know already."""
    resource = yield from find_resource(search, demand)
    if resource is None:
        return (yield from _find_as_in_2025_03_26(search))
    issuers = list(dict.fromkeys(resource.authorization_servers))
    if not issuers:
        raise DiscoveryFailed(
            f"{quoted(search.server)} wants a token, and its protected resource metadata names no authorization "
            "server. Its operator has to fill in `authorization_servers`."
        )
    # Any of them will do (RFC 9728, section 7.6); one that we have credentials for saves the user a visit.
    issuers.sort(key=lambda issuer: issuer != prefer)
    failure: AuthorizationFailed | None = None
    for issuer in issuers[:_MOST_ISSUERS]:
        try:
            server = yield from find_server(search, issuer)
        except (DiscoveryFailed, UnsafeAddress) as error:
            failure = failure or error
        else:
            scopes = tuple(dict.fromkeys(resource.scopes_supported or ()))
            return DiscoveredServer(resource.resource, server, scopes, resource.dpop_bound_access_tokens_required)
    assert failure is not None
    raise failure


def find_resource(search: MetadataSearch, demand: Demand) -> Conversation[ResourceMetadata | None]:
    """The server's metadata, from where the challenge says or from the well-known places. None: it has none at all."""
    troubled = ""
    named = demand.resource_metadata if _is_absolute(demand.resource_metadata) else None
    for url in dict.fromkeys((*([named] if named else []), *resource_urls(search.server))):
        answer = yield from search.get(url)
        found = _decode(answer, ResourceMetadata)
        if found is not None:
            # Before any browser opens: a token for what another server's document names is a token given away.
            if not covers(found.resource, search.server):
                raise ResourceMismatch(search.server, url, found.resource)
            return found
        if answer.status >= 500 or url == named:
            troubled = troubled or f" at {quoted(url)} (HTTP {answer.status})"
    if troubled or demand.resource_metadata is not None:
        # A server that speaks of metadata is no 2025-03-26 server: guessing at its endpoints would be a way down.
        raise DiscoveryFailed(
            f"{quoted(search.server)} wants a token, and its protected resource metadata{troubled} could not be read. "
            "Try later, or tell the operator of the server."
        )
    return None


def find_server(search: MetadataSearch, issuer: str) -> Conversation[ServerMetadata]:
    """The metadata of one issuer: the first document that is there, and that is its own."""
    mismatch: IssuerMismatch | None = None
    statuses = []
    for url in server_urls(issuer):
        answer = yield from search.get(url)
        statuses.append(f"{url} (HTTP {answer.status})")
        found = _decode(answer, ServerMetadata)
        if found is None:
            continue
        if not _same_issuer(found.issuer, issuer, search.tolerate_slash):
            mismatch = mismatch or IssuerMismatch(issuer, url, found.issuer)
            continue
        return _checked(found)
    raise mismatch or DiscoveryFailed(
        f"The server {quoted(search.server)} names the authorization server {quoted(issuer)}, which publishes no "
        f"metadata that we can read. Asked: {', '.join(statuses)}."
    )


def resource_urls(server: str) -> Iterator[str]:
    """The well-known places of a server's metadata: for its path, then for its root (RFC 9728, section 3.1)."""
    parts = split(server)
    root = f"{parts.scheme}://{parts.netloc}{_RESOURCE}"
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    if path:
        yield root + path
    yield root


def server_urls(issuer: str) -> Iterator[str]:
    """The places of an issuer's metadata, in the order prescribed.

    An issuer with a path is never looked for at the root, which may be another issuer's.
    """
    parts = split(issuer)
    if "?" in issuer or "#" in issuer:
        raise DiscoveryFailed(
            f"The issuer {quoted(issuer)} has a query or a fragment (RFC 8414, section 2 forbids both)."
        )
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    yield f"{root}{_SERVER}{path}"
    yield f"{root}{_OPENID}{path}"
    if path:
        yield f"{root}{path}{_OPENID}"


def canonical(server: str) -> str:
    """What a server is called when it does not say (2026-07-28, authorization, Canonical Server URI)."""
    parts = split(server)
    path = parts.path if parts.path != "/" else ""
    return f"{parts.scheme}://{parts.netloc.lower()}{path}" + (f"?{parts.query}" if parts.query else "")


def _find_as_in_2025_03_26(search: MetadataSearch) -> Conversation[DiscoveredServer]:
    """No metadata of its own: the server is its own authorization server, at the root of its origin.

    2025-03-26, authorization, Authorization Base URL; and Fallbacks for Servers without Metadata Discovery.
    """
    parts = split(search.server)
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        # There is no published issuer to compare with. The root has two spellings and this revision chose neither.
        lenient = msgspec.structs.replace(search, tolerate_slash=True)
        server = yield from find_server(lenient, root)
    except IssuerMismatch:
        raise
    except DiscoveryFailed:
        server = ServerMetadata(
            issuer=root,
            authorization_endpoint=f"{root}/authorize",
            token_endpoint=f"{root}/token",
            registration_endpoint=f"{root}/register",
            code_challenge_methods_supported=["S256"],  # that revision requires PKCE of everybody
        )
    return DiscoveredServer(canonical(search.server), server)


def _checked(found: ServerMetadata) -> ServerMetadata:
    for endpoint in (found.token_endpoint, found.authorization_endpoint, found.registration_endpoint):
        if endpoint is not None:
            check_url(endpoint)
            if "#" in endpoint:
                raise DiscoveryFailed(f"The endpoint {quoted(endpoint)} has a fragment (RFC 6749, section 3.1).")
    return found


def _same_issuer(found: str, expected: str, tolerate_slash: bool) -> bool:
    if found == expected:
        return True
    return tolerate_slash and urlsplit(expected).path in ("", "/") and found.rstrip("/") == expected.rstrip("/")


def _is_absolute(url: str | None) -> bool:
    """A challenge names its metadata by an absolute URL (RFC 9728, section 5.1); to what is none, we are blind."""
    try:
        return url is not None and bool(split(url))
    except UnsafeAddress:
        return False


def _decode(answer: Fetched, kind: type[S]) -> S | None:
    """The document, if one is there. Pages that say 200 and mean 404 are not documents."""
    if answer.status != 200:
        return None
    found = answer.document()
    if found is None:
        return None
    # What is null is absent: some publish every field they know.
    present: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    try:
        return msgspec.convert(present, kind)
    except msgspec.ValidationError:
        return None
