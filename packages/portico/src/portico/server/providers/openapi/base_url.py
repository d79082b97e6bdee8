"""Base URL of an API, from the servers in its document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from portico.protocol.errors import UsageError
from portico.server.providers.openapi.document import OpenApiServer

_VARIABLE = re.compile(r"\{([^{}]+)\}")


def resolve_base_url(servers: Sequence[OpenApiServer], variables: Mapping[str, str]) -> str:
    """Return the URL of the first server with its variables substituted, without a trailing slash.

    Raises UsageError.
    """
    if not servers:
        return ""
    server = servers[0]

    def value(match: re.Match[str]) -> str:
        name = match[1]
        about = server.variables.get(name, {})
        text = variables.get(name, about.get("default"))
        if not isinstance(text, str):
            raise UsageError(f"the server URL requires a value for {name!r}: pass variables={{{name!r}: …}}")
        allowed = about.get("enum")
        if isinstance(allowed, list) and text not in allowed:
            raise UsageError(f"{name} must be one of {', '.join(map(str, allowed))}, got {text!r}")
        return text

    return _VARIABLE.sub(value, server.url).rstrip("/")


def is_absolute_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def parse_origin(url: str) -> tuple[str, str]:
    """Return scheme and authority of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
