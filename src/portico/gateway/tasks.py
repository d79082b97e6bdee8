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

from portico.gateway import task_words as words
from portico.gateway.bridge import Parked, begin
from portico.gateway.bridged import OWN_ALIAS, BridgedTask, BridgedTasks
from portico.gateway.entries import Members, members, result_at
from portico.gateway.task_ids import TaskIds
from portico.gateway.upstream import Answered, GatewayUpstream
from portico.gateway.upstream_tasks import UpstreamTasks, ask, outcome_of, pause, read_answers, relay_of
from portico.rpc.call import Call, Reply
from portico.rpc.turns import caller_of
from portico.server.registry.cursors import ListCursors
from portico.server.registry.service import Answer, Service
from portico.wire import jsonrpc, notices
from portico.wire.content import EmptyResult
from portico.wire.errors import Error, InvalidParams, MethodNotFound, MissingCapability, ProtocolError
from portico.wire.jsonrpc import NOTHING
from portico.wire.meta import SUBSCRIPTION_ID
from portico.wire.methods import METHODS
from portico.wire.revisions import MODERN, V2025_11_25
from portico.wire.subscriptions import ListenParams
from portico.wire.tasks import EXTENSION, RELATED, DetailedTask, ListTasksResult, Task, TaskHandle

# How long a call may take to become a task of its upstream, before it is one of ours.
BEGIN_SECONDS = 2.0
# Which tasks were given to whom, for `tasks/list`; and how many of them are on a page.
MOST_GIVEN, MOST_GIVEN_PER_OWNER, PAGE = 100_000, 1000, 20

_METHODS = ("tasks/get", "tasks/cancel", "tasks/update", "tasks/result")

Found = tuple[GatewayUpstream, str] | BridgedTask
"""A task of an upstream by its own id, or one that goes on here."""


class _Advertising(Protocol):
    def advertise(self) -> None: ...


class TaskRoute(Protocol):
    """What has to be known of a tool to call it as a task."""

    @property
    def upstream(self) -> GatewayUpstream: ...
    @property
    def task_support(self) -> str: ...


Delegate = Callable[..., Awaitable[Any]]
"""Sends a call to the upstream of its tool: `delegate(call, detach=…)` gives what the upstream answered."""


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

    # Calls that may become tasks

    def concerns(self, call: Call, route: TaskRoute) -> bool:
        """Whether a call is not just a call."""
        revision = call.revision or MODERN
        if revision >= MODERN:
            return words.declares(call.capabilities) or route.task_support == "required"
        if revision == V2025_11_25:
            return b'"task"' in bytes(call.params) and call.typed().task is not NOTHING
        return route.task_support == "required" or route.upstream.traits.tasks

    async def call(self, call: Call, route: TaskRoute, delegate: Delegate) -> Any:
        upstream, revision = route.upstream, call.revision or MODERN
        modern = await upstream.is_modern(call)
        if revision >= MODERN:
            return await (self._modern_call if modern else self._bridged_call)(call, route, delegate)
        if revision < V2025_11_25:
            return await self._plain_call(call, route, delegate, modern)
        if not modern and not upstream.traits.tasks:
            raise MethodNotFound(f"Method not found: {call.typed().name!r} cannot be called as a task")
        if not modern:
            return self._old_answer(call, upstream, await delegate(call))
        return await self._call_as_task(call, upstream, delegate)

    async def _modern_call(self, call: Call, route: TaskRoute, delegate: Delegate) -> Any:
        """The upstream decides."""
        # 2026-07-28 has no such member, and one that is there all the same means nothing.
        answered = await delegate(_without_task(call))
        handle = words.begun(answered.result) if type(answered.result) is Raw else None
        if handle is None:
            return answered
        outward = self._give(call, route.upstream.alias, handle.task_id)
        return words.with_id(answered.result, outward)

    async def _bridged_call(self, call: Call, route: TaskRoute, delegate: Delegate) -> Any:
        """To an upstream with sessions: as a task if the tool may be one, or as soon as it asks."""
        upstream = route.upstream
        if not words.declares(call.capabilities):
            raise MissingCapability({"extensions": {EXTENSION: {}}})
        if upstream.traits.tasks and route.task_support in ("required", "optional"):
            answered = await delegate(_with_members(call, task={}))
            handle = words.begun(answered.result) if type(answered.result) is Raw else None
            return answered if handle is None else self._handle(call, upstream, handle, answered)
        return await delegate(_without_task(call), detach=partial(self._detach, call, upstream))

    def _detach(self, call: Call, upstream: GatewayUpstream, parked: Parked) -> TaskHandle:
        """A call that asks goes on as a task."""
        task = self._bridged.add(parked, partial(self._outward, upstream, replace(call, revision=MODERN)))
        handle = task.handle()
        handle.task_id = self._give(call, OWN_ALIAS, task.id)
        return handle

    def _handle(self, call: Call, upstream: GatewayUpstream, handle: TaskHandle, answered: Answered) -> TaskHandle:
        upstream.note_task(handle.task_id, answered.lane)
        return replace(handle, task_id=self._give(call, upstream.alias, handle.task_id))

    def _old_answer(self, call: Call, upstream: GatewayUpstream, answered: Answered) -> Any:
        """To a client of 2025-11-25 from an upstream of the same."""
        handle = words.begun(answered.result) if type(answered.result) is Raw else None
        return answered if handle is None else words.created(self._handle(call, upstream, handle, answered))

    async def _call_as_task(self, call: Call, upstream: GatewayUpstream, delegate: Delegate) -> Any:
        """A client of 2025-11-25 wants a task, and the upstream decides: where it decides otherwise, it is one here."""
        inner = _without_task(replace(call, capabilities=words.declaring(call.capabilities)))

        async def send(inside: Call, parked: Parked) -> Answered:
            answered: Answered = await delegate(inside)
            handle = words.begun(answered.result)
            if handle is None or not parked.binding:
                return answered
            # Its client has got another id already.
            return Answered(await self._wait_for(upstream, handle.task_id, inside, parked.ask), MODERN)

        parked = begin(inner, upstream.alias, b"", send, asks=True)
        assert parked.task is not None
        try:
            await asyncio.wait([parked.task], timeout=BEGIN_SECONDS)
            if parked.task.done() and (handle := words.begun(parked.task.result().result)) is not None:
                outward = self._give(call, upstream.alias, handle.task_id)
                return words.created(replace(handle, task_id=outward))
            parked.binding = b"given"
            return words.created(self._detach(call, upstream, parked))
        except BaseException:
            parked.task.cancel()
            raise

    async def _plain_call(self, call: Call, route: TaskRoute, delegate: Delegate, modern: bool) -> Any:
        """A client that knows no tasks calls a tool that has to be one: it is waited for here."""
        upstream = route.upstream
        if not modern:
            if route.task_support != "required":
                return await delegate(call)
            answered = await delegate(_with_members(call, task={}))
        else:
            try:
                return await delegate(call)
            except MissingCapability as missing:
                if EXTENSION not in missing.data.get("requiredCapabilities", {}).get("extensions", {}):
                    raise
            answered = await delegate(replace(call, capabilities=words.declaring(call.capabilities)))
        handle = words.begun(answered.result) if type(answered.result) is Raw else None
        if handle is None:
            return answered
        upstream.note_task(handle.task_id, answered.lane)
        if not modern:
            result = await ask(upstream, "tasks/result", handle.task_id, call)
            return replace(result, result=words.unrelated(result.result))
        return Answered(await self._wait_for(upstream, handle.task_id, call, call.reply.ask), MODERN)

    async def _wait_for(
        self,
        upstream: GatewayUpstream,
        id: str,
        call: Call,
        put: Callable[[str, Any], Awaitable[Raw]],
        outward: str = "",
    ) -> Raw:
        """The result of a task, however long it takes. What it asks is put to the client meanwhile."""
        answered: set[str] = set()
        modern = await upstream.is_modern(call)
        async with self._theirs.followed(upstream, id, call) as news:
            while True:
                task = await self._theirs.get(upstream, id, call)
                if words.has_ended(task):
                    return outcome_of(task)
                asked = task.input_requests if isinstance(task.input_requests, dict) else {}
                new = {key: one for key, one in asked.items() if key not in answered}
                for key, one in new.items():
                    answered.add(key)
                    params = one.get("params")
                    if outward:
                        params = {**(params or {}), "_meta": {RELATED: {"taskId": outward}}}
                    answer = await _answer_of(put, one["method"], params)
                    responses = Raw(jsonrpc.encode({key: answer}))
                    await self._theirs.update(upstream, id, call, responses)
                if not new:
                    await pause(news, task, heard=modern)

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
            said = await self._wait_for(upstream, id, call, call.reply.ask, outward)
            result = self._outward(upstream, replace(call, method="tools/call"), Answered(said, MODERN))
        return words.related(result, outward)

    async def _result_here(self, call: Call, task: BridgedTask, outward: str) -> Any:
        news = asyncio.Event()
        task.followers.add(news)
        try:
            while not words.has_ended(said := task.detailed()):
                for key, one in list(task.parked.asked.items()):
                    related = {"_meta": {RELATED: {"taskId": outward}}}
                    params = {**_as_dict(one.params), **related}
                    task.parked.answer({key: await _answer_of(call.reply.ask, one.method, params)})
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
                relay = relay_of(found[0], [found[1]], partial(self._pass_on, call, tag, outward), call)
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
                    call.reply.emit(notices.TASK, words.notice(task, tag))
                if words.has_ended(task):
                    return
                await pause(news, task, heard=False)

    def _pass_on(self, call: Call, tag: dict[str, Any], outward: str, method: str, params: Any) -> None:
        """What an upstream tells of a task, under our id."""
        if method != notices.TASK:
            return
        meta = {**(params.meta if isinstance(params.meta, dict) else {}), **tag}
        call.reply.emit(notices.TASK, replace(params, task_id=outward, meta=meta))


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


def _with_members(call: Call, **more: Any) -> Call:
    return replace(call, params=Raw(jsonrpc.encode({**members.decode(call.params), **more})), read=None)


def _without_task(call: Call) -> Call:
    if b'"task"' not in bytes(call.params):
        return call
    inside: Members = members.decode(call.params)
    inside.pop("task", None)
    return replace(call, params=Raw(jsonrpc.encode(inside)), read=None)


def _as_dict(params: Any) -> dict[str, Any]:
    return dict(members.decode(params if isinstance(params, Raw) else jsonrpc.encode(params))) if params else {}


async def _answer_of(put: Callable[[str, Any], Awaitable[Raw]], method: str, params: Any) -> Any:
    """A client's answer. One that refuses has declined, as far as there is a word for that."""
    try:
        return await put(method, params)
    except ProtocolError:
        if method != "elicitation/create":
            raise
        return {"action": "cancel"}


class _TaskReply(Reply):
    """The way back of a request that waits for a task, which the client knows by another id."""

    def __init__(self, outer: Reply, outward: str) -> None:
        self._outer = outer
        self._related = {"_meta": {RELATED: {"taskId": outward}}}
        self.asks, self.conversation = outer.asks, outer.conversation

    def _emit(self, method: str, params: Any) -> None:
        self._outer.emit(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        return await self._outer.ask(method, {**_as_dict(params), **self._related})
