"""The frame that an app of a server's runs in (MCP Apps, 2026-01-26, "Sandbox proxy").

The specification wants two frames: a proxy of another origin than the host, and in it the app. There is one listener
here, so the proxy's origin is none at all: a document in a sandbox has an opaque one, which no cookie, no storage and
no other document belongs to. Its policy is in the header, and what it writes into the frame below inherits it.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from portico.protocol.apps import ORIGIN
from portico.transports.http_server.messages import TEXT, Answer, Pairs, Request
from portico_console.session_auth import APART

FRAME = "/console/frame"
MOST_ORIGINS = 64
# Scripts, and forms that scripts see to: to send one is not allowed by the policy.
_SANDBOX = "allow-scripts allow-forms"
_NONE = "'none'"
_HEADERS: Pairs = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    *APART,
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-dns-prefetch-control", b"off"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_page: list[bytes] = []


class PagePolicy(Struct, rename="camel"):
    """What a page says in `_meta.ui.csp`: the origins that it wants."""

    connect_domains: list[str] = []
    resource_domains: list[str] = []
    frame_domains: list[str] = []
    base_uri_domains: list[str] = []

    def header(self) -> str:
        """The policy. It begins where the specification does when nothing is said, without the 'self' that would be
        our own files; what is no origin is left out, and so is closed."""
        resources = _origins(self.resource_domains)
        allowed = {
            "default-src": _NONE,
            "script-src": f"'unsafe-inline' {resources}",
            "style-src": f"'unsafe-inline' {resources}",
            "img-src": f"data: {resources}",
            "media-src": f"data: {resources}",
            "font-src": resources,
            "connect-src": _origins(self.connect_domains),
            "frame-src": _origins(self.frame_domains),
            "base-uri": _origins(self.base_uri_domains),
            "object-src": _NONE,
            "form-action": _NONE,
            "frame-ancestors": "'self'",
            "sandbox": _SANDBOX,
        }
        return "; ".join(f"{name} {value.strip() or _NONE}" for name, value in allowed.items())

    def connections(self) -> str:
        """Return the `Connection-Allowlist` header (WICG draft): a list of URL patterns, and nothing beyond them.

        The Content Security Policy has no directive for WebRTC, and it judges a navigation only after a connection
        was opened for it. This header covers both, and the documents below inherit it. Redirects are allowed where
        there are hosts at all: those may redirect to themselves, and the policy above still judges where they lead.
        """
        hosts = dict.fromkeys(
            f'"{origin}"'
            for domains in (self.connect_domains, self.resource_domains, self.frame_domains)
            for origin in _origins(domains).split()
        )
        return f"({' '.join(hosts)})" + ("; redirects=allow" if hosts else "")


def _origins(named: list[str]) -> str:
    return " ".join(one for one in named[:MOST_ORIGINS] if re.fullmatch(ORIGIN, one))


async def frame(request: Request) -> Answer:
    """The proxy, with the policy that the console asks for in `csp`. To any other visitor it is an empty page."""
    said = parse_qs(request.query, max_num_fields=4).get("csp", ["{}"])[0]
    try:
        policy = msgspec.json.decode(said, type=PagePolicy)
    except msgspec.DecodeError:
        return Answer(400, TEXT, b"csp is what a page says in _meta.ui.csp\n")
    if not _page:
        _page.append(Path(__file__).with_name("frame.html").read_bytes())
    policies = (
        (b"content-security-policy", policy.header().encode()),
        (b"connection-allowlist", policy.connections().encode()),
    )
    return Answer(200, (*_HEADERS, *policies), _page[0])
