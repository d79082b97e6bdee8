"""Skills: directories of instructions, served as resources with the skills extension (SEP-2640, a draft)."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, Protocol

from msgspec import UNSET, UnsetType

from portico._options import validated_kwargs
from portico.protocol.errors import InvalidParams, ResourceNotFound, UsageError
from portico.protocol.methods import METHODS
from portico.protocol.resources import ReadResourceParams
from portico.protocol.skills import (
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)
from portico.rpc.call import Call
from portico.server.components.resources import Resource
from portico.server.components.runtime import Runtime, ThreadPool
from portico.server.components.validation import build_cache_hints
from portico.server.registry.registry import Registry
from portico.server.registry.service import Component, Service
from portico.server.skills.directory import URI_SCHEME, SkillDirectory

log = logging.getLogger("portico")

# Smaller than for other lists: an entry names every file of its skill.
PAGE_SIZE = 100


class _SkillHost(Protocol):
    """The part of a server that the service uses."""

    registry: Registry


class _SkillFiles(Resource):
    """Resource template for every file of a skill.

    The path is used undecoded, because `%2F` and `/` must stay distinct.
    """

    async def read(self, call: Call, params: ReadResourceParams, runtime: Runtime, values: Mapping[str, Any]) -> Any:
        return await super().read(call, params, runtime, {"path": params.uri.removeprefix(URI_SCHEME)})


class Skills(Service):
    """Service for the skills below a directory: `server.add(Skills("folder"))`.

    A skill is a directory with a SKILL.md whose frontmatter has the directory's name and a description. An invalid
    skill raises UsageError at startup; one that becomes invalid later is left out and logged.

    * **directory** – the directory that contains the skills.
    * **page_size** – number of skills in a page of `skills/list`.
    * **cache_ttl_ms**, **cache_scope** – how long clients may cache results, and whether several users may share them.
    """

    name = "skills"

    @validated_kwargs
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        page_size: int = PAGE_SIZE,
        cache_ttl_ms: int = 0,
        cache_scope: Literal["public", "private"] = "private",
    ) -> None:
        super().__init__()
        self._folder = SkillDirectory(directory)
        self._page_size = page_size
        self._hints = build_cache_hints(cache_ttl_ms, cache_scope)
        self._threads = ThreadPool(2)
        self._told: set[str] = set()
        self._first, problems = self._folder.skills()
        if problems:
            raise UsageError(problems[0])

    def on_added(self, server: _SkillHost) -> None:
        self._cursors = server.registry.cursors

    def extensions(self) -> Mapping[str, Mapping[str, Any]]:
        return {SKILLS_EXTENSION: {"directoryRead": True}}

    def methods(self) -> Mapping[str, Callable[[Call], Awaitable[Any]]]:
        return {
            "skills/list": self._list,
            "skills/get": self._get,
            "resources/directory/read": self._read_directory,
        }

    def components(self) -> Iterator[Component]:
        yield from super().components()
        for skill in self._first:
            yield Resource(
                partial(self._folder.read, skill.uri.removeprefix(URI_SCHEME)),
                skill.uri,
                name=skill.frontmatter["name"],
                description=skill.frontmatter["description"],
                mime_type="text/markdown",
            )
        yield _SkillFiles(
            self._folder.read,
            URI_SCHEME + "{+path}",
            name="skill_file",
            description="A file of a skill: a skill's path, and the path of the file inside it.",
        )

    async def _list(self, call: Call) -> ListSkillsResult:
        params = METHODS["skills/list"].decode(call.params)
        skills, problems = await self._threads.run(self._folder.skills, ())
        # Log each problem once, not with every request.
        for problem in set(problems) - self._told:
            log.warning("skipping a skill: %s", problem)
        self._told = set(problems)
        page, more = self._page("skills/list", skills, params.cursor)
        return ListSkillsResult(skills=page, next_cursor=more, **self._hints)

    async def _get(self, call: Call) -> GetSkillResult:
        params: GetSkillParams = METHODS["skills/get"].decode(call.params)
        try:
            skill = await self._threads.run(self._folder.skill, (_path_of(params.uri),))
        except (FileNotFoundError, UsageError):
            raise InvalidParams(f"Unknown skill: {params.uri}", {"uri": params.uri}) from None
        return GetSkillResult(skill=skill, **self._hints)

    async def _read_directory(self, call: Call) -> ReadDirectoryResult:
        params: ReadDirectoryParams = METHODS["resources/directory/read"].decode(call.params)
        try:
            children = await self._threads.run(self._folder.children, (_path_of(params.uri),))
        except NotADirectoryError:
            raise InvalidParams(f"Not a directory: {params.uri}", {"uri": params.uri}) from None
        except (OSError, UsageError):
            raise ResourceNotFound(params.uri) from None
        page, more = self._page(f"resources/directory/read {params.uri}", children, params.cursor)
        return ReadDirectoryResult(resources=page, next_cursor=more, **self._hints)

    def _page(self, listed: str, entries: list[Any], cursor: str | None) -> tuple[list[Any], str | UnsetType]:
        start = 0 if cursor is None else int(self._cursors.read(listed, cursor))
        end = start + self._page_size
        return entries[start:end], self._cursors.issue(listed, str(end)) if end < len(entries) else UNSET


def _path_of(uri: str) -> str:
    if not uri.startswith(URI_SCHEME):
        raise FileNotFoundError(uri)
    return uri.removeprefix(URI_SCHEME)
