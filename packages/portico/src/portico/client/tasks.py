"""Tasks as a client sees them: a call that goes on by itself, and that can be come back for, also after a restart.

Both designs are behind it: the extension of 2026-07-28, and the experiment of 2025-11-25.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import UnionType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.client.results import CallToolResult, T
from portico.protocol.client_features import InputRequest
from portico.protocol.errors import (
    Error,
    InternalError,
    InvalidParams,
    ProtocolError,
    TimedOut,
    TransportError,
    from_wire,
)
from portico.protocol.subscriptions import Filter
from portico.protocol.tasks import EXTENSION, DetailedTask, Status

if TYPE_CHECKING:
    from portico.client.client import Client

POLL_SECONDS, LONGEST_POLL_SECONDS = 1.0, 60.0
# Where changes are heard of, looking now and then is only for what was missed.
MISSED_POLL_SECONDS = 10.0
ENDED = frozenset({"completed", "failed", "cancelled"})


class _Handle(Struct, rename="camel"):
    """What starting a task gave: the extension's flat shape, or the nested one of 2025-11-25."""

    task_id: str = ""
    task: DetailedTask | None = None


class RemoteTask:
    """A task of a server's. `id` is enough to find it again: `client.task(id)`."""

    def __init__(self, client: Client, id: str, tool: str = "") -> None:
        self.id = id
        self.tool = tool
        self.status: Status = "working"
        self.message: str | None = None
        self._client = client
        self._poll = POLL_SECONDS
        self._seen: DetailedTask | None = None
        self._answered: set[str] = set()
        # A server may answer at once after all; then there is no task, and nothing to wait for.
        self._done: Raw | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    async def refresh(self) -> Status:
        """Ask how it stands."""
        if self._done is None:
            said = await self._client.request("tasks/get", self._params())
            self.note(self._client._requests.decoded("tasks/get", said, DetailedTask))
        return self.status

    def note(self, seen: DetailedTask) -> None:
        self._seen = seen
        self.status, self.message = seen.status, seen.status_message
        hint = seen.poll_interval_ms or seen.poll_interval
        if hint is not None:
            self._poll = min(LONGEST_POLL_SECONDS, max(0.01, hint / 1000))

    def answered(self, said: Raw) -> None:
        self._done, self.status = said, "completed"

    async def cancel(self) -> None:
        """Ask for its end. It may come to another end first."""
        try:
            await self._client.request("tasks/cancel", self._params())
        except InvalidParams:
            # 2025-11-25 says so of what is over already.
            if (await self.refresh()) not in ENDED:
                raise
        await self.refresh()

    async def result(
        self,
        *,
        timeout: float | None = None,
        returns: type[T] | UnionType | None = None,
        raise_on_error: bool = True,
    ) -> CallToolResult[T]:
        """What comes of it, however long it takes. What it asks meanwhile is answered by the client's handlers."""
        try:
            async with asyncio.timeout(timeout):
                said = self._done if self._done is not None else await self._wait()
        except TransportError:
            raise
        except TimeoutError:
            raise TimedOut(f"the task {self.id} was not done within {timeout:g} s; it goes on") from None
        received = self._client._requests.decoded("tools/call", said)
        return await self._client._read(self.tool, received, returns, raise_on_error)

    async def _wait(self) -> Raw:
        if not self._client.is_modern:
            # It waits, and puts the task's questions to us as requests.
            return await self._client.request("tasks/result", self._params(), timeout=float("inf"))
        async with AsyncExitStack() as stack:
            rest = MISSED_POLL_SECONDS if await self._listen(stack) else None
            news = self._client._hearing.news_of(self.id)
            while (await self._fresh(news)) not in ENDED:
                if self.status == "input_required":
                    await self._answer()
                    continue
                try:
                    async with asyncio.timeout(rest or self._poll):
                        await news.wait()
                except TimeoutError:
                    pass
        return self._outcome()

    async def _fresh(self, news: asyncio.Event) -> Status:
        # What is heard of from here on is not in the answer.
        news.clear()
        return await self.refresh()

    async def _listen(self, stack: AsyncExitStack) -> bool:
        """Hear of changes where the server tells of them; elsewhere they are asked for."""
        listener = self._client.listen(Filter(task_ids=[self.id]))
        try:
            await stack.enter_async_context(listener)
        except Error:
            return False
        return bool(listener.honoured is not None and listener.honoured.task_ids)

    async def _answer(self) -> None:
        assert self._seen is not None
        asked = {} if self._seen.input_requests is UNSET else self._seen.input_requests
        new = {key: one for key, one in asked.items() if key not in self._answered}
        if not new:
            # Said already; the server may take a moment to know.
            await asyncio.sleep(min(self._poll, POLL_SECONDS))
            return
        for key, one in new.items():
            answer = await self._client._requests.reply("tasks/get", InputRequest(one["method"], one.get("params")))
            self._answered.add(key)
            await self._client.request("tasks/update", {**self._params(), "inputResponses": {key: answer}})

    def _outcome(self) -> Raw:
        assert self._seen is not None
        if self.status == "cancelled":
            raise ProtocolError(f"the task {self.id} was cancelled")
        if self.status == "failed":
            error = self._seen.error if isinstance(self._seen.error, dict) else {}
            code = int(error.get("code", InternalError.code))
            raise from_wire(code, str(error.get("message", "")), error.get("data"))
        return Raw(msgspec.json.encode(self._seen.result))

    def _params(self) -> dict[str, Any]:
        declared = {"_meta": self._client._declaring(EXTENSION)} if self._client.is_modern else {}
        return {"taskId": self.id, **declared}


def handle(client: Client, tool: str, said: Raw) -> RemoteTask:
    """The task that a call has become; or one that is over, because the server answered at once."""
    found: _Handle = client._requests.decoded("tools/call", said, _Handle)
    id = found.task.task_id if found.task is not None else found.task_id
    task = RemoteTask(client, id, tool)
    if not id:
        task.answered(said)
    return task
