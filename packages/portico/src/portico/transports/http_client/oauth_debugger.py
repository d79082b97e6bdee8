"""OAuth discovery against a server, step by step: each document, and the rules it violates.

The steps are those of Portico's client. Nothing is registered, and no token is requested.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.auth.challenges import AuthChallenge, parse_auth_challenge
from portico.auth.errors import AuthorizationError
from portico.auth.flow import FetchRequest, FetchResponse
from portico.auth.metadata import MetadataDiscovery, discover
from portico.protocol.errors import PorticoError
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.transports.http_client.oauth_fetcher import OAuthFetcher, resolve_addresses
from portico.transports.http_client.responses import reason_of

# Shown in a browser or terminal; an HTML login page would hide the findings.
MAX_BODY_CHARS = 4000
_BODY = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": FIRST_MODERN_VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "portico", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
    ("MCP-Protocol-Version", FIRST_MODERN_VERSION),
    ("Mcp-Method", "server/discover"),
)


class DiscoveryFinding(Struct):
    """A rule, the section that states it, and whether the response follows it."""

    level: Literal["error", "warning", "ok"]
    rule: str
    text: str


class DiscoveryStep(Struct, kw_only=True):
    """One request of the discovery, with its response."""

    name: str
    title: str
    request: dict[str, str]
    status: int | None = None
    headers: list[tuple[str, str]] = []
    document: dict[str, Any] | None = None
    text: str | None = None
    # The reason of an error response, as the server states it.
    reason: str = ""
    ok: bool = True
    findings: list[DiscoveryFinding] = []

    def add(self, level: Literal["error", "warning", "ok"], rule: str, text: str) -> None:
        self.findings = [*self.findings, DiscoveryFinding(level, rule, text)]
        self.ok = self.ok and level != "error"


async def debug_discovery(url: str) -> list[DiscoveryStep]:
    """Follow a server's metadata to its authorization server and return each step with its findings."""
    fetcher = OAuthFetcher(partial(resolve_addresses, url))
    try:
        return await _discover(url, fetcher)
    finally:
        await fetcher.close()


async def _discover(url: str, fetcher: OAuthFetcher) -> list[DiscoveryStep]:
    first, answer = await _fetch_step(
        fetcher, FetchRequest("POST", url, _HEADERS, msgspec.json.encode(_BODY)), "server"
    )
    steps = [first]
    if answer is None:
        return steps
    challenge = parse_auth_challenge(answer)
    _check_challenge(first, challenge)
    if answer.status != 401:
        return steps
    conversation = discover(MetadataDiscovery(url), challenge)
    reply: FetchResponse | None = None
    try:
        while True:
            fetch_request = conversation.send(reply)
            assert isinstance(fetch_request, FetchRequest)
            step, reply = await _fetch_step(fetcher, fetch_request, _name(fetch_request.url))
            steps.append(step)
            if reply is None:
                # Treated like a server that does not respond: discovery has other URLs to try.
                reply = FetchResponse(599)
    except StopIteration as done:
        _check_authorization_server(steps[-1], done.value.server)
    except AuthorizationError as failure:
        steps[-1].add("error", type(failure).__name__, str(failure))
    return steps


async def _fetch_step(
    fetcher: OAuthFetcher, request: FetchRequest, name: str
) -> tuple[DiscoveryStep, FetchResponse | None]:
    step = DiscoveryStep(name=name, title=_TITLES[name], request={"method": request.method, "url": request.url})
    try:
        answer = await fetcher.fetch(request)
    except PorticoError as failure:
        step.add("error", "reachability", str(failure))
        return step, None
    step.status = answer.status
    # Reports are pasted into bug trackers, so session cookies are left out.
    step.headers = [(name, value[:2000]) for name, value in answer.headers if name != "set-cookie"]
    step.document = answer.json_object()
    if step.document is None:
        step.text = answer.body[:MAX_BODY_CHARS].decode("utf-8", "replace")
    if answer.status >= 400:
        step.reason = reason_of(answer.status, answer.headers, answer.body)
    _check_document(step)
    return step, answer


_TITLES = {
    "server": "Request without a token",
    "resource": "Protected resource metadata",
    "issuer": "Authorization server metadata",
}


def _name(url: str) -> str:
    return "resource" if "oauth-protected-resource" in url or "/.well-known/" not in url else "issuer"


def _check_challenge(step: DiscoveryStep, challenge: AuthChallenge) -> None:
    if step.status == 401 and not challenge.schemes:
        step.add("error", "RFC 9110, 11.6.1", "401 response without a WWW-Authenticate header")
    elif step.status == 401 and challenge.resource_metadata is None:
        step.add(
            "warning",
            "RFC 9728, 5.1",
            "the challenge has no resource_metadata parameter; clients fall back to the well-known URLs",
        )
    elif step.status == 401:
        step.add("ok", "RFC 9728, 5.1", f"resource_metadata points to {challenge.resource_metadata}")
    elif step.status is not None and step.status < 400:
        step.add("ok", "basic/authorization", "the server accepts requests without a token; no login required")
    else:
        step.add("warning", "RFC 6750, 3", f"expected HTTP 401 for a request without a token, got {step.status}")


def _check_document(step: DiscoveryStep) -> None:
    if step.name == "server":
        return
    if step.status == 404:
        step.add("warning", "discovery", "not found; trying the next well-known URL")
    elif step.status != 200:
        step.add("error", "RFC 9728, 3.2", f"expected HTTP 200 for metadata, got {step.status}")
    elif step.document is None:
        step.add("error", "RFC 9728, 3.2", "metadata must be a JSON object")
    elif step.name == "resource":
        named = step.document.get("authorization_servers")
        if not isinstance(named, list) or not named:
            step.add("error", "2026-07-28, authorization", "authorization_servers is empty or missing")


def _check_authorization_server(step: DiscoveryStep, server: Any) -> None:
    methods = server.code_challenge_methods_supported
    # "MCP clients MUST verify PKCE support before proceeding with authorization" (2026-07-28, authorization).
    if methods is None or "S256" not in methods:
        step.add(
            "error",
            "2026-07-28, authorization, Authorization Code Protection",
            "code_challenge_methods_supported lacks S256 (PKCE): clients must refuse to proceed",
        )
    if not server.authorization_endpoint:
        step.add("error", "RFC 8414, 2", "authorization_endpoint is missing: users cannot log in")
    if not server.client_id_metadata_document_supported and not server.registration_endpoint:
        step.add(
            "warning",
            "2026-07-28, authorization, Client Registration",
            "neither Client ID Metadata Documents nor dynamic client registration is supported: clients must be "
            "pre-registered",
        )
    if step.ok:
        step.add("ok", "RFC 8414, 3.3", f"issuer {server.issuer} matches")
