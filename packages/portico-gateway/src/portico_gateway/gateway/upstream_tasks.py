"""Tasks of upstreams, accessed as in 2026-07-28, whatever design the upstream has.

2025-11-25 delivers the result of a task, and its input requests, only to a pending `tasks/result` request. For a task
that needs input, such a request waits here, and its input requests go to the client that polls the task.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tasks import DetailedTask
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.attribution import attribute_tasks
from portico.rpc.call import Call, NotificationCallback
from portico.rpc.change_relay import ChangeRelay
from portico_gateway.gateway import task_translation as words
from portico_gateway.gateway.catalog_entries import translate_result
from portico_gateway.gateway.server_request_bridge import REQUEST_BATCH_SECONDS, SuspendedCall, start_call
from portico_gateway.gateway.upstream import UpstreamProvider, UpstreamResponse

MAX_TASK_WAITERS = 10_000
# How long a pending request waits for a client that no longer polls the task.
WAITER_TTL_SECONDS = 600.0
# How long to wait for an input request after the status announced it.
INPUT_REQUEST_TIMEOUT_SECONDS = 2.0
# Poll intervals: for upstreams with notifications, and the limits for others.
FALLBACK_POLL_SECONDS, MIN_POLL_SECONDS, MAX_POLL_SECONDS = 10.0, 0.05, 5.0


class UpstreamTasks:
    """Pending `tasks/result` requests of all upstreams of a gateway."""

    def __init__(self) -> None:
        self._suspended_calls: OrderedDict[tuple[str, str], SuspendedCall] = OrderedDict()

    async def get_task(self, upstream: UpstreamProvider, id: str, call: Call) -> DetailedTask:
        """Return the state of a task, with its result or its input requests."""
        answered = await send_task_request(upstream, "tasks/get", id, call)
        task = words.parse_task(answered.result)
        if answered.revision >= FIRST_MODERN_VERSION:
            if not upstream.is_here:
                task.input_requests = attribute_tasks(upstream.alias, task.input_requests)
            return task
        waiting = self._suspended_calls.get((upstream.alias, id))
        if task.status == "input_required":
            waiting = waiting or self._start_waiter(upstream, id, call)
            await _wait_for_input_request(waiting)
            task.input_requests = dict(waiting.asked)
        elif task.status in ("completed", "failed"):
            self._suspended_calls.pop((upstream.alias, id), None)
            await self._add_outcome(task, upstream, id, call, waiting)
        return task

    async def _add_outcome(
        self, task: DetailedTask, upstream: UpstreamProvider, id: str, call: Call, waiting: SuspendedCall | None
    ) -> None:
        try:
            if waiting is not None and waiting.task is not None:
                answered = await waiting.task
            else:
                answered = await send_task_request(upstream, "tasks/result", id, call)
        except ProtocolError as wrong:
            task.status = "failed"
            task.error = {"code": wrong.code_for(FIRST_MODERN_VERSION), "message": wrong.message, "data": wrong.data}
            return
        task.status = "completed"
        task.result = translate_result(
            "tools/call", words.remove_related_task(answered.result), answered.revision, FIRST_MODERN_VERSION
        )

    def _start_waiter(self, upstream: UpstreamProvider, id: str, call: Call) -> SuspendedCall:
        """Start a `tasks/result` request that receives the input requests of a task."""
        self._expire_stale()

        async def send(inner: Call, parked: SuspendedCall) -> UpstreamResponse:
            return await send_task_request(upstream, "tasks/result", id, inner, parked)

        waiting = start_call(call, upstream.alias, b"", send)
        waiting.until = time.monotonic() + WAITER_TTL_SECONDS
        self._suspended_calls[upstream.alias, id] = waiting
        return waiting

    def _expire_stale(self) -> None:
        now = time.monotonic()
        while self._suspended_calls:
            oldest = next(iter(self._suspended_calls.values()))
            if len(self._suspended_calls) < MAX_TASK_WAITERS and oldest.until > now:
                return
            _, parked = self._suspended_calls.popitem(last=False)
            if parked.task is not None:
                parked.task.cancel()

    async def send_input_responses(self, upstream: UpstreamProvider, id: str, call: Call, responses: Raw) -> None:
        """Send the client's responses to the input requests of a task."""
        parsed = parse_input_responses(responses)
        waiting = self._suspended_calls.get((upstream.alias, id))
        if waiting is not None:
            waiting.resolve_inputs(parsed)
            return
        if await upstream.is_stateless(call):
            await send_task_request(upstream, "tasks/update", id, call, inputResponses=responses)
            return
        # No request is pending. Query the task, so that an unknown ID raises an error.
        await send_task_request(upstream, "tasks/get", id, call)

    async def cancel_task(self, upstream: UpstreamProvider, id: str, call: Call) -> bool:
        """Cancel a task. Return whether it was still running."""
        if await upstream.is_stateless(call):
            before = words.parse_task((await send_task_request(upstream, "tasks/get", id, call)).result)
            await send_task_request(upstream, "tasks/cancel", id, call)
            return not words.is_terminal(before)
        try:
            await send_task_request(upstream, "tasks/cancel", id, call)
        except InvalidParams:
            # 2025-11-25 returns the same error for tasks that have ended and for unknown ones.
            if not words.is_terminal(
                words.parse_task((await send_task_request(upstream, "tasks/get", id, call)).result)
            ):
                raise
            return False
        return True

    @asynccontextmanager
    async def watch_task(self, upstream: UpstreamProvider, id: str, call: Call) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set when a task changes, as far as the upstream sends notifications."""
        news = asyncio.Event()
        relay = None
        if await upstream.is_stateless(call):
            relay = relay_task_notifications(upstream, [id], lambda method, params: news.set(), call)
        upstream.task_events.setdefault(id, set()).add(news)
        try:
            yield news
        finally:
            if relay is not None:
                relay.close()
            upstream.task_events[id].discard(news)
            if not upstream.task_events[id]:
                del upstream.task_events[id]

    async def close(self) -> None:
        tasks = [value.task for value in self._suspended_calls.values() if value.task is not None]
        self._suspended_calls.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def relay_task_notifications(
    upstream: UpstreamProvider, ids: list[str], tell: NotificationCallback, call: Call
) -> ChangeRelay:
    """Subscribe to the notifications of tasks at an upstream with the tasks extension."""
    handler, able = upstream.change_listener.handler, words.with_tasks_capability(call.capabilities)
    return ChangeRelay(handler, SubscriptionFilter(task_ids=ids), tell, principal=call.principal, capabilities=able)


async def send_task_request(
    upstream: UpstreamProvider, method: str, id: str, call: Call, parked: SuspendedCall | None = None, **more: Any
) -> UpstreamResponse:
    """Send a request about a task on behalf of a client's call."""
    params = Raw(jsonrpc.encode({"taskId": id, **more}))
    asking = replace(call, method=method, params=params, read=None, progress_token=None)
    if (call.protocol_version or FIRST_MODERN_VERSION) < FIRST_MODERN_VERSION or not words.supports_tasks(
        call.capabilities
    ):
        asking = replace(asking, capabilities=words.with_tasks_capability(call.capabilities))
    return await upstream.call_about_task(asking, id, parked)


async def wait_for_change(changed_event: asyncio.Event, task: DetailedTask, has_notifications: bool) -> None:
    """Wait for a change, or until the next poll."""
    seconds = FALLBACK_POLL_SECONDS if has_notifications else (task.poll_interval_ms or 500) / 1000
    try:
        async with asyncio.timeout(max(MIN_POLL_SECONDS, min(seconds, MAX_POLL_SECONDS))):
            await changed_event.wait()
    except TimeoutError:
        pass
    changed_event.clear()


async def _wait_for_input_request(waiting: SuspendedCall) -> None:
    """Wait for an announced input request. Several requests in quick succession are collected."""
    assert waiting.task is not None
    end = time.monotonic() + INPUT_REQUEST_TIMEOUT_SECONDS
    while not waiting.asked and not waiting.task.done() and time.monotonic() < end:
        waiting.news.clear()
        news = asyncio.ensure_future(waiting.news.wait())
        try:
            await asyncio.wait(
                [waiting.task, news], timeout=INPUT_REQUEST_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            news.cancel()
    await asyncio.wait([waiting.task], timeout=REQUEST_BATCH_SECONDS)


def parse_input_responses(responses: Raw) -> dict[str, Raw]:
    """Parse the responses to input requests. Raises InvalidParams."""
    if not responses:
        raise InvalidParams("Missing inputResponses: expected an object with one response for each key")
    try:
        return object_decoder.decode(responses)
    except msgspec.DecodeError:
        raise InvalidParams("Invalid inputResponses: expected an object with one response for each key") from None


def task_result(task: DetailedTask) -> Raw:
    """Return the result of a task that has ended. Raises ProtocolError if it failed or was cancelled."""
    if task.status == "failed":
        error = task.error if isinstance(task.error, dict) else msgspec.json.decode(task.error or b"{}")
        raise ProtocolError(str(error.get("message", "")), error.get("data"), code=int(error.get("code", -32603)))
    if task.status == "cancelled":
        raise ProtocolError("The task was cancelled")
    result = task.result if task.result is not UNSET else {}
    return result if isinstance(result, Raw) else Raw(jsonrpc.encode(result))
