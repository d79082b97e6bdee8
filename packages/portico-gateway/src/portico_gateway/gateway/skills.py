"""Skills of upstreams: listed together, and each asked of the upstream that has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import Error, InvalidParams, ResourceNotFound, ToolError
from portico.protocol.methods import METHODS
from portico.protocol.pagination import Paging
from portico.protocol.skills import EXTENSION, GetSkillParams, ListSkillsResult, ReadDirectoryParams
from portico.protocol.versions import MODERN
from portico.rpc.call import Call
from portico.server.registry.service import Answer, Service
from portico_gateway.gateway.catalog_entries import members, result_at
from portico_gateway.gateway.upstream import GatewayUpstream

SCHEME = "skill://"
_DIRECTORY = "resources/directory/read"
# Of one upstream.
MOST_SKILLS = 10_000


class UpstreamSkillHost(Protocol):
    """What the gateway knows: its upstreams, and who may see what of them."""

    @property
    def upstreams(self) -> dict[str, GatewayUpstream]: ...
    def may_see(self, call: Call, upstream: GatewayUpstream, uri: str) -> bool: ...
    async def may_read(self, call: Call, upstream: GatewayUpstream, uri: str) -> bool: ...


class _SkillPage(Struct, rename="camel"):
    skills: list[Raw] = []
    next_cursor: str | None = None


class _SkillAddress(Struct):
    uri: str


class GatewaySkills(Service):
    """The service by which a gateway answers for the skills of its upstreams. Those of the server itself come first; of
    two with the same address the later one is hidden."""

    name = "portico/gateway-skills"

    def __init__(self, host: Callable[[], UpstreamSkillHost]) -> None:
        super().__init__()
        self._host = host

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {EXTENSION: {"directoryRead": True}} if any(self._upstreams()) else {}

    def methods(self) -> dict[str, Answer]:
        return {"skills/list": _no_skills, "skills/get": _unknown, _DIRECTORY: _not_there}

    def around(self, method: str, answer: Answer) -> Answer:
        if method == "skills/list":
            return partial(self._list, answer)
        if method in ("skills/get", _DIRECTORY):
            return partial(self._find, answer)
        return partial(self._read, answer) if method == "resources/read" else answer

    def _upstreams(self) -> Iterator[GatewayUpstream]:
        return (one for one in self._host().upstreams.values() if one.traits.skills)

    async def _list(self, own: Answer, call: Call) -> Any:
        """All on one page: there are few, and each names every file that it has."""
        found: dict[str, Raw] = {}
        async for entry in self._own(own, call):
            found.setdefault(msgspec.json.decode(entry, type=_SkillAddress).uri, entry)
        for upstream in self._upstreams():
            try:
                for uri, entry in await self._of(upstream, call):
                    if self._host().may_see(call, upstream, uri):
                        found.setdefault(uri, entry)
            except (Error, ToolError):
                # One that is away hides no other.
                continue
        said = {"resultType": "complete", "skills": list(found.values()), "ttlMs": 0, "cacheScope": "private"}
        return Raw(jsonrpc.encode(said))

    async def _own(self, own: Answer, call: Call) -> AsyncIterator[Raw]:
        paging, params = Paging(), b"{}"
        while True:
            page: ListSkillsResult = await own(replace(call, params=Raw(params), read=None))
            for skill in page.skills:
                yield Raw(jsonrpc.encode(skill))
            cursor = paging.after(page.next_cursor, len(page.skills))
            if cursor is None:
                return
            params = jsonrpc.encode({"cursor": cursor})

    async def _of(self, upstream: GatewayUpstream, call: Call) -> list[tuple[str, Raw]]:
        found: list[tuple[str, Raw]] = []
        paging, params = Paging(), b"{}"
        while len(found) < MOST_SKILLS:
            said = await upstream.call(replace(call, params=Raw(params), read=None, facet=None), bytes)
            try:
                page = msgspec.json.decode(said.result, type=_SkillPage)
                found += [(msgspec.json.decode(one, type=_SkillAddress).uri, one) for one in page.skills]
            except (msgspec.DecodeError, RecursionError):
                break
            cursor = paging.after(page.next_cursor, len(page.skills))
            if cursor is None:
                break
            params = jsonrpc.encode({"cursor": cursor})
        return found[:MOST_SKILLS]

    async def _find(self, own: Answer, call: Call) -> Any:
        """The answer of the first that has it."""
        uri: str = METHODS[call.method].decode(call.params).uri
        try:
            return await own(call)
        except InvalidParams as unknown:
            found = await self._first(call, uri)
            if found is None:
                raise unknown from None
            return found

    async def _read(self, own: Answer, call: Call) -> Any:
        """A file of a skill is not listed, and several upstreams may have the same template for theirs."""
        uri: str = call.typed().uri
        try:
            return await own(call)
        except ResourceNotFound as unknown:
            found = await self._first(call, uri) if uri.startswith(SCHEME) else None
            if found is None:
                raise unknown from None
            return found

    async def _first(self, call: Call, uri: str) -> Raw | None:
        params = Raw(jsonrpc.encode({**members.decode(call.params), "uri": uri}))
        for upstream in self._upstreams():
            if not await self._host().may_read(call, upstream, uri):
                continue
            try:
                answered = await upstream.call(replace(call, params=params, read=None, facet=None), bytes)
            except InvalidParams:
                continue
            # Under the address that it was asked for by.
            result = result_at(call.method, answered.result, answered.revision, call.revision or MODERN)
            return self._filter_directory(call, upstream, result) if call.method == _DIRECTORY else result
        return None

    def _filter_directory(self, call: Call, upstream: GatewayUpstream, result: Raw) -> Raw:
        """Return the entries of a directory that the caller may see."""
        try:
            inside = members.decode(result)
            entries = msgspec.json.decode(inside.get("resources", b"[]"), type=list[Raw])
            uris = [msgspec.json.decode(entry, type=_SkillAddress).uri for entry in entries]
        except (msgspec.DecodeError, RecursionError):
            raise ToolError(f"{upstream.alias} gave a result that cannot be read.") from None
        seen = [entry for entry, uri in zip(entries, uris, strict=True) if self._host().may_see(call, upstream, uri)]
        return Raw(jsonrpc.encode({**inside, "resources": seen})) if len(seen) < len(entries) else result


async def _no_skills(call: Call) -> ListSkillsResult:
    return ListSkillsResult(skills=[])


async def _unknown(call: Call) -> Any:
    params: GetSkillParams = METHODS[call.method].decode(call.params)
    raise InvalidParams(f"Unknown skill: {params.uri}", {"uri": params.uri})


async def _not_there(call: Call) -> Any:
    params: ReadDirectoryParams = METHODS[call.method].decode(call.params)
    raise ResourceNotFound(params.uri)
