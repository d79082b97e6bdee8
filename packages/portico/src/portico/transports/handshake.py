"""Which revision a server speaks, and who it is: 2026-07-28 is asked for first, and the handshake is the way back.

protocol pages: basic/lifecycle (2026-07-28), "Backward compatibility". No single error code says that a server is an
older one: they answer a question from the future with all kinds of errors, with silence, or by ending.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import jsonrpc, notifications
from portico.protocol import meta as metas
from portico.protocol.errors import (
    BadStatus,
    HeaderMismatch,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    TimedOut,
    TransportError,
    UnsupportedVersion,
    from_wire,
)
from portico.protocol.lifecycle import DiscoverResult, InitializeResult
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation, LogLevel, ServerCapabilities
from portico.protocol.methods import plainly
from portico.protocol.versions import (
    HANDSHAKE,
    MODERN,
    MODERN_REVISIONS,
    NEWEST_HANDSHAKE,
    V2025_06_18,
    V2025_11_25,
    Revision,
)
from portico.rpc.call import Call
from portico.transports.base import Link
from portico.transports.http_client.timeouts import limited

# -32020 to -32022 are only said by servers that know 2026-07-28.
_MODERN_ERRORS = (HeaderMismatch, MissingCapability, UnsupportedVersion)
# These say nothing about the revision, only about credentials, rate and load.
_NO_EVIDENCE = frozenset({401, 403, 407, 408, 429})


class Greeting(Struct, frozen=True):
    """What the two sides know of each other."""

    revision: Revision
    server: Implementation | None = None
    capabilities: ServerCapabilities = ServerCapabilities()
    instructions: str | None = None


class ClientIdentity(Struct):
    """What a client says of itself to every server."""

    info: Implementation
    capabilities: ClientCapabilities = NO_CAPABILITIES
    log_level: LogLevel | None = None

    def able_with(self, extension: str) -> ClientCapabilities:
        """The capabilities, and an extension besides."""
        extensions = {**(self.capabilities.extensions or {}), extension: {}}
        return msgspec.structs.replace(self.capabilities, extensions=extensions)

    def meta(self, revision: Revision) -> dict[str, Any]:
        """2026-07-28 wants to know everything each time; the others know it from the handshake."""
        meta: dict[str, Any] = {
            metas.PROTOCOL_VERSION: revision,
            metas.CLIENT_CAPABILITIES: self.capabilities,
            metas.CLIENT_INFO: self.info,
        }
        if self.log_level is not None:
            meta[metas.LOG_LEVEL] = self.log_level
        return meta


async def discover(link: Link, identity: ClientIdentity, timeout: float | None) -> Greeting | None:
    """Ask in the newest way. None: the server offers only revisions with a handshake."""
    revision: Revision = MODERN
    for again in (True, False):
        try:
            result = await ask(link, "server/discover", {"_meta": identity.meta(revision)}, timeout, revision)
            break
        except ProtocolError as refusal:
            offered = _offered(refusal)
            if not again or offered is None:
                raise
            common = [one for one in MODERN_REVISIONS if one in offered]
            if not common:
                return _check_old(offered, link.name)
            revision = common[-1]
    found = _decoded(result, DiscoverResult, "server/discover", link.name)
    if not set(found.supported_versions) & set(MODERN_REVISIONS):
        return _check_old(found.supported_versions, link.name)
    server = None
    if isinstance(found.meta, dict) and metas.SERVER_INFO in found.meta:
        try:
            server = msgspec.convert(found.meta[metas.SERVER_INFO], Implementation)
        except msgspec.ValidationError:
            server = None  # for people to read only; nothing depends on it
    return Greeting(revision, server, found.capabilities, found.instructions)


def _check_old(offered: list[str], name: str) -> Greeting | None:
    """Nothing newer is offered: then something older has to be."""
    if not set(offered) & set(HANDSHAKE):
        said = ", ".join(offered)[:200] or "nothing"
        raise from_wire(UnsupportedVersion.code, f"{name} speaks {said}; none of it is known here")
    return None


def _offered(refusal: ProtocolError) -> list[str] | None:
    data = refusal.data if isinstance(refusal, UnsupportedVersion) else None
    offered = data.get("supported") if isinstance(data, dict) else None
    return [str(one) for one in offered] if isinstance(offered, list) else None


def means_handshake_server(failure: Exception) -> bool:
    """Whether this failure of `server/discover` means that the server knows only handshake revisions."""
    if isinstance(failure, ProtocolError):
        return not isinstance(failure, _MODERN_ERRORS)
    if isinstance(failure, BadStatus):
        return 400 <= failure.status < 500 and failure.status not in _NO_EVIDENCE
    return False


def is_modern(failure: Exception) -> bool:
    """Whether a failed `initialize` says that the server is from after it, and so of no transport before."""
    if not isinstance(failure, ProtocolError):
        return False
    return isinstance(failure, _MODERN_ERRORS) or (failure.status == 404 and isinstance(failure, MethodNotFound))


async def initialize(
    link: Link, identity: ClientIdentity, revision: Revision | None, timeout: float | None
) -> Greeting:
    """The handshake. The server may settle on an older revision than we offer."""
    return await accept_handshake(link, await ask_for_handshake(link, identity, revision, timeout))


async def ask_for_handshake(
    link: Link, identity: ClientIdentity, revision: Revision | None, timeout: float | None
) -> Raw:
    """Send `initialize` and return its result."""
    offered = revision or NEWEST_HANDSHAKE
    params = {
        "protocolVersion": offered,
        "capabilities": _known_to(offered, identity.capabilities),
        "clientInfo": identity.info,
    }
    return await ask(link, "initialize", params, timeout)


async def accept_handshake(link: Link, result: Raw) -> Greeting:
    """Complete a handshake with the result of `initialize`."""
    found = _decoded(result, InitializeResult, "initialize", link.name)
    if found.protocol_version not in HANDSHAKE:
        raise ProtocolError(f"{link.name} wants to speak {found.protocol_version[:100]!r}, which is not known here")
    link.set_revision(found.protocol_version)
    await link(Call(method=notifications.INITIALIZED))
    return Greeting(found.protocol_version, found.server_info, found.capabilities, found.instructions)


async def ask(
    link: Link, method: str, params: dict[str, Any], timeout: float | None, revision: Revision | None = None
) -> Raw:
    """The result of one request that is made before the two sides know each other."""
    call = Call(method=method, params=Raw(jsonrpc.encode(params)), id=link.new_id(), revision=revision)
    try:
        async with limited(timeout):
            return await link(call)  # type: ignore[no-any-return]
    except TransportError:
        raise
    except TimeoutError:
        raise TimedOut(f"{link.name}: {method} was not answered within {timeout:g} s{link.hint}") from None


def _decoded(result: Raw, kind: type[Any], method: str, name: str) -> Any:
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise ProtocolError(f"{name} gave an invalid result of {method}: {plainly(failure)}") from None


def _known_to(revision: Revision, able: ClientCapabilities) -> ClientCapabilities:
    """What the revision has a word for: a server may ask for whatever is declared."""
    if revision >= V2025_11_25:
        return able
    forms = revision >= V2025_06_18 and able.can_elicit("form")
    sampling: dict[str, Any] | None = None if able.sampling is None else {}
    return msgspec.structs.replace(able, sampling=sampling, elicitation={} if forms else None)
