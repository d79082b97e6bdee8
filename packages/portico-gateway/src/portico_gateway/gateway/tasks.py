"""Tasks through a gateway: both designs, for upstreams and clients of either, each known to its own principal alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from portico.protocol import notifications
from portico.protocol.content import EmptyResult
from portico.protocol.errors import Error, InvalidParams, MethodNotFound, MissingCapability
from portico.protocol.meta import SUBSCRIPTION_ID
from portico.protocol.methods import METHODS
from portico.protocol.subscriptions import ListenParams
from portico.protocol.tasks import EXTENSION, DetailedTask, ListTasksResult, Task
from portico.protocol.versions import MODERN
from portico.rpc.attribution import attribute_tasks
from portico.rpc.call import Call, Reply
from portico.rpc.fair_queue import caller_of
from portico.server.registry.catalog import ListCursors
from portico.server.registry.service import Answer, Service
from portico_gateway.gateway import task_translation as words
from portico_gateway.gateway.catalog_entries import result_at
from portico_gateway.gateway.local_tasks import OWN_ALIAS, BridgedTask, BridgedTasks
from portico_gateway.gateway.task_dispatcher import TaskCalls, answer_of, with_related
from portico_gateway.gateway.task_ids import TaskIds
from portico_gateway.gateway.upstream import Answered, GatewayUpstream
from portico_gateway.gateway.upstream_tasks import UpstreamTasks, ask, outcome_of, pause, read_answers, relay_of

# Which tasks were given to whom, for `tasks/list`; and how many of them are on a page.
MOST_GIVEN, MOST_GIVEN_PER_OWNER, PAGE = 100_000, 1000, 20

_METHODS = ("tasks/get", "tasks/cancel", "tasks/update", "tasks/result")

Found = tuple[GatewayUpstream, str] | BridgedTask
"""A task of an upstream by its own id, or one that goes on here."""


class _Advertising(Protocol):
    def advertise(self) -> None: ...


class GatewayTasks(Service):
    """The service by which a gateway answers for the tasks of its upstreams. `outward` makes of the result that an
    upstream gave for a tool's call the one that clients see."""

    name = "portico/gateway-tasks"

    def __init__(
        self,
        upstreams: Callable[[], dict[str, GatewayUpstream]],
        ids: TaskIds,
        cursors: ListCursors,
        outward: Callable[[GatewayUpstream, Call, Answered], Raw],
    ) -> None:
        super().__init__()
        self._upstreams = upstreams
        self._ids = ids
        self._cursors = cursors
        self._outward = outward
        self._bridged = BridgedTasks()
        self._theirs = UpstreamTasks()
        self._calls = TaskCalls(self._give, self._bridged, self._theirs, outward)
        # Whether a tool's call is not just a call; and what comes of it then.
        self.concerns, self.call = self._calls.concerns, self._calls.call
        self._given: OrderedDict[str, list[str]] = OrderedDict()
        # Set while the server has tasks of its own, which answer for what is not found here.
        self.beside_own = False

    async def close(self) -> None:
        await self._bridged.close()
        await self._theirs.close()

    # As a service

    def added(self, server: _Advertising) -> None:
        self._server = server

    def extensions(self) -> dict[str, dict[str, Any]]:
        able = any(one.traits.tasks or one.traits.sessions for one in self._upstreams().values())
        return {EXTENSION: {}} if able else {}

    def methods(self) -> dict[str, Answer]:
        if self.beside_own:
            return {}
        return {**dict.fromkeys(_METHODS, _unknown), "tasks/list": _none}

    def around(self, method: str, answer: Answer) -> Answer:
        if method in _METHODS:
            return partial(self._route, answer)
        if method == "tasks/list":
            return partial(self._list, answer)
        return partial(self._listen, answer) if method == "subscriptions/listen" else answer

    # Whose a task is

    def _give(self, call: Call, alias: str, id: str) -> str:
        outward = self._ids.outward(alias, id, call.principal)
        owner = caller_of(call)[0] if call.principal is not None else ""
        mine = self._given.setdefault(owner, [])
        mine.append(outward)
        del mine[:-MOST_GIVEN_PER_OWNER]
        self._given.move_to_end(owner)
        while len(self._given) * MOST_GIVEN_PER_OWNER > MOST_GIVEN and len(self._given) > 1:
            self._given.popitem(last=False)
        return outward

    def _find(self, outward: str, principal: Any) -> Found | None:
        upstreams = self._upstreams()
        found = self._ids.inward(outward, principal, [OWN_ALIAS, *upstreams])
        if found is None:
            return None
        alias, id = found
        return self._bridged.get(id) if alias == OWN_ALIAS else (upstreams[alias], id)

    # The methods

    async def _route(self, own: Answer, call: Call) -> Any:
        typed = METHODS[call.method].decode(call.params)
        modern = (call.revision or MODERN) >= MODERN
        found = self._find(typed.task_id, call.principal)
        if found is None:
            result = own(call)
            return await result if isinstance(result, Awaitable) else result
        if modern and call.method == "tasks/result":
            raise MethodNotFound(f"Method not found: {call.method}")
        if modern:
            _check(call)
        answers = {
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
            "tasks/result": self._result,
        }
        return await answers[call.method](call, found, typed.task_id)

    async def _detailed(self, call: Call, found: Found, outward: str) -> DetailedTask:
        if isinstance(found, BridgedTask):
            task = found.detailed()
        else:
            upstream, id = found
            task = await self._theirs.get(upstream, id, call)
            if isinstance(task.result, Raw):
                seen = replace(call, method="tools/call", revision=MODERN)
                task.result = self._outward(upstream, seen, Answered(task.result, MODERN))
        task.task_id = outward
        return task

    async def _get(self, call: Call, found: Found, outward: str) -> Any:
        task = await self._detailed(call, found, outward)
        return task if (call.revision or MODERN) >= MODERN else words.old(task)

    async def _update(self, call: Call, found: Found, outward: str) -> EmptyResult:
        responses = METHODS["tasks/update"].decode(call.params).input_responses
        if isinstance(found, BridgedTask):
            found.parked.answer(read_answers(responses))
        else:
            upstream, id = found
            await self._theirs.update(upstream, id, call, responses)
        return EmptyResult()

    async def _cancel(self, call: Call, found: Found, outward: str) -> Any:
        if isinstance(found, BridgedTask):
            ended = words.has_ended(found.detailed())
            found.cancel()
        else:
            upstream, id = found
            ended = not await self._theirs.cancel(upstream, id, call)
        if (call.revision or MODERN) >= MODERN:
            return EmptyResult()
        task = words.old(await self._detailed(call, found, outward))
        if ended:
            raise InvalidParams(f"The task is over: {task.status}")
        return task

    async def _result(self, call: Call, found: Found, outward: str) -> Any:
        """2025-11-25: wait for the end. Meanwhile the client that waits is asked what the task wants to know."""
        if isinstance(found, BridgedTask):
            return await self._result_here(call, found, outward)
        upstream, id = found
        if not await upstream.is_modern(call):
            answered = await ask(upstream, "tasks/result", id, replace(call, reply=_TaskReply(call.reply, outward)))
            result = self._outward(upstream, replace(call, method="tools/call"), answered)
        else:
            said = await self._calls.wait_for(upstream, id, call, call.reply.ask, outward)
            result = self._outward(upstream, replace(call, method="tools/call"), Answered(said, MODERN))
        return words.related(result, outward)

    async def _result_here(self, call: Call, task: BridgedTask, outward: str) -> Any:
        news = asyncio.Event()
        task.followers.add(news)
        try:
            while not words.has_ended(said := task.detailed()):
                for key, one in list(task.parked.asked.items()):
                    params = with_related(one.params, outward)
                    task.parked.answer({key: await answer_of(call.reply.ask, one.method, params)})
                await pause(news, said, heard=True)
        finally:
            task.followers.discard(news)
        result = outcome_of(task.detailed())
        return words.related(result_at("tools/call", result, MODERN, call.revision or MODERN), outward)

    async def _list(self, own: Answer, call: Call) -> Any:
        """2025-11-25: what this principal was given, after the tasks of the server itself."""
        if (call.revision or MODERN) >= MODERN or call.anonymous:
            raise MethodNotFound(f"Method not found: {call.method}")
        cursor = METHODS["tasks/list"].decode(call.params).cursor
        start = self._start(cursor)
        if start is None:
            page: ListTasksResult = await own(call)
            if not isinstance(page.next_cursor, str):
                page.next_cursor = self._cursors.issue("tasks/list of a gateway", "0")
            return page
        owner = caller_of(call)[0] if call.principal is not None else ""
        mine = self._given.get(owner, [])
        found = await asyncio.gather(*(self._listed(call, one) for one in mine[start : start + PAGE]))
        page = ListTasksResult(tasks=[one for one in found if one is not None])
        if start + PAGE < len(mine):
            page.next_cursor = self._cursors.issue("tasks/list of a gateway", str(start + PAGE))
        return page

    def _start(self, cursor: str | None) -> int | None:
        """Where a page begins; None: it is one of the server's own."""
        if cursor is None:
            return None if self.beside_own else 0
        try:
            return int(self._cursors.read("tasks/list of a gateway", cursor))
        except InvalidParams:
            if not self.beside_own:
                raise
            return None

    async def _listed(self, call: Call, outward: str) -> Task | None:
        """None: it is gone, or its upstream is away."""
        found = self._find(outward, call.principal)
        if found is None:
            return None
        try:
            task: Task = words.old(await self._detailed(call, found, outward), Task)
        except Error:
            return None
        return task

    # Listening

    def _listen(self, answer: Answer, call: Call) -> Any:
        wanted = call.typed().notifications.task_ids
        found = {id: one for id in dict.fromkeys(wanted or ()) if (one := self._find(id, call.principal)) is not None}
        return self._listen_to(answer, call, found) if found else answer(call)

    async def _listen_to(self, answer: Answer, call: Call, found: dict[str, Found]) -> Any:
        _check(call)
        self._server.advertise()
        params: ListenParams = call.typed()
        ids = [id for id in params.notifications.task_ids or () if self.beside_own or id in found]
        params = replace(params, notifications=replace(params.notifications, task_ids=ids))
        followers = [asyncio.create_task(self._follow(call, one, id)) for id, one in found.items()]
        try:
            return await answer(replace(call, read=(call.params, params)))
        finally:
            for one in followers:
                one.cancel()

    async def _follow(self, call: Call, found: Found, outward: str) -> None:
        """Tell a listener of a task until it has ended. The first thing that a listener hears is told elsewhere."""
        tag, before = {SUBSCRIPTION_ID: call.id}, None
        async with AsyncExitStack() as stack:
            if isinstance(found, BridgedTask):
                news = asyncio.Event()
                found.followers.add(news)
                stack.callback(found.followers.discard, news)
            elif await found[0].is_modern(call):
                relay = relay_of(found[0], [found[1]], partial(self._pass_on, call, tag, outward, found[0]), call)
                stack.callback(relay.end)
                await asyncio.get_running_loop().create_future()
            else:
                news = await stack.enter_async_context(self._theirs.followed(*found, call))
            while True:
                try:
                    task = await self._detailed(call, found, outward)
                except Error:
                    return
                if words.visible(task) != before:
                    before = words.visible(task)
                    call.reply.emit(notifications.TASK, words.notice(task, tag))
                if words.has_ended(task):
                    return
                await pause(news, task, heard=False)

    def _pass_on(
        self, call: Call, tag: dict[str, Any], outward: str, upstream: GatewayUpstream, method: str, params: Any
    ) -> None:
        """What an upstream tells of a task, under our id."""
        if method != notifications.TASK:
            return
        meta = {**(params.meta if isinstance(params.meta, dict) else {}), **tag}
        asked = params.input_requests if upstream.is_here else attribute_tasks(upstream.alias, params.input_requests)
        call.reply.emit(notifications.TASK, replace(params, task_id=outward, meta=meta, input_requests=asked))


def _unknown(call: Call) -> Any:
    if (call.revision or MODERN) >= MODERN:
        _check(call)
    id = METHODS[call.method].decode(call.params).task_id[:100]
    raise InvalidParams(f"Unknown task: {id}", {"taskId": id})


def _none(call: Call) -> ListTasksResult:
    return ListTasksResult(tasks=[])


def _check(call: Call) -> None:
    if not words.declares(call.capabilities):
        raise MissingCapability({"extensions": {EXTENSION: {}}})


class _TaskReply(Reply):
    """The way back of a request that waits for a task, which the client knows by another id."""

    def __init__(self, outer: Reply, outward: str) -> None:
        self._outer = outer
        self._outward = outward
        self.asks, self.conversation = outer.asks, outer.conversation

    def _emit(self, method: str, params: Any) -> None:
        self._outer.emit(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        return await self._outer.ask(method, with_related(params, self._outward))
