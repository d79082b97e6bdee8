"""What the author of a server may say about what it offers. Whatever a client would have to refuse is refused here,
while the server is built, with a UsageError."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from portico.protocol.content import Annotations
from portico.protocol.errors import UsageError
from portico.protocol.jsonrpc import encode
from portico.protocol.meta import Icon, ServerCapabilities

# basic, `_meta`: labels with dots between them and a slash, then a name that may be empty.
_PREFIX = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*/"
_NAME = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_META_KEY = f"(?:{_PREFIX})?{_NAME}"
_EXTENSION_ID = f"{_PREFIX}[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
# The same: a prefix whose second label is one of these belongs to the protocol; until 2025-06-18 also one that has
# them before its last label.
_RESERVED = frozenset({"modelcontextprotocol", "mcp"})

# RFC 3986: a scheme and a colon, then nothing that would have to be escaped.
_URI = r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
_EXPRESSION = r"\{[^{}]*\}"

_ICON_SCHEMES = ("https:", "http:", "data:")
_AUDIENCE = frozenset({"user", "assistant"})
_HEADER = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "dpop", "cookie"})
_CACHE_SCOPES = ("public", "private")


def given_name(name: str | None, fn: Any, what: str) -> str:
    """The name that was given, or else the function's."""
    name = str(getattr(fn, "__name__", "")) if name is None else name
    if not name:
        raise UsageError(f"{what} needs a name: it cannot be empty")
    return name


def checked_uri(uri: str) -> str:
    """A URI, or a template of one: absolute, and written as RFC 3986 has it."""
    if not re.fullmatch(_URI, re.sub(_EXPRESSION, "x", uri)):
        raise UsageError(
            f"{uri!r} is not a URI: it begins with a scheme, such as notes://, and blanks and other special characters "
            "in it are percent-encoded"
        )
    return uri


def checked_capabilities(given: Mapping[str, Any]) -> ServerCapabilities:
    """What a server says that it can do: a table for each feature."""
    capabilities = ServerCapabilities(**given)
    try:
        return msgspec.convert(msgspec.to_builtins(capabilities), ServerCapabilities)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"these capabilities cannot be declared: {mistake}") from None


def checked_icons(icons: Sequence[Any] | None) -> list[Icon] | None:
    """Icons that a client may fetch: it has to refuse other schemes than these. Also as tables, or of another
    library."""
    found = [_icon(one) for one in icons or ()]
    for icon in found:
        if not icon.src.lower().startswith(_ICON_SCHEMES):
            raise UsageError(f"an icon cannot be at {icon.src[:100]!r}: use https:, http: or data:")
    return found or None


def _icon(given: Any) -> Icon:
    if isinstance(given, Icon):
        return given
    try:
        return msgspec.convert(as_table(given), Icon)
    except msgspec.ValidationError as mistake:
        raise UsageError(f"{given!r} is no icon: {mistake}") from None


def as_table(given: Any) -> Any:
    """What another library has a class for, as a table; anything else as it is."""
    dump = getattr(given, "model_dump", None)
    return given if dump is None else dump(mode="json", by_alias=True, exclude_none=True)


def checked_annotations(annotations: Annotations | Mapping[str, Any] | None) -> Annotations | None:
    if isinstance(annotations, Mapping):
        known = {name: annotations[name] for name in ("audience", "priority", "lastModified") if name in annotations}
        # Hints of tools, which FastMCP takes for resources too, say nothing that every resource does not say.
        annotations = msgspec.convert(known, Annotations)
    if annotations is not None:
        priority = annotations.priority
        if priority is not None and not (type(priority) in (int, float) and 0 <= priority <= 1):
            raise UsageError(f"the priority {priority!r} is not between 0 and 1")
        strangers = set(annotations.audience or ()) - _AUDIENCE
        if strangers:
            raise UsageError(f"unknown audience {sorted(strangers)[0]!r}; there are 'assistant' and 'user'")
    return annotations


def checked_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """Members of a `_meta`: keys as the protocol has them, and none that it keeps for itself."""
    for key in meta or ():
        if not re.fullmatch(_META_KEY, key):
            raise UsageError(
                f"{key!r} cannot be a key of _meta: use a name, or a domain of yours and a name: com.you/name"
            )
        labels = key.partition("/")[0].split(".") if "/" in key else []
        if not _RESERVED.isdisjoint((*labels[:-1], *labels[1:2])):
            raise UsageError(f"{key!r} cannot be a key of _meta: the prefix belongs to the protocol")
    try:
        encode(meta)
    except (TypeError, ValueError) as mistake:
        raise UsageError(f"_meta has something that JSON has not: {mistake}") from None
    return dict(meta or {})


VERSION = "portico/version"
TAGS = "portico/tags"


def described_meta(options: Mapping[str, Any]) -> dict[str, Any]:
    """The `_meta` that `meta`, `tags` and `version` of something come to."""
    members = checked_meta(options.get("meta"))
    tags = sorted(set(options.get("tags") or ()))
    if tags:
        members |= {TAGS: tags}
    return members if options.get("version") is None else members | {VERSION: options["version"]}


def checked_timeout(seconds: float | None, what: str) -> float | None:
    if seconds is not None and not seconds > 0:
        raise UsageError(f"{what}: the timeout is {seconds!r}, and must be a number of seconds above 0")
    return seconds


def checked_page_size(entries: int) -> int:
    if entries < 1:
        raise UsageError(f"page_size is {entries!r}: a page has to have 1 entry or more")
    return entries


def checked_headers(names: Iterable[str]) -> tuple[str, ...]:
    """Names of headers, in lower case. What proves who a client is stays with the transport."""
    for name in names:
        if not re.fullmatch(_HEADER, name):
            raise UsageError(f"{name!r} is no name of a header")
        if name.lower() in _SECRET_HEADERS:
            raise UsageError(f"bodies do not see the header {name}: it is a secret of the client's; see ctx.principal")
    return tuple(name.lower() for name in names)


def checked_extensions(ids: Iterable[str]) -> None:
    for id in ids:
        if not re.fullmatch(_EXTENSION_ID, id):
            raise UsageError(f"{id!r} cannot be the id of an extension: it has a prefix, as in com.you/name")


def checked_hints(ttl_ms: int, cache_scope: str) -> dict[str, Any]:
    """For how long a result may be kept, and by whom, as its members have it."""
    if type(ttl_ms) is not int or ttl_ms < 0:
        raise UsageError(f"ttl_ms is {ttl_ms!r}: it has to be a number of milliseconds, 0 or more")
    if cache_scope not in _CACHE_SCOPES:
        raise UsageError(f"cache_scope is {cache_scope!r}: it has to be 'public' or 'private'")
    return {"ttl_ms": ttl_ms, "cache_scope": cache_scope}
