"""MCP Apps (SEP-1865, 2026-01-26): the words of the extension."""

from __future__ import annotations

from typing import Any

EXTENSION = "io.modelcontextprotocol/ui"
SCHEME = "ui://"
PAGE_TYPE = "text/html;profile=mcp-app"
# What a client that shows pages declares of itself.
SHOWN: dict[str, Any] = {EXTENSION: {"mimeTypes": [PAGE_TYPE]}}
# An origin, with a wildcard for its subdomains if that is meant; nothing that would end a directive of a policy.
ORIGIN = r"(https?|wss?)://(\*\.)?[A-Za-z0-9.-]+(:\d{1,5})?|http://\[::1\](:\d{1,5})?"


def shows_pages(capabilities: Any) -> bool:
    """Whether a client has declared that it shows pages of ours: it names their type, as it is required to."""
    said = (getattr(capabilities, "extensions", None) or {}).get(EXTENSION)
    types = said.get("mimeTypes") if isinstance(said, dict) else None
    return isinstance(types, list) and PAGE_TYPE in types
