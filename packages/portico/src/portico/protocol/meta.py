"""`_meta`, capabilities, implementations and icons."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.caching import LruCache
from portico.protocol.errors import InvalidParams
from portico.protocol.jsonrpc import EMPTY_RAW

PROTOCOL_VERSION_META_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES_META_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_META_KEY = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_META_KEY = "io.modelcontextprotocol/logLevel"
SERVER_INFO_META_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_META_KEY = "io.modelcontextprotocol/subscriptionId"

# Names, URIs and task ids of requests. They are looked up, matched and repeated in errors.
MAX_NAME_CHARS = 8 * 1024
BoundedName = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]

ProgressToken = int | str
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVEL_RANKS: dict[str, int] = {
    level: rank
    for rank, level in enumerate(("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"))
}


class Icon(Struct, omit_defaults=True, rename="camel", frozen=True):
    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


# The version of a server that states none; the protocol requires one.
UNKNOWN_VERSION = "0.0.0"


class Implementation(Struct, omit_defaults=True, rename="camel", frozen=True):
    """Name and version of a program, for display only."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None

    @property
    def label(self) -> str:
        """Return the name, and the version if the program states one."""
        return self.name if self.version in ("", UNKNOWN_VERSION) else f"{self.name} {self.version}"


class ClientCapabilities(Struct, omit_defaults=True, rename="camel", frozen=True):
    """Client capabilities. An empty object means yes, absence means no."""

    roots: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    elicitation: dict[str, Any] | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    tasks: dict[str, Any] | None = None

    def supports_elicitation(self, mode: str) -> bool:
        """Return whether a mode is supported. `elicitation: {}` means forms only (2025-11-25, client/elicitation,
        Capabilities).
        """
        if self.elicitation is None:
            return False
        return mode in self.elicitation or (mode == "form" and "url" not in self.elicitation)


class ServerCapabilities(Struct, omit_defaults=True, rename="camel", frozen=True):
    tools: dict[str, Any] | None = None
    resources: dict[str, Any] | None = None
    prompts: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    tasks: dict[str, Any] | None = None


NO_CAPABILITIES = ClientCapabilities()


class RequestParams(Struct, omit_defaults=True, kw_only=True, gc=False):
    """Base class of request params: `_meta`, not decoded."""

    meta: Raw = field(default=EMPTY_RAW, name="_meta")


# Marks an absent member. Defaults are not validated, so an explicit null is still rejected.
_ABSENT: Any = None


class DecodedMeta(Struct, frozen=True, gc=False):
    """Decoded members of a request's `_meta` that Portico uses; the others are ignored."""

    protocol_version: str | UnsetType = field(default=UNSET, name=PROTOCOL_VERSION_META_KEY)
    capabilities: ClientCapabilities | UnsetType = field(default=UNSET, name=CLIENT_CAPABILITIES_META_KEY)
    client: Implementation = field(default=_ABSENT, name=CLIENT_INFO_META_KEY)
    log_level: LogLevel = field(default=_ABSENT, name=LOG_LEVEL_META_KEY)
    progress_token: int | str = field(default=_ABSENT, name="progressToken")


class _RawMeta(Struct, gc=False):
    meta: dict[str, Any] | UnsetType = field(default=UNSET, name="_meta")


EMPTY_META = DecodedMeta()


# Clients repeat the same `_meta` in every request, so the decoded form is cached. The cache is bounded and excludes
# progress tokens.
META_CACHE: LruCache[bytes, DecodedMeta] = LruCache(256)
# Bound once, because every request uses it and the attribute lookup would double its cost.
find_known = META_CACHE.peek


@cache
def _decoder() -> msgspec.json.Decoder[DecodedMeta]:
    return msgspec.json.Decoder(DecodedMeta)


def decode_meta(params_meta: Raw) -> DecodedMeta:
    """Decode a request's `_meta`. Raises InvalidParams if it is malformed."""
    if params_meta is EMPTY_RAW:
        return EMPTY_META
    raw = bytes(params_meta)
    try:
        return find_known(raw) or _decode_and_cache(raw)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise InvalidParams(f"Invalid _meta: {failure}".replace("`$.", "`").replace("`", "'")) from None


def _decode_and_cache(raw: bytes) -> DecodedMeta:
    if not raw:
        return EMPTY_META
    meta = _decoder().decode(raw)
    if meta.progress_token is _ABSENT and len(raw) <= 1024:
        META_CACHE[raw] = meta
    return meta


def decode_meta_members(params: Raw) -> dict[str, Any]:
    """Return all members of `_meta`, including unknown ones."""
    if params is EMPTY_RAW:
        return {}
    meta = msgspec.json.decode(params, type=_RawMeta).meta
    return {} if meta is UNSET else meta
