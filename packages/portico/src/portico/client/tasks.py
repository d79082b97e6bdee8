"""Client-side tasks: calls that run on the server and can be resumed, even after a restart of the client.

Supports both designs: the extension of 2026-07-28 and the experimental feature of 2025-11-25.
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
    InternalError,
    InvalidParams,
    PorticoError,
    ProtocolError,
    RequestTimeout,
    TransportError,
    error_from_response,
)
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tasks import EXTENSION, TERMINAL_STATUSES, DetailedTask, TaskStatus

if TYPE_CHECKING:
    from portico.client.client import Client

# The first applies until the server states a poll interval; the second bounds what it may state.
POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 60.0
# With notifications, polling only covers lost ones.
FALLBACK_POLL_SECONDS = 10.0


class _Handle(Struct, rename="camel"):
    """The response that starts a task: flat in the extension, nested in 2025-11-25."""

    task_id: str = ""
    task: DetailedTask | None = None


class RemoteTask:
    """Handle for a task on a server. The `id` is enough to find it again: `client.task(id)`."""

    def __init__(self, client: Client, id: str, tool: str = "") -> None:
        self.id = id
        self.tool = tool
        self.status: TaskStatus = "working"
        self.message: str | None = None
        self._client = client
        self._poll = POLL_SECONDS
        self._last_task: DetailedTask | None = None
        self._answered: set[str] = set()
        # A server may answer immediately; then there is no task to wait for.
        self._raw_result: Raw | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether the task is completed, failed or cancelled."""
        return self.status in TERMINAL_STATUSES

    async def refresh(self) -> TaskStatus:
        """Fetch the task's state and return its status."""
        if self._raw_result is None:
            response = await self._client.request("tasks/get", self._params())
            self.update(self._client._requests.decode_result("tasks/get", response, DetailedTask))
        return self.status

    def update(self, task: DetailedTask) -> None:
        """Apply a state received from the server."""
        self._last_task = task
        self.status, self.message = task.status, task.status_message
        hint = task.poll_interval_ms or task.poll_interval
        if hint is not None:
            # An interval of 0 would make this client send requests in a tight loop.
            self._poll = min(MAX_POLL_SECONDS, max(0.01, hint / 1000))

    def set_result(self, result: Raw) -> None:
        """Finish the task with a result that the server returned immediately."""
        self._raw_result, self.status = result, "completed"

    async def cancel(self) -> None:
        """Request cancellation. The task may still finish in another way first."""
        try:
            await self._client.request("tasks/cancel", self._params())
        except InvalidParams:
            # 2025-11-25 requires this error for tasks that have already ended.
            if (await self.refresh()) not in TERMINAL_STATUSES:
                raise
        await self.refresh()

    async def result(
        self,
        *,
        timeout: float | None = None,
        result_type: type[T] | UnionType | None = None,
        raise_on_error: bool = True,
    ) -> CallToolResult[T]:
        """Wait for the result and return it. Input requests are answered by the client's handlers.

        Raises `RequestTimeout` after `timeout` seconds (the task continues) and `ToolError` if the tool failed.
        """
        try:
            async with asyncio.timeout(timeout):
                response = self._raw_result if self._raw_result is not None else await self._wait()
        except TransportError:
            raise
        except TimeoutError:
            raise RequestTimeout(
                f"the task {self.id} did not finish within {timeout:g} s; it is still running"
            ) from None
        received = self._client._requests.decode_result("tools/call", response)
        return await self._client._read(self.tool, received, result_type, raise_on_error)

    async def _wait(self) -> Raw:
        if not self._client.is_stateless:
            # tasks/result blocks until the task ends; input requests arrive as server-to-client requests.
            return await self._client.request("tasks/result", self._params(), timeout=float("inf"))
        async with AsyncExitStack() as stack:
            rest = FALLBACK_POLL_SECONDS if await self._listen(stack) else None
            news = self._client._notifications.task_event(self.id)
            while (await self._wait_for_status(news)) not in TERMINAL_STATUSES:
                if self.status == "input_required":
                    await self._answer_input_requests()
                    continue
                try:
                    async with asyncio.timeout(rest or self._poll):
                        await news.wait()
                except TimeoutError:
                    pass
        return self._outcome()

    async def _wait_for_status(self, news: asyncio.Event) -> TaskStatus:
        # Clear before the request: a notification that arrives from here on may be newer than the response.
        news.clear()
        return await self.refresh()

    async def _listen(self, stack: AsyncExitStack) -> bool:
        """Subscribe to the task's notifications. Returns False if the server does not support that and polling is
        needed.
        """
        listener = self._client.listen(SubscriptionFilter(task_ids=[self.id]))
        try:
            await stack.enter_async_context(listener)
        except PorticoError:
            return False
        return bool(listener.accepted_filter is not None and listener.accepted_filter.task_ids)

    async def _answer_input_requests(self) -> None:
        assert self._last_task is not None
        input_requests = {} if self._last_task.input_requests is UNSET else self._last_task.input_requests
        # The server lists open requests in each state until it has processed the responses. Asking a user twice
        # is worse than waiting for the next state.
        new = {key: input_request for key, input_request in input_requests.items() if key not in self._answered}
        if not new:
            # Already answered; the server may need a moment to process the response.
            await asyncio.sleep(min(self._poll, POLL_SECONDS))
            return
        for key, input_request in new.items():
            answer = await self._client._requests.answer_input_request(
                "tasks/get", InputRequest(input_request["method"], input_request.get("params"))
            )
            # Marked before it is sent: if sending fails, the user has already answered, and the error is
            # reported.
            self._answered.add(key)
            await self._client.request("tasks/update", {**self._params(), "inputResponses": {key: answer}})

    def _outcome(self) -> Raw:
        assert self._last_task is not None
        if self.status == "cancelled":
            raise ProtocolError(f"the task {self.id} was cancelled")
        if self.status == "failed":
            error = self._last_task.error if isinstance(self._last_task.error, dict) else {}
            code = int(error.get("code", InternalError.code))
            raise error_from_response(code, str(error.get("message", "")), error.get("data"))
        return Raw(msgspec.json.encode(self._last_task.result))

    def _params(self) -> dict[str, Any]:
        # Each request of 2026-07-28 declares its extensions; servers reject task methods without this one.
        declared = {"_meta": self._client._declare_extension(EXTENSION)} if self._client.is_stateless else {}
        return {"taskId": self.id, **declared}


def create_remote_task(client: Client, tool: str, result: Raw) -> RemoteTask:
    """Return the task that a call started, or a finished one if the server answered immediately."""
    match: _Handle = client._requests.decode_result("tools/call", result, _Handle)
    id = match.task.task_id if match.task is not None else match.task_id
    task = RemoteTask(client, id, tool)
    if not id:
        task.set_result(result)
    return task
