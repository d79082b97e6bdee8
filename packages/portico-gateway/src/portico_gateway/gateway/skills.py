"""Skills of upstreams: listed together, and read from the upstream that has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidParams, PorticoError, ResourceNotFound, ToolError
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.methods import METHODS
from portico.protocol.pagination import Paginator
from portico.protocol.skills import SKILLS_EXTENSION, GetSkillParams, ListSkillsResult, ReadDirectoryParams
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.call import Call
from portico.server.registry.service import MethodHandler, Service
from portico_gateway.gateway.catalog_entries import translate_result
from portico_gateway.gateway.upstream import UpstreamProvider

SCHEME = "skill://"
_DIRECTORY = "resources/directory/read"
# Maximum skills of one upstream.
MAX_SKILLS = 10_000


class UpstreamSkillHost(Protocol):
    """Upstreams of a gateway, with the access checks for their resources."""

    @property
    def upstreams(self) -> dict[str, UpstreamProvider]: ...
    def may_see(self, call: Call, upstream: UpstreamProvider, uri: str) -> bool: ...
    async def may_read(self, call: Call, upstream: UpstreamProvider, uri: str) -> bool: ...


class _SkillPage(Struct, rename="camel"):
    skills: list[Raw] = []
    next_cursor: str | None = None


class _SkillAddress(Struct):
    uri: str


class GatewaySkills(Service):
    """Service that serves the skills of the upstreams.

    Local skills come first; if two skills have the same URI, the later one is hidden.
    """

    name = "portico/gateway-skills"
    internal = True

    def __init__(self, host: Callable[[], UpstreamSkillHost]) -> None:
        super().__init__()
        self._host = host

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {SKILLS_EXTENSION: {"directoryRead": True}} if any(self._upstreams()) else {}

    def methods(self) -> dict[str, MethodHandler]:
        return {"skills/list": _empty_result, "skills/get": _raise_unknown_skill, _DIRECTORY: _not_found}

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        if method == "skills/list":
            return partial(self._list, handler)
        if method in ("skills/get", _DIRECTORY):
            return partial(self._find, handler)
        return partial(self._read, handler) if method == "resources/read" else handler

    def _upstreams(self) -> Iterator[UpstreamProvider]:
        return (upstream for upstream in self._host().upstreams.values() if upstream.features.skills)

    async def _list(self, own: MethodHandler, call: Call) -> Any:
        """List all skills on one page: there are few, and each entry names all of its files."""
        result: dict[str, Raw] = {}
        async for entry in self._local_skills(own, call):
            result.setdefault(msgspec.json.decode(entry, type=_SkillAddress).uri, entry)
        for upstream in self._upstreams():
            try:
                for uri, entry in await self._upstream_skills(upstream, call):
                    if self._host().may_see(call, upstream, uri):
                        result.setdefault(uri, entry)
            except (PorticoError, ToolError):
                # An unavailable upstream does not hide the skills of others.
                continue
        body = {"resultType": "complete", "skills": list(result.values()), "ttlMs": 0, "cacheScope": "private"}
        return Raw(jsonrpc.encode(body))

    async def _local_skills(self, own: MethodHandler, call: Call) -> AsyncIterator[Raw]:
        paging, params = Paginator(), b"{}"
        while True:
            page: ListSkillsResult = await own(replace(call, params=Raw(params), read=None))
            for skill in page.skills:
                yield Raw(jsonrpc.encode(skill))
            cursor = paging.next_cursor(page.next_cursor, len(page.skills))
            if cursor is None:
                return
            params = jsonrpc.encode({"cursor": cursor})

    async def _upstream_skills(self, upstream: UpstreamProvider, call: Call) -> list[tuple[str, Raw]]:
        results: list[tuple[str, Raw]] = []
        paging, params = Paginator(), b"{}"
        while len(results) < MAX_SKILLS:
            response = await upstream.call(call, Raw(params), bytes)
            try:
                page = msgspec.json.decode(response.result, type=_SkillPage)
                results += [(msgspec.json.decode(skill, type=_SkillAddress).uri, skill) for skill in page.skills]
            except (msgspec.DecodeError, RecursionError):
                break
            cursor = paging.next_cursor(page.next_cursor, len(page.skills))
            if cursor is None:
                break
            params = jsonrpc.encode({"cursor": cursor})
        return results[:MAX_SKILLS]

    async def _find(self, own: MethodHandler, call: Call) -> Any:
        """Handle skills/get and directory reads: return the result of the first server that has the skill."""
        uri: str = METHODS[call.method].decode(call.params).uri
        try:
            return await own(call)
        except InvalidParams as unknown:
            first = await self._read_first(call, uri)
            if first is None:
                raise unknown from None
            return first

    async def _read(self, own: MethodHandler, call: Call) -> Any:
        """Read a file of a skill. Such files are not listed, and several upstreams may have the same template for
        theirs.
        """
        uri: str = call.decode_params().uri
        try:
            return await own(call)
        except ResourceNotFound as unknown:
            first = await self._read_first(call, uri) if uri.startswith(SCHEME) else None
            if first is None:
                raise unknown from None
            return first

    async def _read_first(self, call: Call, uri: str) -> Raw | None:
        params = Raw(jsonrpc.encode({**object_decoder.decode(call.params), "uri": uri}))
        for upstream in self._upstreams():
            if not await self._host().may_read(call, upstream, uri):
                continue
            try:
                answered = await upstream.call(call, params, bytes)
            except InvalidParams:
                continue
            # The result keeps the URI that the client requested.
            result = translate_result(
                call.method, answered.result, answered.revision, call.protocol_version or FIRST_MODERN_VERSION
            )
            return self._filter_directory(call, upstream, result) if call.method == _DIRECTORY else result
        return None

    def _filter_directory(self, call: Call, upstream: UpstreamProvider, result: Raw) -> Raw:
        """Return a directory with the entries that the caller may see."""
        try:
            inside = object_decoder.decode(result)
            entries = msgspec.json.decode(inside.get("resources", b"[]"), type=list[Raw])
            uris = [msgspec.json.decode(entry, type=_SkillAddress).uri for entry in entries]
        except (msgspec.DecodeError, RecursionError):
            raise ToolError(f"{upstream.alias} returned an invalid result.") from None
        seen = [entry for entry, uri in zip(entries, uris, strict=True) if self._host().may_see(call, upstream, uri)]
        return Raw(jsonrpc.encode({**inside, "resources": seen})) if len(seen) < len(entries) else result


async def _empty_result(call: Call) -> ListSkillsResult:
    return ListSkillsResult(skills=[])


async def _raise_unknown_skill(call: Call) -> Any:
    params: GetSkillParams = METHODS[call.method].decode(call.params)
    raise InvalidParams(f"Unknown skill: {params.uri}", {"uri": params.uri})


async def _not_found(call: Call) -> Any:
    params: ReadDirectoryParams = METHODS[call.method].decode(call.params)
    raise ResourceNotFound(params.uri)
