"""Tasks through a gateway: both designs, for upstreams and clients of either. Tasks are visible to their principal
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import notifications
from portico.protocol.content import EmptyResult
from portico.protocol.errors import InvalidParams, MethodNotFound, MissingClientCapability, PorticoError
from portico.protocol.meta import SUBSCRIPTION_ID_META_KEY
from portico.protocol.methods import METHODS
from portico.protocol.subscriptions import SubscriptionsListenParams
from portico.protocol.tasks import EXTENSION, DetailedTask, ListTasksResult, Task, to_task_notification
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.attribution import attribute_tasks
from portico.rpc.call import Call, Reply
from portico.rpc.fair_queue import get_caller_key
from portico.server.registry.catalog import ListCursorCodec
from portico.server.registry.service import MethodHandler, Service
from portico_gateway.gateway import task_translation as words
from portico_gateway.gateway.catalog_entries import translate_result
from portico_gateway.gateway.local_tasks import LOCAL_ALIAS, LocalTask, LocalTasks
from portico_gateway.gateway.task_dispatcher import TaskDispatcher, ask_client, with_related
from portico_gateway.gateway.task_ids import TaskIdCodec
from portico_gateway.gateway.upstream import UpstreamProvider, UpstreamResponse
from portico_gateway.gateway.upstream_tasks import (
    UpstreamTasks,
    parse_input_responses,
    relay_task_notifications,
    send_task_request,
    task_result,
    wait_for_change,
)

# Issued task IDs that are remembered for `tasks/list`, in total and per caller; and the page size.
MAX_ISSUED_TASKS, MAX_ISSUED_TASKS_PER_CALLER, PAGE_SIZE = 100_000, 1000, 20

_METHODS = ("tasks/get", "tasks/cancel", "tasks/update", "tasks/result")

ResolvedTask = tuple[UpstreamProvider, str] | LocalTask
"A task of an upstream by its own ID, or a local task."


class _CapabilityHost(Protocol):
    tasks: Any

    def update_capabilities(self) -> None: ...


class GatewayTasks(Service):
    """Service that handles the tasks of the upstreams.

    `expose_result` converts an upstream's tool result for the client.
    """

    name = "portico/gateway-tasks"
    internal = True
    # Wraps the task service of the server itself.
    outermost = True

    def __init__(
        self,
        upstreams: Callable[[], dict[str, UpstreamProvider]],
        ids: TaskIdCodec,
        cursors: ListCursorCodec,
        expose_result: Callable[[UpstreamProvider, Call, UpstreamResponse], Raw],
    ) -> None:
        super().__init__()
        self._upstreams = upstreams
        self._ids = ids
        self._cursors = cursors
        self._outward = expose_result
        self._bridged = LocalTasks()
        self._upstream_tasks = UpstreamTasks()
        self._calls = TaskDispatcher(self._issue_task_id, self._bridged, self._upstream_tasks, expose_result)
        # Used by the router for tool calls.
        self.is_task_call, self.call = self._calls.is_task_call, self._calls.call
        self._issued: LruCache[str, list[str]] = LruCache(max(1, MAX_ISSUED_TASKS // MAX_ISSUED_TASKS_PER_CALLER))

    async def close(self) -> None:
        await self._bridged.close()
        await self._upstream_tasks.close()

    # Service interface

    def on_added(self, server: _CapabilityHost) -> None:
        self._server = server

    @property
    def server_has_tasks(self) -> bool:
        """Return whether the server has its own tasks, which handle IDs that are unknown here."""
        return self._server.tasks is not None

    def extensions(self) -> dict[str, dict[str, Any]]:
        able = any(upstream.features.tasks or upstream.features.sessions for upstream in self._upstreams().values())
        return {EXTENSION: {}} if able else {}

    def methods(self) -> dict[str, MethodHandler]:
        if self.server_has_tasks:
            return {}
        return {**dict.fromkeys(_METHODS, _unknown_task_error), "tasks/list": _method_not_found}

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        if method in _METHODS:
            return partial(self._route, handler)
        if method == "tasks/list":
            return partial(self._list, handler)
        return partial(self._listen, handler) if method == "subscriptions/listen" else handler

    # Ownership

    def _issue_task_id(self, call: Call, alias: str, id: str) -> str:
        """Return the exposed ID of a task and remember it for `tasks/list`."""
        outward = self._ids.encode(alias, id, call.principal)
        owner = get_caller_key(call)[0] if call.principal is not None else ""
        own_ids = self._issued.setdefault(owner, [])
        own_ids.append(outward)
        del own_ids[:-MAX_ISSUED_TASKS_PER_CALLER]
        return outward

    def _resolve(self, outward: str, principal: Any) -> ResolvedTask | None:
        """Return the task for an exposed ID, or None if it was not issued to this principal."""
        upstreams = self._upstreams()
        result = self._ids.decode(outward, principal, [LOCAL_ALIAS, *upstreams])
        if result is None:
            return None
        alias, id = result
        return self._bridged.get(id) if alias == LOCAL_ALIAS else (upstreams[alias], id)

    # Methods

    async def _route(self, own: MethodHandler, call: Call) -> Any:
        """Handle a method for a task of an upstream or a local task; pass other IDs to the server's own handler."""
        typed = METHODS[call.method].decode(call.params)
        modern = (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION
        match = self._resolve(typed.task_id, call.principal)
        if match is None:
            result = own(call)
            return await result if isinstance(result, Awaitable) else result
        if modern and call.method == "tasks/result":
            raise MethodNotFound(f"Method not found: {call.method}")
        if modern:
            _require_tasks_capability(call)
        answers = {
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
            "tasks/result": self._result,
        }
        return await answers[call.method](call, match, typed.task_id)

    async def _get_detailed_task(self, call: Call, resolved: ResolvedTask, outward: str) -> DetailedTask:
        """Return the state of a task under its exposed ID."""
        if isinstance(resolved, LocalTask):
            task = resolved.to_detailed_task()
        else:
            upstream, id = resolved
            task = await self._upstream_tasks.get_task(upstream, id, call)
            if isinstance(task.result, Raw):
                seen = replace(call, method="tools/call", protocol_version=FIRST_MODERN_VERSION)
                task.result = self._outward(upstream, seen, UpstreamResponse(task.result, FIRST_MODERN_VERSION))
        task.task_id = outward
        return task

    async def _get(self, call: Call, resolved: ResolvedTask, outward: str) -> Any:
        task = await self._get_detailed_task(call, resolved, outward)
        return (
            task
            if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION
            else words.to_2025_11_25(task)
        )

    async def _update(self, call: Call, resolved: ResolvedTask, outward: str) -> EmptyResult:
        responses = METHODS["tasks/update"].decode(call.params).input_responses
        if isinstance(resolved, LocalTask):
            resolved.parked.resolve_inputs(parse_input_responses(responses))
        else:
            upstream, id = resolved
            await self._upstream_tasks.send_input_responses(upstream, id, call, responses)
        return EmptyResult()

    async def _cancel(self, call: Call, resolved: ResolvedTask, outward: str) -> Any:
        if isinstance(resolved, LocalTask):
            ended = words.is_terminal(resolved.to_detailed_task())
            resolved.cancel()
        else:
            upstream, id = resolved
            ended = not await self._upstream_tasks.cancel_task(upstream, id, call)
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
            return EmptyResult()
        task = words.to_2025_11_25(await self._get_detailed_task(call, resolved, outward))
        if ended:
            raise InvalidParams(f"The task has already ended: {task.status}")
        return task

    async def _result(self, call: Call, resolved: ResolvedTask, outward: str) -> Any:
        """Handle tasks/result (2025-11-25): wait for the end of a task. Its input requests go to the waiting client."""
        if isinstance(resolved, LocalTask):
            return await self._local_result(call, resolved, outward)
        upstream, id = resolved
        if not await upstream.is_stateless(call):
            answered = await send_task_request(
                upstream, "tasks/result", id, replace(call, reply=_TaskReply(call.reply, outward))
            )
            result = self._outward(upstream, replace(call, method="tools/call"), answered)
        else:
            task = await self._calls.wait_for_task(upstream, id, call, call.reply.request, outward)
            result = self._outward(
                upstream, replace(call, method="tools/call"), UpstreamResponse(task, FIRST_MODERN_VERSION)
            )
        return words.add_related_task(result, outward)

    async def _local_result(self, call: Call, task: LocalTask, outward: str) -> Any:
        news = asyncio.Event()
        task.followers.add(news)
        try:
            while not words.is_terminal(state := task.to_detailed_task()):
                for key, request in list(task.parked.asked.items()):
                    params = with_related(request.params, outward)
                    task.parked.resolve_inputs({key: await ask_client(call.reply.request, request.method, params)})
                await wait_for_change(news, state, has_notifications=True)
        finally:
            task.followers.discard(news)
        result = task_result(task.to_detailed_task())
        return words.add_related_task(
            translate_result("tools/call", result, FIRST_MODERN_VERSION, call.protocol_version or FIRST_MODERN_VERSION),
            outward,
        )

    async def _list(self, own: MethodHandler, call: Call) -> Any:
        """Handle tasks/list (2025-11-25): return the server's own tasks, then those issued to this principal."""
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION or call.is_anonymous:
            raise MethodNotFound(f"Method not found: {call.method}")
        cursor = METHODS["tasks/list"].decode(call.params).cursor
        start = self._decode_cursor(cursor)
        if start is None:
            page: ListTasksResult = await own(call)
            if not isinstance(page.next_cursor, str):
                page.next_cursor = self._cursors.issue("tasks/list of a gateway", "0")
            return page
        owner = get_caller_key(call)[0] if call.principal is not None else ""
        own_ids = self._issued.get(owner, [])
        result = await asyncio.gather(*(self._list_entry(call, item) for item in own_ids[start : start + PAGE_SIZE]))
        page = ListTasksResult(tasks=[item for item in result if item is not None])
        if start + PAGE_SIZE < len(own_ids):
            page.next_cursor = self._cursors.issue("tasks/list of a gateway", str(start + PAGE_SIZE))
        return page

    def _decode_cursor(self, cursor: str | None) -> int | None:
        """Return the offset that a cursor encodes; None if it belongs to the server's own list."""
        if cursor is None:
            return None if self.server_has_tasks else 0
        try:
            return int(self._cursors.read("tasks/list of a gateway", cursor))
        except InvalidParams:
            if not self.server_has_tasks:
                raise
            return None

    async def _list_entry(self, call: Call, outward: str) -> Task | None:
        """Return a task for `tasks/list`, or None if it is gone or its upstream is unavailable."""
        result = self._resolve(outward, call.principal)
        if result is None:
            return None
        try:
            task: Task = words.to_2025_11_25(await self._get_detailed_task(call, result, outward), Task)
        except PorticoError:
            return None
        return task

    # Notifications

    def _listen(self, answer: MethodHandler, call: Call) -> Any:
        """Handle subscriptions/listen, if it names tasks of an upstream or local tasks."""
        task_ids = call.decode_params().notifications.task_ids
        result = {
            id: resolved
            for id in dict.fromkeys(task_ids or ())
            if (resolved := self._resolve(id, call.principal)) is not None
        }
        return self._listen_to(answer, call, result) if result else answer(call)

    async def _listen_to(self, answer: MethodHandler, call: Call, resolved: dict[str, ResolvedTask]) -> Any:
        _require_tasks_capability(call)
        self._server.update_capabilities()
        params: SubscriptionsListenParams = call.decode_params()
        ids = [id for id in params.notifications.task_ids or () if self.server_has_tasks or id in resolved]
        params = replace(params, notifications=replace(params.notifications, task_ids=ids))
        followers = [
            asyncio.create_task(self._notify_until_done(call, follower, id)) for id, follower in resolved.items()
        ]
        try:
            return await answer(replace(call, read=(call.params, params)))
        finally:
            for follower in followers:
                follower.cancel()

    async def _notify_until_done(self, call: Call, resolved: ResolvedTask, outward: str) -> None:
        """Notify a listener of a task until it has ended. The subscription acknowledgement is sent elsewhere."""
        tag, before = {SUBSCRIPTION_ID_META_KEY: call.id}, None
        async with AsyncExitStack() as stack:
            if isinstance(resolved, LocalTask):
                news = asyncio.Event()
                resolved.followers.add(news)
                stack.callback(resolved.followers.discard, news)
            elif await resolved[0].is_stateless(call):
                relay = relay_task_notifications(
                    resolved[0],
                    [resolved[1]],
                    partial(self._forward_notification, call, tag, outward, resolved[0]),
                    call,
                )
                stack.callback(relay.close)
                await asyncio.get_running_loop().create_future()
            else:
                news = await stack.enter_async_context(self._upstream_tasks.watch_task(*resolved, call))
            while True:
                try:
                    task = await self._get_detailed_task(call, resolved, outward)
                except PorticoError:
                    return
                if words.observable_state(task) != before:
                    before = words.observable_state(task)
                    call.reply.notify(notifications.TASK_UPDATED, to_task_notification(task, tag))
                if words.is_terminal(task):
                    return
                await wait_for_change(news, task, has_notifications=False)

    def _forward_notification(
        self, call: Call, tag: dict[str, Any], outward: str, upstream: UpstreamProvider, method: str, params: Any
    ) -> None:
        """Forward an upstream's task notification under the exposed ID."""
        if method != notifications.TASK_UPDATED:
            return
        meta = {**(params.meta if isinstance(params.meta, dict) else {}), **tag}
        requests = params.input_requests if upstream.is_here else attribute_tasks(upstream.alias, params.input_requests)
        call.reply.notify(
            notifications.TASK_UPDATED, replace(params, task_id=outward, meta=meta, input_requests=requests)
        )


def _unknown_task_error(call: Call) -> Any:
    if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
        _require_tasks_capability(call)
    id = METHODS[call.method].decode(call.params).task_id[:100]
    raise InvalidParams(f"Unknown task: {id}", {"taskId": id})


def _method_not_found(call: Call) -> ListTasksResult:
    return ListTasksResult(tasks=[])


def _require_tasks_capability(call: Call) -> None:
    if not words.supports_tasks(call.capabilities):
        raise MissingClientCapability({"extensions": {EXTENSION: {}}})


class _TaskReply(Reply):
    """Reply that adds the exposed task ID to requests of a task."""

    def __init__(self, outer: Reply, outward: str) -> None:
        self._outer = outer
        self._outward = outward
        self.can_request, self.connection = outer.can_request, outer.connection

    def _notify(self, method: str, params: Any) -> None:
        self._outer.notify(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        return await self._outer.request(method, with_related(params, self._outward))
