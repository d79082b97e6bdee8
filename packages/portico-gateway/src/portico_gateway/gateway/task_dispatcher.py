"""A tool's call through a gateway that is, or becomes, a task: who decides depends on the two designs that meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import MethodNotFound, MissingCapability, ProtocolError
from portico.protocol.jsonrpc import NOTHING
from portico.protocol.tasks import EXTENSION, RELATED, TaskHandle
from portico.protocol.versions import MODERN, V2025_11_25
from portico.rpc.call import Call
from portico_gateway.gateway import task_translation as words
from portico_gateway.gateway.catalog_entries import Members, members
from portico_gateway.gateway.local_tasks import OWN_ALIAS, BridgedTasks
from portico_gateway.gateway.server_request_bridge import Parked, begin
from portico_gateway.gateway.upstream import Answered, GatewayUpstream
from portico_gateway.gateway.upstream_tasks import UpstreamTasks, ask, outcome_of, pause

# How long a call may take to become a task of its upstream, before it is one of ours.
BEGIN_SECONDS = 2.0


class TaskRoute(Protocol):
    """What has to be known of a tool to call it as a task."""

    @property
    def upstream(self) -> GatewayUpstream: ...
    @property
    def task_support(self) -> str: ...


Delegate = Callable[..., Awaitable[Any]]
"""Sends a call to the upstream of its tool: `delegate(call, detach=…)` gives what the upstream answered."""


class TaskCalls:
    """`give` makes the id that a client gets of the alias and the upstream's own, `outward` the result that it sees."""

    def __init__(
        self,
        give: Callable[[Call, str, str], str],
        bridged: BridgedTasks,
        theirs: UpstreamTasks,
        outward: Callable[[GatewayUpstream, Call, Answered], Raw],
    ) -> None:
        self._give = give
        self._bridged = bridged
        self._theirs = theirs
        self._outward = outward

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
            return Answered(await self.wait_for(upstream, handle.task_id, inside, parked.ask), MODERN)

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
                if EXTENSION not in missing.extensions:
                    raise
            answered = await delegate(replace(call, capabilities=words.declaring(call.capabilities)))
        handle = words.begun(answered.result) if type(answered.result) is Raw else None
        if handle is None:
            return answered
        upstream.note_task(handle.task_id, answered.lane)
        if not modern:
            result = await ask(upstream, "tasks/result", handle.task_id, call)
            return replace(result, result=words.unrelated(result.result))
        return Answered(await self.wait_for(upstream, handle.task_id, call, call.reply.ask), MODERN)

    async def wait_for(
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
                        params = with_related(params, outward)
                    answer = await answer_of(put, one["method"], params)
                    responses = Raw(jsonrpc.encode({key: answer}))
                    await self._theirs.update(upstream, id, call, responses)
                if not new:
                    await pause(news, task, heard=modern)


def _with_members(call: Call, **more: Any) -> Call:
    return replace(call, params=Raw(jsonrpc.encode({**members.decode(call.params), **more})), read=None)


def _without_task(call: Call) -> Call:
    if b'"task"' not in bytes(call.params):
        return call
    inside: Members = members.decode(call.params)
    inside.pop("task", None)
    return replace(call, params=Raw(jsonrpc.encode(inside)), read=None)


def with_related(params: Any, id: str) -> dict[str, Any]:
    """Return the params of a request to a client with the id of the task that it belongs to."""
    inside = members.decode(params if isinstance(params, Raw) else jsonrpc.encode(params)) if params else {}
    meta = members.decode(inside["_meta"]) if inside.get("_meta") else {}
    return {**inside, "_meta": {**meta, RELATED: {"taskId": id}}}


async def answer_of(put: Callable[[str, Any], Awaitable[Raw]], method: str, params: Any) -> Any:
    """A client's answer. One that refuses has declined, as far as there is a word for that."""
    try:
        return await put(method, params)
    except ProtocolError:
        if method != "elicitation/create":
            raise
        return {"action": "cancel"}
