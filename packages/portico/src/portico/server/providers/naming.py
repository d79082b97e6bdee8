"""Names on the outside and on the inside. Pure: a name depends on the settings of its own upstream alone."""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import sha256

LONGEST_NAME = 64
PREFIX = "{alias}_"
_DIGEST = 8
# What every model's API takes in the name of a tool.
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")
_OPAQUE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!//)(.*)", re.DOTALL)


def folded_alias(alias: str) -> str:
    """An alias as it stands before names. Without `_`, so that no two pairs of alias and name look the same."""
    return _STRANGE.sub("-", alias).replace("_", "-")


def outward(alias: str, name: str, prefix: str = PREFIX, longest: int = LONGEST_NAME) -> str:
    """The name that clients see. What is folded or cut off is made up for by a digest of alias and name."""
    whole = prefix.replace("{alias}", folded_alias(alias)) + name
    plain = _STRANGE.sub("_", whole)
    if plain == whole and len(plain) <= longest:
        return plain
    digest = b32encode(sha256(f"{alias}\0{name}".encode(errors="surrogatepass")).digest()).decode().lower()[:_DIGEST]
    return f"{plain[: longest - _DIGEST - 1]}_{digest}"


def outward_uri(alias: str, uri: str) -> str:
    """The address of a resource whose own address belongs to another upstream. Its scheme stays."""
    scheme, mark, rest = uri.partition("://")
    if mark:
        return f"{scheme}://{folded_alias(alias)}/{rest}"
    opaque = _OPAQUE.fullmatch(uri)
    return f"{opaque[1]}:{folded_alias(alias)}/{opaque[2]}" if opaque else f"{folded_alias(alias)}/{uri}"


def inward_uri(alias: str, uri: str) -> str | None:
    """Return the URI that `outward_uri` was given to give this one; None if there is none. What stands behind
    `ALIAS/` may be any URI: an upstream's template that begins with a variable is known as `ALIAS/{+uri}`."""
    own = folded_alias(alias)
    if uri.startswith(f"{own}/"):
        return uri[len(own) + 1 :]
    scheme, mark, rest = uri.partition("://")
    if mark:
        found = f"{scheme}://{rest[len(own) + 1 :]}"
    elif opaque := _OPAQUE.fullmatch(uri):
        found = f"{opaque[1]}:{opaque[2][len(own) + 1 :]}"
    else:
        found = uri[len(own) + 1 :]
    return found if outward_uri(alias, found) == uri else None


def addressed_alias(uri: str) -> str:
    """Return the text that is the folded alias of an upstream if a URI has one in front; empty if it cannot have."""
    before, mark, rest = uri.partition("/")
    if not mark or not before.endswith(":"):
        # `alias/uri`, or `scheme:alias/rest`.
        return before.rpartition(":")[2] if mark else ""
    return rest.removeprefix("/").partition("/")[0] if rest.startswith("/") else ""
