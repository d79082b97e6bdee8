"""Many who ask for one thing each, and one question for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Batches(Generic[K, V]):
    """Asks together what is asked for at the same time: what comes while one question is under way waits for the next.

    `ask` is given keys, and gives what it has found by its key.
    """

    def __init__(self, ask: Callable[[list[K]], Awaitable[dict[K, V]]], most: int) -> None:
        self._ask = ask
        self._most = most
        self._waiting: dict[K, asyncio.Future[V | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def find(self, key: K) -> V | None:
        """None where nothing was found."""
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._ask_all())
        # Others may wait for the same.
        return await asyncio.shield(self._waiting[key])

    async def _ask_all(self) -> None:
        while self._waiting:
            some = dict(islice(self._waiting.items(), self._most))
            for key in some:
                del self._waiting[key]
            try:
                found = await self._ask(list(some))
            except Exception as failure:
                # Each who asked has to hear of it, or would wait for ever.
                for one in some.values():
                    one.set_exception(failure)
                    # The request that asked for it may be gone.
                    one.exception()
            except BaseException:
                for one in some.values():
                    one.cancel()
                raise
            else:
                for key, one in some.items():
                    one.set_result(found.get(key))

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        for one in self._waiting.values():
            one.cancel()
