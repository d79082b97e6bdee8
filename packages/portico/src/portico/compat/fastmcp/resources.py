"""Building blocks of FastMCP servers: lifespans, resources without a function, and results."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.server.components.resources import Resource

# Limit on the entries of a DirectoryResource.
MAX_FILES = 1_000


class ComposableLifespan:
    """A lifespan that can be combined with others: `Server(lifespan=database | cache)`."""

    def __init__(self, enter: Callable[[Any], AbstractAsyncContextManager[Any]]) -> None:
        self._enter = enter

    def __call__(self, server: Any) -> AbstractAsyncContextManager[Any]:
        return self._enter(server)

    def __or__(self, other: Any) -> ComposableLifespan:
        return ComposableLifespan(combine_lifespans(self, other))


def lifespan(fn: Callable[[Any], AsyncIterator[Any]]) -> ComposableLifespan:
    """Create a lifespan from an async generator function. The yielded dict is `ctx.lifespan_context`."""
    return ComposableLifespan(asynccontextmanager(fn))


def combine_lifespans(
    *lifespans: Callable[[Any], AbstractAsyncContextManager[Any]],
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Combine several lifespans into one, which exits them in reverse order and merges the yielded dicts."""

    @asynccontextmanager
    async def combined(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            state: dict[str, Any] = {}
            for lifespan in lifespans:
                state |= await stack.enter_async_context(lifespan(app)) or {}
            yield state

    return combined


def TextResource(*, uri: Any, text: str, **options: Any) -> Resource:
    """Return a resource with a fixed text."""

    def read() -> str:
        return text

    return _resource(read, uri, options)


def FileResource(
    *, uri: Any, path: str | os.PathLike[str], is_binary: bool = False, encoding: str = "utf-8", **options: Any
) -> Resource:
    """Return a resource that reads a file, as text or bytes, on every request."""
    file = Path(path)
    binary = is_binary or not options.get("mime_type", "text/plain").startswith(("text/", "application/json"))

    def read() -> str | bytes:
        return file.read_bytes() if binary else file.read_text(encoding=encoding)

    return _resource(read, uri, options)


def DirectoryResource(
    *, uri: Any, path: str | os.PathLike[str], recursive: bool = False, pattern: str | None = None, **options: Any
) -> Resource:
    """Return a resource that lists the files in a directory."""
    folder = Path(path)

    def read() -> dict[str, list[str]]:
        result = (folder.rglob if recursive else folder.glob)(pattern or "*")
        names = sorted(str(item.relative_to(folder)) for item in result if item.is_file())
        if len(names) > MAX_FILES:
            raise UsageError(f"{folder.name} has more than {MAX_FILES:,} files")
        return {"files": names}

    return _resource(read, uri, {"mime_type": "application/json", **options})


def _resource(read: Callable[[], Any], uri: Any, options: dict[str, Any]) -> Resource:
    settings = {name: value for name, value in options.items() if value is not None}
    return Resource(read, str(uri), **{"name": str(uri), **settings})


class ResourceContent(Struct):
    """One part of a ResourceResult."""

    content: Any
    mime_type: str | None = None
    meta: dict[str, Any] | None = None


class ResourceResult:
    """Result of a resource with metadata."""

    def __init__(self, contents: Any, meta: dict[str, Any] | None = None) -> None:
        self.contents: Sequence[Any] = contents if isinstance(contents, list | tuple) else [contents]
        self.meta = meta


class PromptResult:
    """Result of a prompt with a description and metadata."""

    def __init__(self, messages: Any, description: str | None = None, meta: dict[str, Any] | None = None) -> None:
        self.messages: Sequence[Any] = messages if isinstance(messages, list | tuple) else [messages]
        self.description, self.meta = description, meta
