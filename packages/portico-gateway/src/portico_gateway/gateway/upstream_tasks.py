"""Tasks of upstreams, asked for as 2026-07-28 does it, whichever design the upstream has.

2025-11-25 gives the outcome of a task, and puts its questions, only to a request that waits for its end; so for a task
that asks, such a request waits here, and what it is asked goes to the client that comes for the task.
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
from portico.protocol.subscriptions import Filter
from portico.protocol.tasks import DetailedTask
from portico.protocol.versions import MODERN
from portico.rpc.attribution import attribute_tasks
from portico.rpc.call import Call, Emit
from portico.rpc.change_relay import ChangeRelay
from portico_gateway.gateway import task_translation as words
from portico_gateway.gateway.catalog_entries import result_at
from portico_gateway.gateway.server_request_bridge import GATHER_SECONDS, Parked, begin
from portico_gateway.gateway.upstream import Answered, GatewayUpstream

MOST_WAITING = 10_000
# How long is waited for a client that does not come for a task any more.
WAITING_SECONDS = 600.0
# How long a question may take to come that is said to be there.
QUESTION_SECONDS = 2.0
# How often a task is looked at that is waited for, where the upstream tells of its changes, and where it does not.
MISSED_SECONDS, SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 10.0, 0.05, 5.0

_answers = msgspec.json.Decoder(dict[str, Raw])


class UpstreamTasks:
    """Those that are waited for, of all upstreams of a gateway."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, str], Parked] = OrderedDict()

    async def get(self, upstream: GatewayUpstream, id: str, call: Call) -> DetailedTask:
        """How a task stands, with its outcome or its questions."""
        answered = await ask(upstream, "tasks/get", id, call)
        task = words.read(answered.result)
        if answered.revision >= MODERN:
            if not upstream.is_here:
                task.input_requests = attribute_tasks(upstream.alias, task.input_requests)
            return task
        waiting = self._waiting.get((upstream.alias, id))
        if task.status == "input_required":
            waiting = waiting or self._wait(upstream, id, call)
            await _asked_or_done(waiting)
            task.input_requests = dict(waiting.asked)
        elif task.status in ("completed", "failed"):
            self._waiting.pop((upstream.alias, id), None)
            await self._add_outcome(task, upstream, id, call, waiting)
        return task

    async def _add_outcome(
        self, task: DetailedTask, upstream: GatewayUpstream, id: str, call: Call, waiting: Parked | None
    ) -> None:
        try:
            if waiting is not None and waiting.task is not None:
                answered = await waiting.task
            else:
                answered = await ask(upstream, "tasks/result", id, call)
        except ProtocolError as wrong:
            task.status = "failed"
            task.error = {"code": wrong.code_at(MODERN), "message": wrong.message, "data": wrong.data}
            return
        task.status = "completed"
        task.result = result_at("tools/call", words.unrelated(answered.result), answered.revision, MODERN)

    def _wait(self, upstream: GatewayUpstream, id: str, call: Call) -> Parked:
        """Have a request wait for the end of a task, so that its questions come."""
        self._sweep()

        async def send(inner: Call, parked: Parked) -> Answered:
            return await ask(upstream, "tasks/result", id, inner, parked)

        waiting = begin(call, upstream.alias, b"", send)
        waiting.until = time.monotonic() + WAITING_SECONDS
        self._waiting[upstream.alias, id] = waiting
        return waiting

    def _sweep(self) -> None:
        now = time.monotonic()
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if len(self._waiting) < MOST_WAITING and oldest.until > now:
                return
            _, parked = self._waiting.popitem(last=False)
            if parked.task is not None:
                parked.task.cancel()

    async def update(self, upstream: GatewayUpstream, id: str, call: Call, responses: Raw) -> None:
        """Answer what a task asks."""
        given = read_answers(responses)
        waiting = self._waiting.get((upstream.alias, id))
        if waiting is not None:
            waiting.answer(given)
            return
        if await upstream.is_modern(call):
            await ask(upstream, "tasks/update", id, call, inputResponses=responses)
            return
        # Nothing was asked of this client yet; and what it names may be gone.
        await ask(upstream, "tasks/get", id, call)

    async def cancel(self, upstream: GatewayUpstream, id: str, call: Call) -> bool:
        """Ask for its end. Whether it was under way."""
        if await upstream.is_modern(call):
            before = words.read((await ask(upstream, "tasks/get", id, call)).result)
            await ask(upstream, "tasks/cancel", id, call)
            return not words.has_ended(before)
        try:
            await ask(upstream, "tasks/cancel", id, call)
        except InvalidParams:
            # 2025-11-25 says so of what is over already, and of what there never was.
            if not words.has_ended(words.read((await ask(upstream, "tasks/get", id, call)).result)):
                raise
            return False
        return True

    @asynccontextmanager
    async def followed(self, upstream: GatewayUpstream, id: str, call: Call) -> AsyncIterator[asyncio.Event]:
        """An event that is set when a task has changed, as far as its upstream tells of it."""
        news = asyncio.Event()
        relay = None
        if await upstream.is_modern(call):
            relay = relay_of(upstream, [id], lambda method, params: news.set(), call)
        upstream.task_news.setdefault(id, set()).add(news)
        try:
            yield news
        finally:
            if relay is not None:
                relay.end()
            upstream.task_news[id].discard(news)
            if not upstream.task_news[id]:
                del upstream.task_news[id]

    async def close(self) -> None:
        tasks = [one.task for one in self._waiting.values() if one.task is not None]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def relay_of(upstream: GatewayUpstream, ids: list[str], tell: Emit, call: Call) -> ChangeRelay:
    """Hear of tasks of an upstream that has the extension."""
    handler, able = upstream.changes.handler, words.declaring(call.capabilities)
    return ChangeRelay(handler, Filter(task_ids=ids), tell, principal=call.principal, capabilities=able)


async def ask(
    upstream: GatewayUpstream, method: str, id: str, call: Call, parked: Parked | None = None, **more: Any
) -> Answered:
    """The answer to a request about a task, on behalf of a client's own."""
    params = Raw(jsonrpc.encode({"taskId": id, **more}))
    asking = replace(call, method=method, params=params, read=None, progress_token=None)
    if (call.revision or MODERN) < MODERN or not words.declares(call.capabilities):
        asking = replace(asking, capabilities=words.declaring(call.capabilities))
    return await upstream.about_task(asking, id, parked)


async def pause(news: asyncio.Event, task: DetailedTask, heard: bool) -> None:
    """Wait for a change, or until it is time to look."""
    seconds = MISSED_SECONDS if heard else (task.poll_interval_ms or 500) / 1000
    try:
        async with asyncio.timeout(max(SHORTEST_POLL_SECONDS, min(seconds, LONGEST_POLL_SECONDS))):
            await news.wait()
    except TimeoutError:
        pass
    news.clear()


async def _asked_or_done(waiting: Parked) -> None:
    """What it asks is on its way; that of a body that asks several things comes together."""
    assert waiting.task is not None
    end = time.monotonic() + QUESTION_SECONDS
    while not waiting.asked and not waiting.task.done() and time.monotonic() < end:
        waiting.news.clear()
        news = asyncio.ensure_future(waiting.news.wait())
        try:
            await asyncio.wait([waiting.task, news], timeout=QUESTION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
    await asyncio.wait([waiting.task], timeout=GATHER_SECONDS)


def read_answers(responses: Raw) -> dict[str, Raw]:
    if not responses:
        raise InvalidParams("Missing inputResponses: an object with one answer for each key")
    try:
        return _answers.decode(responses)
    except msgspec.DecodeError:
        raise InvalidParams("Invalid inputResponses: expected an object with one answer for each key") from None


def outcome_of(task: DetailedTask) -> Raw:
    """The result of a task that has ended. Raises the error that it failed with."""
    if task.status == "failed":
        error = task.error if isinstance(task.error, dict) else msgspec.json.decode(task.error or b"{}")
        raise ProtocolError(str(error.get("message", "")), error.get("data"), code=int(error.get("code", -32603)))
    if task.status == "cancelled":
        raise ProtocolError("The task was cancelled")
    result = task.result if task.result is not UNSET else {}
    return result if isinstance(result, Raw) else Raw(jsonrpc.encode(result))
