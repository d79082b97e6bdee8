"""A face that is made when it is first asked something: one that is offered beside a server costs its start nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from portico.protocol.errors import MethodNotFound, UsageError
from portico.rpc.call import Call
from portico.search.tool_search_base import ServerFace


class LateFace:
    """A Handler that stands for a face. Until that is made, what a Handler may offer besides answering is the
    server's."""

    def __init__(self, server: Any, name: str, make: Callable[[], ServerFace]) -> None:
        self.server, self.name = server, name
        self._make = make
        self._face: ServerFace | None = None
        self._making = asyncio.Lock()
        self._stack = AsyncExitStack()

    def __getattr__(self, name: str) -> Any:
        face = self.__dict__.get("_face")
        # Without a face there is nothing to start: see `__call__`.
        if face is None and name in ("start", "listed"):
            raise AttributeError(name)
        return getattr(self.__dict__["server"] if face is None else face, name)

    async def __call__(self, call: Call) -> Any:
        return await (self._face or await self._made())(call)

    async def _made(self) -> ServerFace:
        async with self._making:
            if self._face is None:
                try:
                    face = self._make()
                except UsageError as reason:
                    raise MethodNotFound(f"There is no {self.name} here: {reason}") from None
                await self._stack.enter_async_context(face.desk.lifespan())
                self._face = face
        return self._face

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """As long as this lasts, the face may be used."""
        try:
            yield
        finally:
            self._face = None
            await self._stack.aclose()
