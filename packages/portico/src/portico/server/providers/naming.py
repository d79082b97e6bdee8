"""Exposed names and URIs of upstream components.

Pure functions: a name depends only on the settings of its own upstream.
"""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import sha256

# The limit of the tool names that OpenAI's and Anthropic's APIs accept.
MAX_NAME_CHARS = 64
PREFIX = "{alias}_"
# 40 bits: enough to tell apart the truncated names of one upstream.
_DIGEST = 8
# Characters outside the set that every model API accepts in tool names.
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")
_OPAQUE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!//)(.*)", re.DOTALL)


def normalize_alias(alias: str) -> str:
    """Return an alias as used in prefixes. `_` is replaced, so that no two pairs of alias and name collide."""
    return _STRANGE.sub("-", alias).replace("_", "-")


def exposed_name(alias: str, name: str, prefix: str = PREFIX, max_length: int = MAX_NAME_CHARS) -> str:
    """Return the name that clients see. A digest of alias and name replaces invalid or excess characters."""
    full_name = prefix.replace("{alias}", normalize_alias(alias)) + name
    plain = _STRANGE.sub("_", full_name)
    if plain == full_name and len(plain) <= max_length:
        return plain
    # Deterministic, so that rules and clients' allow-lists survive a restart. Base32 has no
    # characters that a tool name could not have.
    digest = b32encode(sha256(f"{alias}\0{name}".encode(errors="surrogatepass")).digest()).decode().lower()[:_DIGEST]
    return f"{plain[: max_length - _DIGEST - 1]}_{digest}"


def exposed_uri(alias: str, uri: str) -> str:
    """Return the exposed URI of a resource whose own URI belongs to another upstream. The scheme is preserved."""
    scheme, mark, rest = uri.partition("://")
    if mark:
        return f"{scheme}://{normalize_alias(alias)}/{rest}"
    opaque = _OPAQUE.fullmatch(uri)
    return f"{opaque[1]}:{normalize_alias(alias)}/{opaque[2]}" if opaque else f"{normalize_alias(alias)}/{uri}"


def upstream_uri(alias: str, uri: str) -> str | None:
    """Return the URI for which `exposed_uri` returned this one, or None.

    The text after `ALIAS/` may be any URI: an upstream's template that begins with a variable is listed as
    `ALIAS/{+uri}`.
    """
    own = normalize_alias(alias)
    if uri.startswith(f"{own}/"):
        return uri[len(own) + 1 :]
    scheme, mark, rest = uri.partition("://")
    if mark:
        result = f"{scheme}://{rest[len(own) + 1 :]}"
    elif opaque := _OPAQUE.fullmatch(uri):
        result = f"{opaque[1]}:{opaque[2][len(own) + 1 :]}"
    else:
        result = uri[len(own) + 1 :]
    # Verified by the inverse: a URI that only looks exposed must not be forwarded.
    return result if exposed_uri(alias, result) == uri else None


def addressed_alias(uri: str) -> str:
    """Return the part of a URI that would be a normalized alias, or an empty string if it cannot contain one."""
    before, mark, rest = uri.partition("/")
    if not mark or not before.endswith(":"):
        # The forms are `alias/uri` and `scheme:alias/rest`.
        return before.rpartition(":")[2] if mark else ""
    return rest.removeprefix("/").partition("/")[0] if rest.startswith("/") else ""
