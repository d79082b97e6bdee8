"""MCP Apps, SEP-1865: the words of the extension."""

from __future__ import annotations

from typing import Any

EXTENSION = "io.modelcontextprotocol/ui"
SCHEME = "ui://"
PAGE_TYPE = "text/html;profile=mcp-app"


def shows_pages(capabilities: Any) -> bool:
    """Whether a client has declared that it shows pages of ours: by their type, where it names types."""
    said = (getattr(capabilities, "extensions", None) or {}).get(EXTENSION)
    if not isinstance(said, dict):
        return False
    types = said.get("mimeTypes")
    return not isinstance(types, list) or PAGE_TYPE in types
