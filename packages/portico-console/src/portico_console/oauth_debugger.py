"""How a server says who gives out tokens for it, step by step: each document, and the rule that it breaks.

The steps are those that our own client takes. Nothing is registered, and no token is asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.auth.challenges import Demand, demand
from portico.auth.errors import AuthorizationFailed
from portico.auth.flow import Fetch, Fetched
from portico.auth.metadata import MetadataSearch, discover
from portico.protocol.errors import Error, ToolError
from portico.protocol.versions import MODERN
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.transports.http_client.oauth_fetcher import Fetcher, addresses_of
from portico.transports.http_client.responses import reason_of
from portico_console.tool_responses import shown

SHOWN_TEXT = 4000
_BODY = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "portico-console", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
    ("MCP-Protocol-Version", MODERN),
    ("Mcp-Method", "server/discover"),
)


class ChainFinding(Struct):
    level: Literal["error", "warning", "ok"]
    rule: str
    text: str


class ChainStep(Struct, kw_only=True):
    name: str
    title: str
    request: dict[str, str]
    status: int | None = None
    headers: list[tuple[str, str]] = []
    document: dict[str, Any] | None = None
    text: str | None = None
    # Why the server refused the request, in its own words.
    reason: str = ""
    ok: bool = True
    findings: list[ChainFinding] = []

    def add(self, level: Literal["error", "warning", "ok"], rule: str, text: str) -> None:
        self.findings = [*self.findings, ChainFinding(level, rule, text)]
        self.ok = self.ok and level != "error"


class OAuthService(Service):
    """What stands between a client and a server that wants a token."""

    name = "oauth"

    @tool(annotations={"readOnlyHint": True, "openWorldHint": True})
    async def oauth_chain(self, url: str) -> ToolResult:
        """Follow a server's metadata to its authorization server, and say at each step what is wrong."""
        steps = await follow_chain(url)
        return shown({"url": url, "steps": steps, "ok": all(step.ok for step in steps)})


async def follow_chain(url: str) -> list[ChainStep]:
    fetcher = Fetcher(partial(addresses_of, url))
    try:
        return await _follow(url, fetcher)
    finally:
        await fetcher.close()


async def _follow(url: str, fetcher: Fetcher) -> list[ChainStep]:
    first, answer = await _fetched(fetcher, Fetch("POST", url, _HEADERS, msgspec.json.encode(_BODY)), "server")
    steps = [first]
    if answer is None:
        return steps
    wanted = demand(answer)
    _judge_challenge(first, wanted)
    if answer.status != 401:
        return steps
    conversation = discover(MetadataSearch(url), wanted)
    reply: Fetched | None = None
    try:
        while True:
            asked = conversation.send(reply)
            assert isinstance(asked, Fetch)
            step, reply = await _fetched(fetcher, asked, _name(asked.url))
            steps.append(step)
            if reply is None:
                # As a server that is not there: there may be another place to look at.
                reply = Fetched(599)
    except StopIteration as done:
        _judge_server(steps[-1], done.value.server)
    except AuthorizationFailed as failure:
        steps[-1].add("error", type(failure).__name__, str(failure))
    return steps


async def _fetched(fetcher: Fetcher, asked: Fetch, name: str) -> tuple[ChainStep, Fetched | None]:
    step = ChainStep(name=name, title=_TITLES[name], request={"method": asked.method, "url": asked.url})
    try:
        answer = await fetcher.fetch(asked)
    except Error as failure:
        step.add("error", "reachability", str(failure))
        return step, None
    except ValueError:
        raise ToolError(f"{asked.url[:200]!r} is no URL") from None
    step.status = answer.status
    step.headers = [(name, value[:2000]) for name, value in answer.headers if name != "set-cookie"]
    step.document = answer.document()
    if step.document is None:
        step.text = answer.body[:SHOWN_TEXT].decode("utf-8", "replace")
    if answer.status >= 400:
        step.reason = reason_of(answer.status, answer.headers, answer.body)
    _judge_document(step)
    return step, answer


_TITLES = {
    "server": "The server, asked without a token",
    "resource": "What the server says of itself: protected resource metadata",
    "issuer": "What its authorization server says of itself",
}


def _name(url: str) -> str:
    return "resource" if "oauth-protected-resource" in url or "/.well-known/" not in url else "issuer"


def _judge_challenge(step: ChainStep, wanted: Demand) -> None:
    if step.status == 401 and not wanted.schemes:
        step.add("error", "RFC 9110, 11.6.1", "a 401 has a WWW-Authenticate header that names a scheme; this has none")
    elif step.status == 401 and wanted.resource_metadata is None:
        step.add(
            "warning",
            "RFC 9728, 5.1",
            "the challenge does not say where the metadata is (resource_metadata); clients look at the known places",
        )
    elif step.status == 401:
        step.add("ok", "RFC 9728, 5.1", f"it points at {wanted.resource_metadata}")
    elif step.status is not None and step.status < 400:
        step.add("ok", "basic/authorization", "it answers without a token: there is nothing to log in to")
    else:
        step.add("warning", "RFC 6750, 3", f"a request without a token is answered with 401, not with {step.status}")


def _judge_document(step: ChainStep) -> None:
    if step.name == "server":
        return
    if step.status == 404:
        step.add("warning", "discovery", "there is no document here; the next place is tried")
    elif step.status != 200:
        step.add("error", "RFC 9728, 3.2", f"metadata is answered with 200, not with {step.status}")
    elif step.document is None:
        step.add("error", "RFC 9728, 3.2", "metadata is a JSON object; this is none")
    elif step.name == "resource":
        named = step.document.get("authorization_servers")
        if not isinstance(named, list) or not named:
            step.add("error", "2026-07-28, authorization", "it names no authorization server (authorization_servers)")


def _judge_server(step: ChainStep, server: Any) -> None:
    methods = server.code_challenge_methods_supported
    if methods is None or "S256" not in methods:
        step.add(
            "error",
            "2026-07-28, authorization, Authorization Code Protection",
            "it does not say that it has PKCE with S256 (code_challenge_methods_supported): clients have to refuse",
        )
    if not server.authorization_endpoint:
        step.add("error", "RFC 8414, 2", "there is no authorization_endpoint, so no person can log in")
    if not server.client_id_metadata_document_supported and not server.registration_endpoint:
        step.add(
            "warning",
            "2026-07-28, authorization, Client Registration",
            "neither client id metadata documents nor dynamic registration: each client has to be registered by hand",
        )
    if step.ok:
        step.add("ok", "RFC 8414, 3.3", f"the issuer is {server.issuer}, as it should be")
