"""Test doubles without sockets: MCP servers, authorization servers and a browser.

The authorization server here is strict where ours has to be right and says what it saw, so that a test can look.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import pytest

from portico.auth.authorization_code import AuthorizationCode
from portico.auth.flow import BrowserRequest, FetchRequest, FetchResponse, parse_redirect
from portico.auth.oauth import OAuth
from portico.auth.token_storage import TokenStorage

REDIRECT = "http://127.0.0.1:8976/callback"


def reply(document: Any = None, status: int = 200, **headers: str) -> FetchResponse:
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return FetchResponse(status, pairs, b"" if document is None else json.dumps(document).encode())


def lacking(scopes: str) -> FetchResponse:
    """Return the response to a token with insufficient scopes."""
    return reply(None, 403, WWW_Authenticate=f'Bearer error="insufficient_scope", scope="{scopes}"')


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt_parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    return json.loads(header), json.loads(claims)


@dataclass
class Asked:
    """A request as a server reads it."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    form: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, fetch: FetchRequest) -> Asked:
        headers = {name.lower(): value for name, value in fetch.headers}
        form = headers.get("content-type") == "application/x-www-form-urlencoded"
        pairs = parse_qsl(fetch.body.decode(), keep_blank_values=True, strict_parsing=True) if form else []
        assert len(dict(pairs)) == len(pairs), "a parameter came twice"
        return cls(fetch.method, fetch.url, headers, fetch.body, dict(pairs))

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def basic(self) -> tuple[str, str] | None:
        scheme, _, rest = self.headers.get("authorization", "").partition(" ")
        if scheme != "Basic":
            return None
        name, _, secret = base64.b64decode(rest).decode().partition(":")
        return unquote_plus(name), unquote_plus(secret)


class Issuer:
    """An authorization server. `metadata` is merged into its document, and None takes a member out."""

    def __init__(self, origin: str = "https://auth.example", prefix: str = "", at: str | None = None, **metadata: Any):
        self.origin = origin
        self.issuer = origin + prefix
        self.at = at or f"/.well-known/oauth-authorization-server{prefix}"
        self.metadata = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
        } | metadata
        self.iss: str | None = self.issuer  # what it puts on its answers
        self.registered: dict[str, Any] = {"client_id": "registered"}
        self.refresh_tokens = False
        self.lifetime: Any = 3600
        self.scope: str | None = None  # what it grants, whatever was asked
        self.nonce: str | None = None
        self.refuse: dict[str, Any] | None = None  # every token request, until this is taken away
        self.registrations: list[dict[str, Any]] = []
        self.visits: list[dict[str, str]] = []
        self.tokens: list[Asked] = []
        self.issued: list[str] = []
        self.revoked: set[str] = set()
        self.answers: Callable[[dict[str, str]], dict[str, str]] = lambda answer: answer
        self._codes: dict[str, dict[str, str]] = {}

    @property
    def document(self) -> dict[str, Any]:
        return {name: value for name, value in self.metadata.items() if value is not None}

    def __call__(self, asked: Asked) -> FetchResponse:
        if asked.path == self.at:
            return reply(self.document)
        prefix = urlsplit(self.issuer).path
        if asked.path == f"{prefix}/register":
            self.registrations.append(json.loads(asked.body))
            return reply(self.registered, 201 if "error" not in self.registered else 400)
        if asked.path == f"{prefix}/token":
            self.tokens.append(asked)
            return self._token(asked)
        return reply({"error": "not found"}, 404)

    def browse(self, url: str) -> str:
        """Consent as the user and return the redirect URL."""
        result = parse_redirect(url)
        self.visits.append(result)
        code = f"code-{len(self.visits)}"
        self._codes[code] = result
        answer = {"code": code, "state": result["state"]} | ({"iss": self.iss} if self.iss else {})
        return result["redirect_uri"] + "?" + urlencode(self.answers(answer))

    def _token(self, asked: Asked) -> FetchResponse:
        if self.refuse is not None:
            return reply(self.refuse, 400)
        bound = {}
        if "dpop" in asked.headers:
            _, claims = jwt_parts(asked.headers["dpop"])
            if self.nonce is not None and claims.get("nonce") != self.nonce:
                return reply({"error": "use_dpop_nonce"}, 400, DPoP_Nonce=self.nonce)
            bound = {"token_type": "DPoP"}
        scope: str | None = asked.form.get("scope", "")
        if asked.form["grant_type"] == "authorization_code":
            visit = self._codes.pop(asked.form["code"], None)
            if visit is None:
                return reply({"error": "invalid_grant"}, 400)
            verifier = hashlib.sha256(asked.form["code_verifier"].encode()).digest()
            assert visit["code_challenge_method"] == "S256"
            assert unpadded(verifier) == visit["code_challenge"]
            assert visit["redirect_uri"] == asked.form["redirect_uri"]
            scope = visit.get("scope", "")
        if asked.form["grant_type"] == "refresh_token":
            if asked.form["refresh_token"] in self.revoked:
                return reply({"error": "invalid_grant", "error_description": "revoked"}, 400)
            self.revoked.add(asked.form["refresh_token"])
            scope = None
        self.issued.append(f"token-{len(self.issued) + 1}@{urlsplit(self.issuer).netloc}")
        values: dict[str, Any] = {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": self.lifetime}
        if self.refresh_tokens:
            values["refresh_token"] = f"refresh-{len(self.issued)}"
        if scope or self.scope:
            values["scope"] = self.scope or scope
        return reply({name: value for name, value in (values | bound).items() if value is not None})


class Server:
    """An MCP server. `prm` is where its metadata is, None for nowhere."""

    def __init__(
        self,
        url: str = "https://mcp.example/mcp",
        issuer: str = "https://auth.example",
        *,
        prm: str | None = "/.well-known/oauth-protected-resource/mcp",
        named: bool = True,
        scope: str | None = None,
        **document: Any,
    ) -> None:
        self.url = url
        self.origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        self.prm = prm
        self.document = {"resource": url, "authorization_servers": [issuer]} | document
        named_at = f'resource_metadata="{self.origin}{prm}"' if named and prm else ""
        self.challenge = ", ".join(filter(None, [f'scope="{scope}"' if scope else "", named_at]))
        self.scheme = "Bearer"
        self.accepts: Callable[[str, str], bool] = lambda token, operation: True
        self.refuses: Callable[[str, str], FetchResponse | None] = lambda token, operation: None
        self.calls: list[Asked] = []

    def __call__(self, asked: Asked) -> FetchResponse:
        if asked.path == self.prm:
            return reply(self.document)
        return reply({"error": "not found"}, 404)

    def call(self, asked: Asked, operation: str) -> FetchResponse:
        self.calls.append(asked)
        token = asked.headers.get("authorization", "").partition(" ")[2]
        if not token or not self.accepts(token, operation):
            return reply(None, 401, WWW_Authenticate=f"{self.scheme} {self.challenge}".strip())
        return self.refuses(token, operation) or reply({"result": {}})


class World:
    """Everything there is, and a driver for it."""

    def __init__(self, server: Server, *issuers: Any) -> None:
        self.server = server
        self.issuers = issuers
        self.fetched: list[FetchRequest] = []
        self.visited: list[BrowserRequest] = []
        self.now = 1_000_000.0

    def clock(self) -> float:
        return self.now

    @property
    def urls(self) -> list[str]:
        return [fetch.url for fetch in self.fetched]

    def oauth(self, grant: Any = None, **options: Any) -> OAuth:
        options.setdefault("clock", self.clock)
        options.setdefault("storage", TokenStorage())
        return OAuth(self.server.url, grant or AuthorizationCode(REDIRECT), **options)

    def hold(self, conversation: Any) -> Any:
        answer: Any = None
        for _ in range(100):
            try:
                response = conversation.send(answer)
            except StopIteration as done:
                return done.value
            answer = self.fetch(response) if isinstance(response, FetchRequest) else self.visit(response)
        raise AssertionError("a conversation without end")

    def fetch(self, wanted: FetchRequest) -> FetchResponse:
        self.fetched.append(wanted)
        result = Asked.of(wanted)
        answer = reply({"error": "not found"}, 404)
        for party in (self.server, *self.issuers):
            if result.url.startswith(party.origin + "/"):
                answer = party(result)
                if answer.status != 404:
                    return answer
        return answer

    def visit(self, wanted: BrowserRequest) -> dict[str, str]:
        self.visited.append(wanted)
        issuer = next(one for one in self.issuers if wanted.url.startswith(one.metadata["authorization_endpoint"]))
        target = issuer.browse(wanted.url)
        assert target.startswith(wanted.redirect_uri)
        return parse_redirect(target)

    def call(self, oauth: OAuth, operation: str = "tools/list") -> FetchResponse:
        """Send one MCP request as a transport does."""
        attempt = oauth.start_request(operation)
        for _ in range(20):
            headers = self.hold(attempt.headers("POST", self.server.url, b"{}"))
            answer = self.server.call(
                Asked.of(FetchRequest("POST", self.server.url, tuple(headers.items()))), operation
            )
            if not self.hold(attempt.should_retry(answer)):
                return answer
        raise AssertionError("a request without end")


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def world(server: Server, issuer: Issuer) -> World:
    return World(server, issuer)


@pytest.fixture
def make() -> Any:
    """Return the factories for custom setups: `make.Issuer`, `make.Server`, `make.World`, `make.reply`."""

    class Makers:
        pass

    for item in (Issuer, Server, World, Asked, reply, jwt_parts, lacking):
        setattr(Makers, item.__name__, staticmethod(item))
    Makers.REDIRECT = REDIRECT  # type: ignore[attr-defined]
    return Makers
