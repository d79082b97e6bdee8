"""Parts that servers written for FastMCP are put together of: lifespans, resources that need no function, results."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.components.resources import Resource

MAX_FILES = 1_000


class ComposableLifespan:
    """A lifespan that can be put together with others: `Server(lifespan=database | cache)`."""

    def __init__(self, enter: Callable[[Any], AbstractAsyncContextManager[Any]]) -> None:
        self._enter = enter

    def __call__(self, server: Any) -> AbstractAsyncContextManager[Any]:
        return self._enter(server)

    def __or__(self, other: Any) -> ComposableLifespan:
        return ComposableLifespan(combine_lifespans(self, other))


def lifespan(fn: Callable[[Any], AsyncIterator[Any]]) -> ComposableLifespan:
    """Makes a lifespan of an async generator function: what it yields, a dict, is `ctx.lifespan_context`."""
    return ComposableLifespan(asynccontextmanager(fn))


def combine_lifespans(
    *lifespans: Callable[[Any], AbstractAsyncContextManager[Any]],
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """One lifespan of several, left in the other order. What they yield is merged."""

    @asynccontextmanager
    async def combined(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            said: dict[str, Any] = {}
            for one in lifespans:
                said |= await stack.enter_async_context(one(app)) or {}
            yield said

    return combined


def TextResource(*, uri: Any, text: str, **options: Any) -> Resource:
    """A text that is always the same."""

    def read() -> str:
        return text

    return _resource(read, uri, options)


def FileResource(
    *, uri: Any, path: str | os.PathLike[str], is_binary: bool = False, encoding: str = "utf-8", **options: Any
) -> Resource:
    """A file, as text or as bytes, read anew each time."""
    file = Path(path)
    binary = is_binary or not options.get("mime_type", "text/plain").startswith(("text/", "application/json"))

    def read() -> str | bytes:
        return file.read_bytes() if binary else file.read_text(encoding=encoding)

    return _resource(read, uri, options)


def DirectoryResource(
    *, uri: Any, path: str | os.PathLike[str], recursive: bool = False, pattern: str | None = None, **options: Any
) -> Resource:
    """The names of the files in a folder."""
    folder = Path(path)

    def read() -> dict[str, list[str]]:
        found = (folder.rglob if recursive else folder.glob)(pattern or "*")
        names = sorted(str(one.relative_to(folder)) for one in found if one.is_file())
        if len(names) > MAX_FILES:
            raise UsageError(f"there are more than {MAX_FILES:,} files in {folder.name}")
        return {"files": names}

    return _resource(read, uri, {"mime_type": "application/json", **options})


def _resource(read: Callable[[], Any], uri: Any, options: dict[str, Any]) -> Resource:
    said = {name: value for name, value in options.items() if value is not None}
    return Resource(read, str(uri), **{"name": str(uri), **said})


class ResourceContent(Struct):
    """One part of a ResourceResult."""

    content: Any
    mime_type: str | None = None
    meta: dict[str, Any] | None = None


class ResourceResult:
    """What a resource may return to say more than its contents."""

    def __init__(self, contents: Any, meta: dict[str, Any] | None = None) -> None:
        self.contents: Sequence[Any] = contents if isinstance(contents, list | tuple) else [contents]
        self.meta = meta


class PromptResult:
    """What a prompt may return to say more than its messages."""

    def __init__(self, messages: Any, description: str | None = None, meta: dict[str, Any] | None = None) -> None:
        self.messages: Sequence[Any] = messages if isinstance(messages, list | tuple) else [messages]
        self.description, self.meta = description, meta
