"""How many calls go on at once, and who waits for one of them to end."""

from __future__ import annotations

import asyncio
from collections import deque


class CallPlaces:
    """`asyncio.Semaphore`, for which there is mostly nothing to wait: then it costs a subtraction."""

    def __init__(self, most: int) -> None:
        self.free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Take one as soon as there is one, in turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                # It was given, and is not wanted any more.
                self.give()
            else:
                self._waiting.remove(turn)
            raise

    def give(self) -> None:
        """One is free again: the next in line has it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
