"""Constants of the MCP Apps extension (SEP-1865, 2026-01-26)."""

from __future__ import annotations

from typing import Any

APPS_EXTENSION = "io.modelcontextprotocol/ui"
UI_SCHEME = "ui://"
APP_MIME_TYPE = "text/html;profile=mcp-app"
# Capability declared by a client that renders apps.
APPS_CLIENT_CAPABILITY: dict[str, Any] = {APPS_EXTENSION: {"mimeTypes": [APP_MIME_TYPE]}}
# An origin, optionally with a wildcard for subdomains; characters that would end a CSP directive are excluded.
CSP_ORIGIN_PATTERN = r"(https?|wss?)://(\*\.)?[A-Za-z0-9.-]+(:\d{1,5})?|http://\[::1\](:\d{1,5})?"


def supports_apps(capabilities: Any) -> bool:
    """Return whether a client declared support for our apps, including their required MIME type."""
    extension = (getattr(capabilities, "extensions", None) or {}).get(APPS_EXTENSION)
    types = extension.get("mimeTypes") if isinstance(extension, dict) else None
    return isinstance(types, list) and APP_MIME_TYPE in types
