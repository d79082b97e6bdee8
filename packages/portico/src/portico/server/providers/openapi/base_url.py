"""Where an API is, by what its document says of its servers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from portico.protocol.errors import UsageError
from portico.server.providers.openapi.document import ApiServer

_VARIABLE = re.compile(r"\{([^{}]+)\}")


def base_of(servers: Sequence[ApiServer], variables: Mapping[str, str]) -> str:
    """The URL of the first server with its variables filled in, without a slash at its end."""
    if not servers:
        return ""
    server = servers[0]

    def value(found: re.Match[str]) -> str:
        name = found[1]
        about = server.variables.get(name, {})
        said = variables.get(name, about.get("default"))
        if not isinstance(said, str):
            raise UsageError(f"the server's URL needs a value for {name!r}: give variables={{{name!r}: …}}")
        allowed = about.get("enum")
        if isinstance(allowed, list) and said not in allowed:
            raise UsageError(f"{name} is {said!r}, and has to be one of {', '.join(map(str, allowed))}")
        return said

    return _VARIABLE.sub(value, server.url).rstrip("/")


def is_absolute(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def origin_of(url: str) -> tuple[str, str]:
    """What stands before the path of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
