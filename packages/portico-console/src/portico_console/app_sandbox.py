"""Sandboxed frame for a server's apps (MCP Apps, 2026-01-26, "Sandbox proxy").

The specification requires two frames: a proxy with another origin than the host, and the app inside it. There is only
one listener here, so the proxy has an opaque origin: a sandboxed document shares no cookie, storage or origin with
other documents. Its policy is set by the header, and the frame that it writes inherits it.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from portico.protocol.apps import CSP_ORIGIN_PATTERN
from portico.transports.http_server.messages import TEXT_HEADERS, HeaderPairs, HttpRequest, HttpResponse
from portico_console.session_auth import BASE_SECURITY_HEADERS

SANDBOX_PATH = "/console/frame"
# Response headers have size limits in browsers and proxies; an app with more origins is blocked from the rest.
MAX_CSP_ORIGINS = 64
# Scripts, and forms that scripts handle; the policy forbids submitting them.
# Without allow-same-origin: the document has an opaque origin and cannot reach the console's cookies or storage.
# Without allow-top-navigation it cannot replace the page.
_SANDBOX = "allow-scripts allow-forms"
_CSP_NONE = "'none'"
_HEADERS: HeaderPairs = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    *BASE_SECURITY_HEADERS,
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-dns-prefetch-control", b"off"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_page: list[bytes] = []


class AppContentSecurityPolicy(Struct, rename="camel"):
    """The origins that a page requests in `_meta.ui.csp`."""

    connect_domains: list[str] = []
    resource_domains: list[str] = []
    frame_domains: list[str] = []
    base_uri_domains: list[str] = []

    def to_header(self) -> str:
        """Return the Content-Security-Policy header.

        It starts from the specification's default, without 'self', which would allow our own files. Invalid origins are
        omitted and therefore blocked.
        """
        # Every origin is validated before it becomes part of a header; a quote or semicolon would add directives.
        resources = _origins(self.resource_domains)
        allowed = {
            "default-src": _CSP_NONE,
            "script-src": f"'unsafe-inline' {resources}",
            "style-src": f"'unsafe-inline' {resources}",
            "img-src": f"data: {resources}",
            "media-src": f"data: {resources}",
            "font-src": resources,
            "connect-src": _origins(self.connect_domains),
            "frame-src": _origins(self.frame_domains),
            "base-uri": _origins(self.base_uri_domains),
            "object-src": _CSP_NONE,
            "form-action": _CSP_NONE,
            "frame-ancestors": "'self'",
            "sandbox": _SANDBOX,
        }
        return "; ".join(f"{name} {value.strip() or _CSP_NONE}" for name, value in allowed.items())

    def connections(self) -> str:
        """Return the `Connection-Allowlist` header (WICG draft), a list of the only allowed URL patterns.

        The Content Security Policy has no directive for WebRTC, and it applies to a navigation only after a connection
        was opened for it. This header covers both, and nested documents inherit it. Redirects are allowed if there are
        hosts at all: a host may redirect to itself, and the policy above still applies to the destination.
        """
        hosts = dict.fromkeys(
            f'"{origin}"'
            for domains in (self.connect_domains, self.resource_domains, self.frame_domains)
            for origin in _origins(domains).split()
        )
        return f"({' '.join(hosts)})" + ("; redirects=allow" if hosts else "")


def _origins(named: list[str]) -> str:
    return " ".join(item for item in named[:MAX_CSP_ORIGINS] if re.fullmatch(CSP_ORIGIN_PATTERN, item))


async def serve_sandbox(request: HttpRequest) -> HttpResponse:
    """Serve the proxy page with the policy in the `csp` parameter. Without a console it is an empty page."""
    # Limited fields: parsing a long query of thousands of parameters takes time that anyone could spend.
    csp_text = parse_qs(request.query, max_num_fields=4).get("csp", ["{}"])[0]
    try:
        policy = msgspec.json.decode(csp_text, type=AppContentSecurityPolicy)
    except msgspec.DecodeError:
        return HttpResponse(400, TEXT_HEADERS, b"csp is what a page says in _meta.ui.csp\n")
    if not _page:
        _page.append(Path(__file__).with_name("frame.html").read_bytes())
    policies = (
        (b"content-security-policy", policy.to_header().encode()),
        (b"connection-allowlist", policy.connections().encode()),
    )
    return HttpResponse(200, (*_HEADERS, *policies), _page[0])
