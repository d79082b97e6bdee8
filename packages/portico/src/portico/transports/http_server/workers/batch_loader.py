"""Batching of concurrent lookups into one query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BatchLoader(Generic[K, V]):
    """Batches keys that are requested concurrently. Keys requested while a query is active wait for the next one.

    `load_batch` receives keys, and returns the values it found by key.
    """

    def __init__(self, load_batch: Callable[[list[K]], Awaitable[dict[K, V]]], max_batch_size: int) -> None:
        self._ask = load_batch
        self._max_batch_size = max_batch_size
        self._pending: dict[K, asyncio.Future[V | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def load(self, key: K) -> V | None:
        """Return the value of a key, or None if it was not found."""
        if key not in self._pending:
            self._pending[key] = asyncio.get_running_loop().create_future()
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._load_pending())
        # Other callers may wait for the same key.
        return await asyncio.shield(self._pending[key])

    async def _load_pending(self) -> None:
        while self._pending:
            some = dict(islice(self._pending.items(), self._max_batch_size))
            for key in some:
                del self._pending[key]
            try:
                result = await self._ask(list(some))
            except Exception as failure:
                # Every waiting caller must receive the error, or it would wait forever.
                for value in some.values():
                    value.set_exception(failure)
                    # Mark the exception as retrieved: the request may be gone.
                    value.exception()
            except BaseException:
                for value in some.values():
                    value.cancel()
                raise
            else:
                for key, value in some.items():
                    value.set_result(result.get(key))

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        for value in self._pending.values():
            value.cancel()
