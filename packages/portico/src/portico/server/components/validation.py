"""Validation of server options.

Everything that a client would have to reject raises UsageError here, while the server is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.protocol.content import Annotations
from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import Icon, ServerCapabilities

# Keys of `_meta` (Basic, `_meta`): labels separated by dots and a slash, then a name that may be empty.
_PREFIX = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*/"
_NAME = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_META_KEY = f"(?:{_PREFIX})?{_NAME}"
_EXTENSION_ID = f"{_PREFIX}[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
# A prefix whose second label is one of these is reserved for the protocol; until 2025-06-18 also one that has
# them before its last label.
_RESERVED = frozenset({"modelcontextprotocol", "mcp"})

# RFC 3986: a scheme and a colon, then only characters that need no escaping.
_URI = r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
_EXPRESSION = r"\{[^{}]*\}"

_ICON_SCHEMES = ("https:", "http:", "data:")
_AUDIENCE = frozenset({"user", "assistant"})
_HEADER = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "dpop", "cookie"})
_CACHE_SCOPES = ("public", "private")


def resolve_name(name: str | None, fn: Any, kind: str) -> str:
    """Return the explicit name, or the function's. Raises UsageError if both are empty."""
    name = str(getattr(fn, "__name__", "")) if name is None else name
    if not name:
        raise UsageError(f"{kind} must have a name, got an empty string")
    return name


def validate_uri(uri: str) -> str:
    """Return a URI or URI template. Raises UsageError unless it is absolute and valid by RFC 3986."""
    if not re.fullmatch(_URI, re.sub(_EXPRESSION, "x", uri)):
        raise UsageError(
            f"invalid URI {uri!r}: expected a scheme such as notes://, and percent-encoded spaces and special "
            "characters"
        )
    return uri


def parse_capabilities(value: Mapping[str, Any]) -> ServerCapabilities:
    """Return the capabilities from a table per feature. Raises UsageError."""
    capabilities = ServerCapabilities(**value)
    try:
        return msgspec.convert(msgspec.to_builtins(capabilities), ServerCapabilities)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"invalid capabilities: {mistake}") from None


def parse_icons(icons: Sequence[Any] | None) -> list[Icon] | None:
    """Return icons, also from tables or objects of other libraries. Raises UsageError for a URI scheme that clients
    reject.
    """
    result = [_icon(item) for item in icons or ()]
    for icon in result:
        if not icon.src.lower().startswith(_ICON_SCHEMES):
            raise UsageError(f"icon URI must start with https:, http: or data:, got {icon.src[:100]!r}")
    return result or None


def _icon(icon: Any) -> Icon:
    if isinstance(icon, Icon):
        return icon
    try:
        return msgspec.convert(to_mapping(icon), Icon)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"invalid icon {icon!r}: {mistake}") from None


def to_mapping(value: Any) -> Any:
    """Return a pydantic model of another library as a table, and any other value unchanged."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


def parse_annotations(annotations: Annotations | Mapping[str, Any] | None) -> Annotations | None:
    if isinstance(annotations, Mapping):
        members = {name: annotations[name] for name in ("audience", "priority", "lastModified") if name in annotations}
        # Ignore tool hints, which FastMCP accepts for resources too: they add nothing to a resource.
        annotations = msgspec.convert(members, Annotations)
    if annotations is not None:
        priority = annotations.priority
        if priority is not None and not (type(priority) in (int, float) and 0 <= priority <= 1):
            raise UsageError(f"priority must be between 0 and 1, got {priority!r}")
        strangers = set(annotations.audience or ()) - _AUDIENCE
        if strangers:
            raise UsageError(f"unknown audience {sorted(strangers)[0]!r} (expected 'assistant' or 'user')")
    return annotations


def validate_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the members of a `_meta`. Raises UsageError for keys that are invalid or reserved for the protocol."""
    for key in meta or ():
        if not re.fullmatch(_META_KEY, key):
            raise UsageError(f"invalid _meta key {key!r}: use a name, or your domain and a name such as com.you/name")
        labels = key.partition("/")[0].split(".") if "/" in key else []
        if not _RESERVED.isdisjoint((*labels[:-1], *labels[1:2])):
            raise UsageError(f"invalid _meta key {key!r}: the prefix is reserved for the protocol")
    try:
        encode(meta)
    except (TypeError, ValueError) as mistake:
        raise UsageError(f"_meta must be JSON-serializable: {mistake}") from None
    return dict(meta or {})


META_VERSION = "portico/version"
META_TAGS = "portico/tags"


def build_meta(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` for the options `meta`, `tags` and `version`."""
    members = validate_meta(options.get("meta"))
    tags = sorted(set(options.get("tags") or ()))
    if tags:
        members |= {META_TAGS: tags}
    return members if options.get("version") is None else members | {META_VERSION: options["version"]}


def validate_timeout(seconds: float | None, kind: str) -> float | None:
    if seconds is not None and not seconds > 0:
        raise UsageError(f"{kind}: timeout must be more than 0 seconds, got {seconds!r}")
    return seconds


def validate_page_size(entries: int) -> int:
    if entries < 1:
        raise UsageError(f"list_page_size must be at least 1, got {entries!r}")
    return entries


def normalize_header_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return header names in lower case.

    Raises UsageError for headers with credentials, which functions must not see.
    """
    for name in names:
        if not re.fullmatch(_HEADER, name):
            raise UsageError(f"invalid header name {name!r}")
        if name.lower() in _SECRET_HEADERS:
            raise UsageError(
                f"request_headers must not contain {name}: it holds the client's credentials; use ctx.principal instead"
            )
    return tuple(name.lower() for name in names)


def validate_extension_ids(ids: Iterable[str]) -> None:
    for id in ids:
        if not re.fullmatch(_EXTENSION_ID, id):
            raise UsageError(f"extension id must have a prefix, such as com.you/name; got {id!r}")


def build_cache_hints(ttl_ms: int, cache_scope: str) -> dict[str, Any]:
    """Return the result members for a TTL and a scope. Raises UsageError."""
    if type(ttl_ms) is not int or ttl_ms < 0:
        raise UsageError(f"ttl_ms must be a number of milliseconds, 0 or more, got {ttl_ms!r}")
    if cache_scope not in _CACHE_SCOPES:
        raise UsageError(f"cache_scope must be 'public' or 'private', got {cache_scope!r}")
    return {"ttl_ms": ttl_ms, "cache_scope": cache_scope}


class CacheHint(Struct, frozen=True):
    """How long clients may cache results, and whether several users may share them."""

    ttl_ms: int = 0
    scope: Literal["public", "private"] = "private"

    def __post_init__(self) -> None:
        build_cache_hints(self.ttl_ms, self.scope)


# Key of the hint for all methods without their own.
ANY_METHOD = "*"


def resolve_cache_hints(
    cache: CacheHint | Mapping[str, CacheHint] | None,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the result members for the option `cache`: by default, and for single methods. Raises UsageError."""
    hints = dict(cache) if isinstance(cache, Mapping) else {} if cache is None else {ANY_METHOD: cache}
    # Not isinstance: the official SDK has a CacheHint with the same members.
    members = {method: build_cache_hints(hint.ttl_ms, hint.scope) for method, hint in hints.items()}
    return members.pop(ANY_METHOD, build_cache_hints(0, "private")), members
