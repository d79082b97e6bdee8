"""Authentication of HTTP requests: from credentials to a principal, or to the error response with its challenge.

Most requests cost a cache lookup. Errors that are certain without waiting are reported before the body is read. The
remaining requests wait for the issuer, with the body in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from time import monotonic, time
from typing import Any, Literal
from urllib.parse import parse_qsl

from portico.auth.flow import FetchRequest, FetchResponse
from portico.auth.principal import StaticTokens
from portico.auth.resource_server import WELL_KNOWN_PATH, CachedToken, ResourceServer
from portico.auth.verifiers.base import (
    Fetcher,
    InvalidToken,
    RequestCredentials,
    VerificationPending,
    VerifierUnavailable,
)
from portico.auth.verifiers.dpop import DpopProof, InvalidDpopProof
from portico.protocol.errors import ProtocolError, TransportError
from portico.protocol.header_params import decode_header_value as decode_mirrored
from portico.transports.http_client.simple_request import http_request
from portico.transports.http_server import error_responses, headers as http
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import JSON_HEADERS, TEXT_HEADERS, HeaderPairs, HttpRequest, HttpResponse

log = logging.getLogger("portico.auth")

FETCH_TIMEOUT_SECONDS = 10.0
# Further rejections within this interval are logged at INFO.
WARNING_INTERVAL_SECONDS = 10.0
# Metadata and key sets are a few kilobytes. The limit protects against an issuer that never stops sending.
MAX_DOCUMENT_BYTES = 512 * 1024

RequiredScopes = Callable[[str, str], Collection[str]]
"Returns the scopes that a method requires for a given name."


async def fetch_document(request: FetchRequest) -> FetchResponse:
    """Fetch a document for a verifier. Redirects are not followed: an issuer states its URLs itself."""
    try:
        answer = await http_request(
            request.method,
            request.url,
            headers=request.headers,
            body=request.body,
            timeout=FETCH_TIMEOUT_SECONDS,
            max_response_bytes=MAX_DOCUMENT_BYTES,
        )
    except ProtocolError as failure:
        raise TransportError(str(failure)) from None
    return FetchResponse(answer.status, (), answer.body)


class RequestAuthenticator:
    """Authenticates requests with static tokens and with tokens of authorization servers."""

    def __init__(
        self,
        tokens: StaticTokens | None,
        auth: ResourceServer | None,
        path: str,
        endpoint_paths: Callable[[], Collection[str]],
        required_scopes: RequiredScopes,
        fetcher: Fetcher = fetch_document,
        on_rejected: Callable[[int, str, str | None], None] | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        if auth is not None and auth.public_url is not None:
            # The configured URL may include the endpoint path.
            auth.public_url = auth.public_url.removesuffix(path)
        self.auth = auth
        self.required = (auth is not None and not auth.allow_anonymous) or (tokens is not None and tokens.required)
        self._tokens = tokens
        # The path of the first endpoint, and the paths of all endpoints.
        self._path = path
        # When a rejection is next logged at WARNING, on the monotonic clock.
        self._next_warning = 0.0
        self._paths = endpoint_paths
        self._needs = required_scopes
        self._fetch = fetcher
        # Origins of the bound sockets, in order.
        self._origins: dict[str, None] = {}
        self._ports: set[str] = set()
        # Host names that the operator configured for this server, without wildcards.
        self._hosts = frozenset(host.lower() for host in hosts if "*" not in host)
        self._token_cache = {} if auth is None else auth.token_cache
        # Whether the token alone determines the principal.
        self._token_only = auth is not None and tokens is None and not auth.headers and not auth.by_address
        self._on_rejected = on_rejected
        self._headers = tuple(name.encode() for name in auth.headers) if auth is not None else ()
        # Headers that authentication depends on.
        self.credential_headers = (b"authorization", *self._headers)

    def metadata_routes(self) -> list[CustomRoute]:
        """Return the routes of the protected resource metadata."""
        if self.auth is None or not self.auth.authorization_servers:
            return []
        below = CustomRoute("GET", f"{WELL_KNOWN_PATH}/", self._resource_metadata, prefix=True)
        return [CustomRoute("GET", WELL_KNOWN_PATH, self._resource_metadata), below]

    async def _resource_metadata(self, request: HttpRequest) -> HttpResponse:
        """Serve the protected resource metadata.

        RFC 9728, section 3.1: the path of the resource follows the well-known path. A proxy may have added a prefix.
        """
        assert self.auth is not None
        path = request.path.removeprefix(WELL_KNOWN_PATH) or self._path
        path = path if path in self._paths() else path.removeprefix(self.auth.prefix)
        if path not in self._paths():
            return HttpResponse(404, TEXT_HEADERS, b"Not found\n")
        headers: HeaderPairs = (*JSON_HEADERS, (b"cache-control", b"max-age=300"))
        return HttpResponse(200, headers, self.auth.metadata_document(self._base_url(request), path))

    def bind(self, origins: Iterable[str]) -> None:
        """Register the origins, such as `http://127.0.0.1:8080`, of the bound sockets: tokens may be for them."""
        self._origins.update(dict.fromkeys(origins))
        self._ports = {origin.rpartition(":")[2] for origin in self._origins}

    # Accepting requests

    def reject_early(self, request: HttpRequest) -> HttpResponse | None:
        """Return the error response if the credentials are certainly invalid, before the body is read."""
        try:
            return self._authenticate(request, proving=False)
        except VerificationPending:
            return None

    def authenticate(self, request: HttpRequest) -> HttpResponse | Literal["wait"] | None:
        """Set the principal of a request, or return the error response. "wait" requires `authenticate_async`."""
        if self._token_only and not request.query:
            # The path of most requests. Repeated heads share their header object, so even the token hash is cached.
            headers = request.headers
            result = headers.cached_token or self._find_cached_token(request)
            # The cached verification ends with the token, so an expired token is never accepted from the cache.
            if result is not None and result.expires_at > time():
                request.principal, request.until = result.verified.principal, result.verified.expires_at
                return None
        try:
            return self._authenticate(request, proving=True)
        except VerificationPending:
            return "wait"

    def _find_cached_token(self, request: HttpRequest) -> CachedToken | None:
        headers = request.headers
        authorization = headers.get(b"authorization")
        if authorization is None or authorization[:7].lower() != b"bearer ":
            return None
        # Hashed, so that a memory dump or a debugger shows no usable tokens.
        result = self._token_cache.get(sha256(self._cache_key(request, authorization)).digest())
        if result is None or not result.is_sufficient:
            return None
        headers.cached_token = result
        return result

    def _authenticate(self, request: HttpRequest, proving: bool) -> HttpResponse | None:
        authorization = request.headers.get(b"authorization")
        if self._tokens is not None:
            request.principal = self._tokens.verify(authorization)
            if request.principal is not None:
                return None
        auth = self.auth
        if auth is None:
            return self._unauthorized_response(request) if self.required else None
        if authorization is None and not self._headers:
            return self._authenticate_anonymous(request, auth)
        key = self._cache_key(request, authorization)
        cached = auth.get_cached(key)
        if cached is None or request.query:
            try:
                credentials = self._credentials(request, auth, authorization)
                if not credentials.scheme and not credentials.headers:
                    return self._authenticate_anonymous(request, auth)
                cached = cached or auth.try_verify(key, credentials)
            except (InvalidToken, VerifierUnavailable, _InvalidCredentials) as failure:
                return self._error_response(request, failure)
        verified = cached.verified
        if proving and (
            verified.dpop_thumbprint is not None or auth.dpop_required or (authorization or b"")[:4].lower() == b"dpop"
        ):
            try:
                self._record_proof(auth, self._verify_proof(request, auth, cached))
            except (InvalidToken, VerifierUnavailable) as failure:
                return self._error_response(request, failure)
        request.principal, request.until = verified.principal, verified.expires_at
        return self._forbidden_response(request, auth.required_scopes) if cached.missing_scopes else None

    def _authenticate_anonymous(self, request: HttpRequest, auth: ResourceServer) -> HttpResponse | None:
        """Handle a request without credentials."""
        if _has_query_token(request.query):
            return self._error_response(request, _InvalidCredentials("access tokens must not be sent in the query"))
        return None if auth.allow_anonymous else self._unauthorized_response(request)

    async def authenticate_async(self, request: HttpRequest) -> HttpResponse | None:
        """Authenticate like `authenticate`, including checks that require network requests."""
        auth = self.auth
        assert auth is not None
        authorization = request.headers.get(b"authorization")
        key = self._cache_key(request, authorization)
        try:
            cached = auth.get_cached(key)
            if cached is None:
                cached = await auth.verify(key, self._credentials(request, auth, authorization))
            used = self._verify_proof(request, auth, cached)
            if (
                used is not None
                and auth.dpop_validator is not None
                and not await auth.dpop_validator.replay_cache.add(*used)
            ):
                raise InvalidDpopProof("invalid DPoP proof: it was used before")
        except (InvalidToken, VerifierUnavailable, _InvalidCredentials) as failure:
            return self._error_response(request, failure)
        request.principal, request.until = cached.verified.principal, cached.verified.expires_at
        return self._forbidden_response(request, auth.required_scopes) if cached.missing_scopes else None

    def _verify_proof(
        self, request: HttpRequest, auth: ResourceServer, cached: CachedToken
    ) -> tuple[str, float] | None:
        """Verify that the caller holds the key its token is bound to. Return the proof's id and expiry for replay
        detection.
        """
        scheme, token = _parse_authorization(request.headers.get(b"authorization", b""))
        text = request.headers.get(b"dpop")
        proof = None
        if text is not None and cached.verified.dpop_thumbprint is not None:
            url = auth.resource_uri(self._bound_origin(request), self._endpoint_path(request))
            proof = DpopProof(text.decode("latin-1"), request.method, url, token, cached.verified.dpop_thumbprint)
        return auth.check_proof(cached.verified, scheme, proof)

    def _record_proof(self, auth: ResourceServer, used: tuple[str, float] | None) -> None:
        if used is not None and auth.dpop_validator is not None:
            new = auth.dpop_validator.replay_cache.try_add(*used)
            if new is None:
                # The replay cache is shared with other processes and needs I/O to decide; `authenticate_async`
                # waits for it.
                raise VerificationPending
            if not new:
                raise InvalidDpopProof("invalid DPoP proof: it was used before")

    def _cache_key(self, request: HttpRequest, authorization: bytes | None) -> bytes:
        """Return everything that determines the validity of credentials. A token may be valid for one endpoint only."""
        path = b"" if request.path == self._path else self._endpoint_path(request).encode()
        by_address = self.auth is not None and self.auth.by_address
        if not self._headers and not by_address:
            return b"%b\n%b" % (authorization or b"", path) if path else authorization or b""
        named = [request.headers.get(name, b"") for name in self._headers]
        where = request.peer.encode() if by_address else b""
        return b"\n".join((authorization or b"", path, b"1" if request.proxied else b"0", where, *named))

    def _credentials(
        self, request: HttpRequest, auth: ResourceServer, authorization: bytes | None
    ) -> RequestCredentials:
        if request.query and _has_query_token(request.query):
            # 2026-07-28, authorization, Token Requirements: access tokens must not be in the query.
            raise _InvalidCredentials("access tokens must not be sent in the query")
        scheme, token = _parse_authorization(authorization) if authorization is not None else ("", "")
        if authorization is not None and not token:
            raise _InvalidCredentials("invalid Authorization header")
        # With duplicates, the proxy that sets the header and this server could read different ones.
        if any(name in request.headers.duplicates for name in self._headers):
            raise _InvalidCredentials("duplicate authentication header")
        headers = {
            name.decode(): request.headers[name].decode("latin-1") for name in self._headers if name in request.headers
        }
        path = self._endpoint_path(request)
        # A token for the main endpoint is also valid below it, where only parts of its features are offered. A token
        # for another endpoint, such as a view, is valid there alone.
        above = self._path if path.startswith(self._path.rstrip("/") + "/") else None
        others = frozenset((auth.public_url or "") + item for item in self._paths() if item not in (path, self._path))
        audiences = auth.valid_audiences(self._origins, path, above, others)
        return RequestCredentials(scheme, token, headers, request.peer, request.proxied, audiences, self._fetch, others)

    # Rejecting requests

    def _unauthorized_response(
        self, request: HttpRequest, error: str | None = None, nonce: bool = False
    ) -> HttpResponse:
        wrong = error is not None or b"authorization" in request.headers
        reason = "the bearer token is not valid" if wrong else "a bearer token is required"
        if self.auth is None:
            # RFC 6750, 3.1: a request without credentials gets no error code.
            challenge = b'Bearer realm="mcp", error="invalid_token"' if wrong else b'Bearer realm="mcp"'
            fields = [(b"www-authenticate", challenge)]
            if wrong:
                self._report(request, "the bearer token does not match this server's token")
        else:
            code = error or ("invalid_token" if wrong else None)
            needed = self._advertised_scopes(request.headers)
            fields = self.auth.challenge_headers(
                self._base_url(request), self._endpoint_path(request), needed, error=code, nonce=nonce
            )
        if self._on_rejected is not None:
            self._on_rejected(401, error or reason, request.peer)
        return error_responses.error_response(request, 401, f"Unauthorized: {reason}", tuple(fields))

    def _report(self, request: HttpRequest, reason: str) -> None:
        """Log why credentials were rejected. Rate-limits the WARNING level so that requests cannot flood the log."""
        now = monotonic()
        level = logging.WARNING if now >= self._next_warning else logging.INFO
        if level == logging.WARNING:
            self._next_warning = now + WARNING_INTERVAL_SECONDS
        log.log(level, "%s %s from %s was rejected: %s", request.method, request.path, request.peer, reason)

    def _error_response(self, request: HttpRequest, failure: Exception) -> HttpResponse:
        self._report(request, str(failure))
        # 503 instead of 401: the token may be valid, and a client must not discard it because the issuer is
        # down.
        if isinstance(failure, VerifierUnavailable):
            return error_responses.error_response(
                request,
                503,
                ("Service unavailable: the token cannot be verified at the moment"),
                ((b"retry-after", b"5"),),
            )
        if isinstance(failure, _InvalidCredentials):
            assert self.auth is not None
            fields = self.auth.challenge_headers(
                self._base_url(request), self._endpoint_path(request), error="invalid_request"
            )
            return error_responses.error_response(request, 400, f"Bad request: {failure}", tuple(fields))
        proof = isinstance(failure, InvalidDpopProof)
        return self._unauthorized_response(
            request,
            "invalid_dpop_proof" if proof else "invalid_token",
            isinstance(failure, InvalidDpopProof) and failure.nonce,
        )

    def _forbidden_response(self, request: HttpRequest, scopes: Collection[str]) -> HttpResponse:
        needed = frozenset(scopes) | self._advertised_scopes(request.headers)
        if self._on_rejected is not None:
            self._on_rejected(403, "insufficient_scope", request.peer)
        return self.insufficient_scope_response(request, needed) or error_responses.error_response(
            request, 403, "Forbidden: the token lacks required scopes"
        )

    def insufficient_scope_response(
        self, request: HttpRequest, scopes: Collection[str], id: Any = None
    ) -> HttpResponse | None:
        """Return the response for a principal without the required scopes. None if no issuer could grant them."""
        if self.auth is None or not self.auth.authorization_servers:
            return None
        # An anonymous caller needs a token first (401). Only a token without the scopes is a case for 403 (RFC
        # 6750, 3.1).
        if request.principal is None:
            fields = self.auth.challenge_headers(self._base_url(request), self._endpoint_path(request), scopes)
            return error_responses.error_response(
                request, 401, "Unauthorized: a token is required", (*fields, *request.cors), id
            )
        fields = self.auth.challenge_headers(
            self._base_url(request), self._endpoint_path(request), scopes, error="insufficient_scope"
        )
        needed = ", ".join(sorted({*scopes, *self.auth.required_scopes}))
        return error_responses.error_response(
            request, 403, f"Forbidden: required scopes: {needed}", (*fields, *request.cors), id
        )

    def _endpoint_path(self, request: HttpRequest) -> str:
        """Return the path of the endpoint that a request addresses."""
        return request.path if request.path in self._paths() else self._path

    def _base_url(self, request: HttpRequest) -> str:
        """Return the base URL to show to a client.

        A server with a configured audience may use any name that the Host check accepts; otherwise it is a bound
        origin.
        """
        if self.auth is not None and self.auth.is_named:
            return _named_origin(request)
        return self._bound_origin(request)

    def _bound_origin(self, request: HttpRequest) -> str:
        """Return the bound origin that a request names, or the first one. Never an origin that the client made up."""
        named = _named_origin(request)
        host = named.partition("://")[2]
        name, _, port = host.rpartition(":")
        if named in self._origins or host in self._hosts or (name in self._hosts and port in self._ports):
            return named
        return next(iter(self._origins), "")

    def _advertised_scopes(self, headers: Headers) -> frozenset[str]:
        """Return the scopes for the operation that the headers name. The headers are unverified: only a hint."""
        method, name = headers.get(http.METHOD_HEADER), headers.get(http.NAME_HEADER)
        if method is None or name is None:
            return frozenset()
        try:
            return frozenset(self._needs(method.decode("ascii"), decode_mirrored(name.decode("ascii"))))
        except ValueError:
            return frozenset()


class _InvalidCredentials(Exception):
    """The credentials are malformed, or sent where they must not be."""


def add_cors_headers(answer: HttpResponse, request: HttpRequest) -> HttpResponse:
    """Add CORS headers for an allowed origin. Without them the browser hides the response from the page."""
    complete = not request.cors or request.cors[0] in answer.headers
    return answer if complete else HttpResponse(answer.status, (*answer.headers, *request.cors), answer.body)


def _named_origin(request: HttpRequest) -> str:
    """Return the base URL that a request names. The client controls it, so it must not decide anything by itself."""
    host = request.headers.get(b"host", b"localhost").decode("latin-1").strip(" \t").lower()
    return f"{'https' if request.secure else 'http'}://{host}{request.root}"


def _parse_authorization(authorization: bytes) -> tuple[str, str]:
    """Return the scheme in lower case, and the token."""
    scheme, _, token = authorization.decode("latin-1").strip(" \t").partition(" ")
    token = token.strip(" \t")
    return scheme.lower(), token if token.isascii() and token.isprintable() and " " not in token else ""


def _has_query_token(query: str) -> bool:
    if not query:
        return False
    try:
        return any(name == "access_token" for name, _ in parse_qsl(query, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        return True
