"""Who is speaking and how: `_meta`, capabilities, implementations, icons."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.errors import InvalidParams
from portico.protocol.jsonrpc import NOTHING

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"

# What a request is about: a name, a URI, a task. Each is looked up, matched and repeated in errors.
LONGEST_NAME = 8 * 1024
Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]

ProgressToken = int | str
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: dict[str, int] = {
    level: rank
    for rank, level in enumerate(("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"))
}


class Icon(Struct, omit_defaults=True, rename="camel", frozen=True):
    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(Struct, omit_defaults=True, rename="camel", frozen=True):
    """A program's name and version, for people to read; nothing is decided by it."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None


class ClientCapabilities(Struct, omit_defaults=True, rename="camel", frozen=True):
    """What a client can be asked for. An empty object means yes, absence means no."""

    roots: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    elicitation: dict[str, Any] | None = None
    experimental: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    tasks: dict[str, Any] | None = None

    def can_elicit(self, mode: str) -> bool:
        """`elicitation: {}` means form alone (2025-11-25, client/elicitation, Capabilities)."""
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


class Params(Struct, omit_defaults=True, kw_only=True, gc=False):
    """What every request's params may have: `_meta`, undecoded."""

    meta: Raw = field(default=NOTHING, name="_meta")


# A member that was not sent. Defaults are not validated, so a null that was sent is refused all the same.
_ABSENT: Any = None


class Meta(Struct, frozen=True, gc=False):
    """The members of a request's `_meta` that mean something to us. Others are left where they are."""

    protocol_version: str | UnsetType = field(default=UNSET, name=PROTOCOL_VERSION)
    capabilities: ClientCapabilities | UnsetType = field(default=UNSET, name=CLIENT_CAPABILITIES)
    client: Implementation = field(default=_ABSENT, name=CLIENT_INFO)
    log_level: LogLevel = field(default=_ABSENT, name=LOG_LEVEL)
    progress_token: int | str = field(default=_ABSENT, name="progressToken")


class _Open(Struct, gc=False):
    meta: dict[str, Any] | UnsetType = field(default=UNSET, name="_meta")


NO_META = Meta()


# A client says the same of itself in each request, so what was read once is known. Bounded, and never with a token.
known: dict[bytes, Meta] = {}


@cache
def _decoder() -> msgspec.json.Decoder[Meta]:
    return msgspec.json.Decoder(Meta)


def read(said: Raw) -> Meta:
    """What a request's `_meta` says. A malformed one is the sender's mistake."""
    if said is NOTHING:
        return NO_META
    raw = bytes(said)
    try:
        return known.get(raw) or _read(raw)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise InvalidParams(f"Invalid _meta: {failure}".replace("`$.", "`").replace("`", "'")) from None


def _read(raw: bytes) -> Meta:
    if not raw:
        return NO_META
    meta = _decoder().decode(raw)
    if meta.progress_token is _ABSENT and len(raw) <= 1024:
        if len(known) >= 256:
            known.clear()
        known[raw] = meta
    return meta


def members(params: Raw) -> dict[str, Any]:
    """All of `_meta`, also what is not ours."""
    if params is NOTHING:
        return {}
    meta = msgspec.json.decode(params, type=_Open).meta
    return {} if meta is UNSET else meta
