"""Who comes in: from what a request shows to a principal, or to the answer that says what it should have shown.

What was verified before is looked up, and that is all that most requests cost. What can be told without waiting is told
before a body is read. The rest waits for the issuer, with the body in hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from time import monotonic, time
from typing import Any, Literal
from urllib.parse import parse_qsl

from portico.auth.flow import Fetch, Fetched
from portico.auth.principal import BearerTokens
from portico.auth.resource_server import WELL_KNOWN, Remembered, ResourceServer
from portico.auth.verifiers.base import Fetcher, MustWait, RequestCredentials, TokenInvalid, Unavailable
from portico.auth.verifiers.dpop import Proof, ProofInvalid
from portico.protocol.errors import ProtocolError, TransportError
from portico.protocol.header_params import decode as decode_mirrored
from portico.transports.http_client.simple_request import http_exchange
from portico.transports.http_server import error_responses
from portico.transports.http_server import headers as http
from portico.transports.http_server.custom_routes import PageRoute
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import JSON, TEXT, Answer, Pairs, Request

log = logging.getLogger("portico.auth")

FETCH_SECONDS = 10.0
# Refusals in between are logged at INFO.
WARNING_INTERVAL_SECONDS = 10.0
LONGEST_DOCUMENT = 512 * 1024

Needs = Callable[[str, str], Collection[str]]
"""The scopes that a method needs, for what its request is about."""


async def fetch(wanted: Fetch) -> Fetched:
    """For verifiers. A redirect is an answer, and no document: an issuer says itself where its things are."""
    try:
        answer = await http_exchange(
            wanted.method,
            wanted.url,
            headers=wanted.headers,
            body=wanted.body,
            seconds=FETCH_SECONDS,
            longest=LONGEST_DOCUMENT,
        )
    except ProtocolError as failure:
        raise TransportError(str(failure)) from None
    return Fetched(answer.status, (), answer.body)


class Admission:
    """The static tokens of a server, and what it takes from authorization servers."""

    def __init__(
        self,
        tokens: BearerTokens | None,
        auth: ResourceServer | None,
        path: str,
        paths: Callable[[], Collection[str]],
        needs: Needs,
        fetcher: Fetcher = fetch,
        told: Callable[[int, str, str | None], None] | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        if auth is not None and auth.public_url is not None:
            # Some say the URL of the endpoint itself.
            auth.public_url = auth.public_url.removesuffix(path)
        self.auth = auth
        self.required = (auth is not None and not auth.anonymous) or (tokens is not None and tokens.required)
        self._tokens = tokens
        # Of the first endpoint, and of all that there are.
        self._path = path
        # When a refusal is next logged at WARNING, by the monotonic clock.
        self._next_warning = 0.0
        self._paths = paths
        self._needs = needs
        self._fetch = fetcher
        # The origins of the sockets that are bound, the first of them first.
        self._origins: dict[str, None] = {}
        self._ports: set[str] = set()
        # The names that the operator has given to this server, each of them whole.
        self._hosts = frozenset(host.lower() for host in hosts if "*" not in host)
        self._remembered = {} if auth is None else auth.remembered
        # Whether nothing but the token decides who it is.
        self._by_token = auth is not None and tokens is None and not auth.headers and not auth.by_address
        self._told = told
        self._headers = tuple(name.encode() for name in auth.headers) if auth is not None else ()
        # The headers that `refuse` looks at.
        self.judged = (b"authorization", *self._headers)

    def pages(self) -> list[PageRoute]:
        """What the server publishes about itself."""
        if self.auth is None or not self.auth.authorization_servers:
            return []
        below = PageRoute("GET", f"{WELL_KNOWN}/", self._describe, prefix=True)
        return [PageRoute("GET", WELL_KNOWN, self._describe), below]

    async def _describe(self, request: Request) -> Answer:
        """RFC 9728, section 3.1: the path of the resource stands behind the well-known one; a proxy may have put
        something of its own before it."""
        assert self.auth is not None
        path = request.path.removeprefix(WELL_KNOWN) or self._path
        path = path if path in self._paths() else path.removeprefix(self.auth.prefix)
        if path not in self._paths():
            return Answer(404, TEXT, b"Not found\n")
        headers: Pairs = (*JSON, (b"cache-control", b"max-age=300"))
        return Answer(200, headers, self.auth.document(self._here(request), path))

    def bind(self, origins: Iterable[str]) -> None:
        """Note the origins, such as `http://127.0.0.1:8080`, that this server has bound: tokens may be for those."""
        self._origins.update(dict.fromkeys(origins))
        self._ports = {origin.rpartition(":")[2] for origin in self._origins}

    # Letting in

    def refuse(self, request: Request) -> Answer | None:
        """Before the body: what is wrong for certain."""
        try:
            return self._admit(request, proving=False)
        except MustWait:
            return None

    def admit(self, request: Request) -> Answer | Literal["wait"] | None:
        """Give the request its principal, or the answer that refuses it; "wait": see `wait`."""
        if self._by_token and not request.query:
            # What most requests cost. The same head comes again and again: then not even its token is hashed again.
            headers = request.headers
            found = headers.admitted or self._find(request)
            if found is not None and found.until > time():
                request.principal, request.until = found.verified.principal, found.verified.expires
                return None
        try:
            return self._admit(request, proving=True)
        except MustWait:
            return "wait"

    def _find(self, request: Request) -> Remembered | None:
        headers = request.headers
        authorization = headers.get(b"authorization")
        if authorization is None or authorization[:7].lower() != b"bearer ":
            return None
        found = self._remembered.get(sha256(self._shown(request, authorization)).digest())
        if found is None or not found.enough:
            return None
        headers.admitted = found
        return found

    def _admit(self, request: Request, proving: bool) -> Answer | None:
        authorization = request.headers.get(b"authorization")
        if self._tokens is not None:
            request.principal = self._tokens.verify(authorization)
            if request.principal is not None:
                return None
        auth = self.auth
        if auth is None:
            return self._unauthorized(request) if self.required else None
        if authorization is None and not self._headers:
            return self._without(request, auth)
        shown = self._shown(request, authorization)
        found = auth.known(shown)
        if found is None or request.query:
            try:
                credentials = self._credentials(request, auth, authorization)
                if not credentials.scheme and not credentials.headers:
                    return self._without(request, auth)
                found = found or auth.look(shown, credentials)
            except (TokenInvalid, Unavailable, _Misplaced) as failure:
                return self._refused(request, failure)
        verified = found.verified
        if proving and (
            verified.key is not None or auth.dpop_required or (authorization or b"")[:4].lower() == b"dpop"
        ):
            try:
                self._use_at_once(auth, self._proof(request, auth, found))
            except (TokenInvalid, Unavailable) as failure:
                return self._refused(request, failure)
        request.principal, request.until = verified.principal, verified.expires
        return self._forbidden(request, auth.required) if found.lacking else None

    def _without(self, request: Request, auth: ResourceServer) -> Answer | None:
        """A request that shows nothing."""
        if _token_in(request.query):
            return self._refused(request, _Misplaced("a token is not taken from the query"))
        return None if auth.anonymous else self._unauthorized(request)

    async def wait(self, request: Request) -> Answer | None:
        """The same as `admit`, for what has to be asked of others."""
        auth = self.auth
        assert auth is not None
        authorization = request.headers.get(b"authorization")
        shown = self._shown(request, authorization)
        try:
            found = auth.known(shown)
            if found is None:
                found = await auth.verify(shown, self._credentials(request, auth, authorization))
            used = self._proof(request, auth, found)
            if used is not None and auth.proofs is not None and not await auth.proofs.replays.add(*used):
                raise ProofInvalid("the proof was used before")
        except (TokenInvalid, Unavailable, _Misplaced) as failure:
            return self._refused(request, failure)
        request.principal, request.until = found.verified.principal, found.verified.expires
        return self._forbidden(request, auth.required) if found.lacking else None

    def _proof(self, request: Request, auth: ResourceServer, found: Any) -> tuple[str, float] | None:
        """Whether it holds the key that its token is bound to: what the table of proofs is to remember of that."""
        scheme, token = _split(request.headers.get(b"authorization", b""))
        text = request.headers.get(b"dpop")
        proof = None
        if text is not None and found.verified.key is not None:
            url = auth.resource(self._bound_origin(request), self._asked(request))
            proof = Proof(text.decode("latin-1"), request.method, url, token, found.verified.key)
        return auth.proven(found.verified, scheme, proof)

    def _use_at_once(self, auth: ResourceServer, used: tuple[str, float] | None) -> None:
        if used is not None and auth.proofs is not None:
            new = auth.proofs.replays.at_once(*used)
            if new is None:
                raise MustWait
            if not new:
                raise ProofInvalid("the proof was used before")

    def _shown(self, request: Request, authorization: bytes | None) -> bytes:
        """Return all that decides about the credentials. A token for one endpoint may not be valid at another."""
        path = b"" if request.path == self._path else self._asked(request).encode()
        by_address = self.auth is not None and self.auth.by_address
        if not self._headers and not by_address:
            return b"%b\n%b" % (authorization or b"", path) if path else authorization or b""
        named = [request.headers.get(name, b"") for name in self._headers]
        where = request.peer.encode() if by_address else b""
        return b"\n".join((authorization or b"", path, b"1" if request.proxied else b"0", where, *named))

    def _credentials(self, request: Request, auth: ResourceServer, authorization: bytes | None) -> RequestCredentials:
        if request.query and _token_in(request.query):
            # 2026-07-28, authorization, Token Requirements: access tokens must not be in the query.
            raise _Misplaced("a token is not taken from the query")
        scheme, token = _split(authorization) if authorization is not None else ("", "")
        if authorization is not None and not token:
            raise _Misplaced("the Authorization header cannot be read")
        if any(name in request.headers.repeated for name in self._headers):
            raise _Misplaced("a header that says who it is stands twice")
        said = {
            name.decode(): request.headers[name].decode("latin-1") for name in self._headers if name in request.headers
        }
        path = self._asked(request)
        # A token for the main endpoint is valid below it, where there is no more than a part of what that offers. One
        # for another endpoint, such as a view, is valid there alone.
        above = self._path if path.startswith(self._path.rstrip("/") + "/") else None
        others = frozenset((auth.public_url or "") + one for one in self._paths() if one not in (path, self._path))
        audiences = auth.valid_audiences(self._origins, path, above, others)
        return RequestCredentials(scheme, token, said, request.peer, request.proxied, audiences, self._fetch, others)

    # Refusing

    def _unauthorized(self, request: Request, error: str | None = None, nonce: bool = False) -> Answer:
        wrong = error is not None or b"authorization" in request.headers
        reason = "the bearer token is not valid" if wrong else "a bearer token is needed"
        if self.auth is None:
            # RFC 6750, 3.1: the error is said only to who has sent a token.
            challenge = b'Bearer realm="mcp", error="invalid_token"' if wrong else b'Bearer realm="mcp"'
            fields = [(b"www-authenticate", challenge)]
            if wrong:
                self._report(request, "the bearer token is not this server's")
        else:
            code = error or ("invalid_token" if wrong else None)
            needed = self._needed(request.headers)
            fields = self.auth.challenges(self._here(request), self._asked(request), needed, error=code, nonce=nonce)
        if self._told is not None:
            self._told(401, error or reason, request.peer)
        return error_responses.error(request, 401, f"Unauthorized: {reason}", tuple(fields))

    def _report(self, request: Request, reason: str) -> None:
        """Log why credentials were refused: at WARNING now and then, so that requests cannot fill the log."""
        now = monotonic()
        level = logging.WARNING if now >= self._next_warning else logging.INFO
        if level == logging.WARNING:
            self._next_warning = now + WARNING_INTERVAL_SECONDS
        log.log(level, "%s %s from %s was refused: %s", request.method, request.path, request.peer, reason)

    def _refused(self, request: Request, failure: Exception) -> Answer:
        self._report(request, str(failure))
        if isinstance(failure, Unavailable):
            return error_responses.error(
                request, 503, "Service unavailable: the token cannot be verified now", ((b"retry-after", b"5"),)
            )
        if isinstance(failure, _Misplaced):
            assert self.auth is not None
            fields = self.auth.challenges(self._here(request), self._asked(request), error="invalid_request")
            return error_responses.error(request, 400, f"Bad request: {failure}", tuple(fields))
        proof = isinstance(failure, ProofInvalid)
        return self._unauthorized(
            request,
            "invalid_dpop_proof" if proof else "invalid_token",
            isinstance(failure, ProofInvalid) and failure.nonce,
        )

    def _forbidden(self, request: Request, scopes: Collection[str]) -> Answer:
        needed = frozenset(scopes) | self._needed(request.headers)
        if self._told is not None:
            self._told(403, "insufficient_scope", request.peer)
        return self.forbidden(request, needed) or error_responses.error(
            request, 403, "Forbidden: the token has not the scopes"
        )

    def forbidden(self, request: Request, scopes: Collection[str], id: Any = None) -> Answer | None:
        """What a principal hears that lacks scopes for what it asks; None where there is no issuer to get them from."""
        if self.auth is None or not self.auth.authorization_servers:
            return None
        if request.principal is None:
            fields = self.auth.challenges(self._here(request), self._asked(request), scopes)
            return error_responses.error(request, 401, "Unauthorized: a token is needed", (*fields, *request.cors), id)
        fields = self.auth.challenges(self._here(request), self._asked(request), scopes, error="insufficient_scope")
        needed = ", ".join(sorted({*scopes, *self.auth.required}))
        return error_responses.error(
            request, 403, f"Forbidden: this needs the scope {needed}", (*fields, *request.cors), id
        )

    def _asked(self, request: Request) -> str:
        """The path of the endpoint that a request is for."""
        return request.path if request.path in self._paths() else self._path

    def _here(self, request: Request) -> str:
        """Return the base URL to show to a client. With an audience of its own the server may have any name that the
        Host check lets through; otherwise it is one of those that tokens may be for."""
        if self.auth is not None and self.auth.is_named:
            return _named_origin(request)
        return self._bound_origin(request)

    def _bound_origin(self, request: Request) -> str:
        """Return the bound origin that a request names, else the first one; never an origin that the client made up."""
        named = _named_origin(request)
        host = named.partition("://")[2]
        name, _, port = host.rpartition(":")
        if named in self._origins or host in self._hosts or (name in self._hosts and port in self._ports):
            return named
        return next(iter(self._origins), "")

    def _needed(self, headers: Headers) -> frozenset[str]:
        """What the operation needs that the headers name. They are not checked yet: it is advice, no decision."""
        method, name = headers.get(http.METHOD), headers.get(http.NAME)
        if method is None or name is None:
            return frozenset()
        try:
            return frozenset(self._needs(method.decode("ascii"), decode_mirrored(name.decode("ascii"))))
        except ValueError:
            return frozenset()


class _Misplaced(Exception):
    """The credentials cannot be read, or are where they must not be."""


def with_cors(answer: Answer, request: Request) -> Answer:
    """For a page whose origin was let in: without this its browser keeps the answer from it."""
    said = not request.cors or request.cors[0] in answer.headers
    return answer if said else Answer(answer.status, (*answer.headers, *request.cors), answer.body)


def _named_origin(request: Request) -> str:
    """Return the base URL that a request names. That is the client's claim: it decides nothing by itself."""
    host = request.headers.get(b"host", b"localhost").decode("latin-1").strip(" \t").lower()
    return f"{'https' if request.secure else 'http'}://{host}{request.root}"


def _split(authorization: bytes) -> tuple[str, str]:
    """The scheme in lower case, and the token."""
    scheme, _, token = authorization.decode("latin-1").strip(" \t").partition(" ")
    token = token.strip(" \t")
    return scheme.lower(), token if token.isascii() and token.isprintable() and " " not in token else ""


def _token_in(query: str) -> bool:
    if not query:
        return False
    try:
        return any(name == "access_token" for name, _ in parse_qsl(query, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        return True
