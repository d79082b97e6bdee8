"""An issuer of tokens in this process, with real keys, signatures and HTTP, that can also issue invalid tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from typing import Any

from joserfc import jwk, jws

from portico import Server
from portico.transports.http_server.custom_routes import CustomRoute
from portico.transports.http_server.messages import JSON_HEADERS, HttpRequest, HttpResponse


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def compact(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token with these parts and any signature."""
    return ".".join((b64(json.dumps(header).encode()), b64(json.dumps(claims).encode()), b64(signature)))


def signed(key: Any, header: dict[str, Any], claims: dict[str, Any]) -> str:
    text = compact(header, claims)
    body = text.rpartition(".")[0]
    return f"{body}.{b64(jws.JWSRegistry.algorithms[header['alg']].sign(body.encode(), key))}"


class Issuer:
    """Issues tokens, and publishes the keys that they are signed with."""

    def __init__(self) -> None:
        self.url = ""
        self.keys = {"one": jwk.ECKey.generate_key("P-256")}
        self.fetched: list[str] = []
        self.down = False
        # Responds with this, whatever the request.
        self.instead: HttpResponse | None = None
        self.active: dict[str, dict[str, Any]] = {}

    def pages(self) -> Server:
        """Serve with our own listener."""
        server = Server("issuer")
        server.custom_routes += [
            CustomRoute("GET", "/.well-known/openid-configuration", self._metadata),
            CustomRoute("GET", "/keys", self._keys),
            CustomRoute("POST", "/introspect", self._introspect),
        ]
        return server

    async def _metadata(self, request: HttpRequest) -> HttpResponse:
        return self._say(
            request,
            {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "introspection_endpoint": f"{self.url}/introspect",
                "token_endpoint": f"{self.url}/token",
            },
        )

    async def _keys(self, request: HttpRequest) -> HttpResponse:
        documents = [{**key.as_dict(private=False), "kid": kid, "use": "sig"} for kid, key in self.keys.items()]
        return self._say(request, {"keys": documents})

    async def _introspect(self, request: HttpRequest) -> HttpResponse:
        assert request.headers[b"authorization"].startswith(b"Basic ")
        token = request.body.decode().partition("token=")[2].partition("&")[0]
        return self._say(request, self.active.get(token, {"active": False}))

    def _say(self, request: HttpRequest, document: dict[str, Any]) -> HttpResponse:
        self.fetched.append(request.path)
        if self.instead is not None:
            return self.instead
        return HttpResponse(500) if self.down else HttpResponse(200, JSON_HEADERS, json.dumps(document).encode())

    def claims(self, audience: str, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        message = {"iss": self.url, "sub": "ada", "aud": audience, "exp": now + 300, "iat": now, "scope": "", **more}
        return {name: value for name, value in message.items() if value is not None}

    def token(self, audience: str, *, kid: str = "one", header: dict[str, Any] | None = None, **more: Any) -> str:
        """Return a valid token. Arguments replace claims; None removes one."""
        head = {"alg": "ES256", "typ": "at+jwt", "kid": kid, **(header or {})}
        key = self.keys[kid] if kid in self.keys else jwk.ECKey.generate_key("P-256")
        return signed(key, head, self.claims(audience, **more))


class Prover:
    """A DPoP key of a client."""

    def __init__(self) -> None:
        self.key = jwk.ECKey.generate_key("P-256")

    @property
    def thumbprint(self) -> str:
        return str(self.key.thumbprint())

    def proof(self, token: str, url: str, method: str = "POST", **more: Any) -> str:
        header = {"alg": "ES256", "typ": "dpop+jwt", "jwk": self.key.as_dict(private=False)}
        claims = {
            "jti": uuid.uuid4().hex,
            "htm": method,
            "htu": url,
            "iat": int(time.time()),
            "ath": b64(hashlib.sha256(token.encode()).digest()),
            **more,
        }
        return signed(self.key, header, {name: value for name, value in claims.items() if value is not None})
