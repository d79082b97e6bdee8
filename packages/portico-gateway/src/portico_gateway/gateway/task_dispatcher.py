"""Tool calls that are, or become, tasks. The handling depends on the task designs of the client and the upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import MethodNotFound, MissingClientCapability, ProtocolError
from portico.protocol.jsonrpc import EMPTY_RAW, object_decoder
from portico.protocol.tasks import EXTENSION, RELATED_TASK_META_KEY, TaskHandle
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_11_25
from portico.rpc.call import Call
from portico_gateway.gateway import task_translation as words
from portico_gateway.gateway.catalog_entries import RawObject
from portico_gateway.gateway.local_tasks import LOCAL_ALIAS, LocalTasks
from portico_gateway.gateway.server_request_bridge import SuspendedCall, start_call
from portico_gateway.gateway.upstream import UpstreamProvider, UpstreamResponse
from portico_gateway.gateway.upstream_tasks import UpstreamTasks, send_task_request, task_result, wait_for_change

# Time in which an upstream may turn a call into a task; afterwards it becomes a local task.
TASK_START_TIMEOUT_SECONDS = 2.0


class TaskRoute(Protocol):
    """Route of a tool, as needed to call it as a task."""

    @property
    def upstream(self) -> UpstreamProvider: ...
    @property
    def task_support(self) -> str: ...


Forward = Callable[..., Awaitable[Any]]
"Sends a call to the upstream of its tool: `delegate(call, detach=…)` returns the upstream's response."


class TaskDispatcher:
    """Dispatches tool calls that may become tasks.

    `issue_task_id` creates the client's task ID from the alias and the upstream's ID; `expose_result` converts an
    upstream's result for the client.
    """

    def __init__(
        self,
        issue_task_id: Callable[[Call, str, str], str],
        local_tasks: LocalTasks,
        upstream_tasks: UpstreamTasks,
        expose_result: Callable[[UpstreamProvider, Call, UpstreamResponse], Raw],
    ) -> None:
        self._give = issue_task_id
        self._bridged = local_tasks
        self._upstream_tasks = upstream_tasks
        self._outward = expose_result

    def is_task_call(self, call: Call, route: TaskRoute) -> bool:
        """Return whether a call may become a task."""
        revision = call.protocol_version or FIRST_MODERN_VERSION
        if revision >= FIRST_MODERN_VERSION:
            return words.supports_tasks(call.capabilities) or route.task_support == "required"
        # The client decides in 2025-11-25. The substring test avoids decoding the arguments of every ordinary call.
        if revision == V2025_11_25:
            return b'"task"' in bytes(call.params) and call.decode_params().task is not EMPTY_RAW
        return route.task_support == "required" or route.upstream.features.tasks

    async def call(self, call: Call, route: TaskRoute, delegate: Forward) -> Any:
        """Call a tool, possibly as a task. Return its result or the handle of a task."""
        upstream, revision = route.upstream, call.protocol_version or FIRST_MODERN_VERSION
        modern = await upstream.is_stateless(call)
        if revision >= FIRST_MODERN_VERSION:
            return await (self._call_stateless_upstream if modern else self._call_session_upstream)(
                call, route, delegate
            )
        if revision < V2025_11_25:
            return await self._call_and_wait(call, route, delegate, modern)
        # 2025-11-25, basic/utilities/tasks: a task for a tool without task support should be answered with -32601.
        if not modern and not upstream.features.tasks:
            raise MethodNotFound(f"Method not found: {call.decode_params().name!r} does not support tasks")
        if not modern:
            return self._translate_2025_11_25(call, upstream, await delegate(call))
        return await self._call_as_task(call, upstream, delegate)

    async def _call_stateless_upstream(self, call: Call, route: TaskRoute, delegate: Forward) -> Any:
        """Call a 2026-07-28 upstream, which decides itself whether the call becomes a task."""
        # 2026-07-28 has no `task` member; a member sent by mistake is removed.
        answered = await delegate(_without_task(call))
        handle = words.parse_created_task(answered.result) if type(answered.result) is Raw else None
        if handle is None:
            return answered
        outward = self._give(call, route.upstream.alias, handle.task_id)
        return words.replace_task_id(answered.result, outward)

    async def _call_session_upstream(self, call: Call, route: TaskRoute, delegate: Forward) -> Any:
        """Call an upstream with sessions: as a task if the tool supports it, or continue as a task if it needs
        input.
        """
        upstream = route.upstream
        # Before the upstream is called: a task would be created that this client cannot follow.
        if not words.supports_tasks(call.capabilities):
            raise MissingClientCapability({"extensions": {EXTENSION: {}}})
        if upstream.features.tasks and route.task_support in ("required", "optional"):
            answered = await delegate(_with_members(call, task={}))
            handle = words.parse_created_task(answered.result) if type(answered.result) is Raw else None
            return answered if handle is None else self._issue_task_id(call, upstream, handle, answered)
        return await delegate(_without_task(call), detach=partial(self._continue_as_task, call, upstream))

    def _continue_as_task(self, call: Call, upstream: UpstreamProvider, parked: SuspendedCall) -> TaskHandle:
        """Continue a call that needs input as a local task."""
        task = self._bridged.add(
            parked, partial(self._outward, upstream, replace(call, protocol_version=FIRST_MODERN_VERSION))
        )
        handle = task.to_handle()
        handle.task_id = self._give(call, LOCAL_ALIAS, task.id)
        return handle

    def _issue_task_id(
        self, call: Call, upstream: UpstreamProvider, handle: TaskHandle, answered: UpstreamResponse
    ) -> TaskHandle:
        upstream.bind_task(handle.task_id, answered.lane)
        return replace(handle, task_id=self._give(call, upstream.alias, handle.task_id))

    def _translate_2025_11_25(self, call: Call, upstream: UpstreamProvider, answered: UpstreamResponse) -> Any:
        """Convert the response of a 2025-11-25 upstream for a client of the same version."""
        handle = words.parse_created_task(answered.result) if type(answered.result) is Raw else None
        return (
            answered
            if handle is None
            else words.to_create_task_result(self._issue_task_id(call, upstream, handle, answered))
        )

    async def _call_as_task(self, call: Call, upstream: UpstreamProvider, delegate: Forward) -> Any:
        """Call a 2026-07-28 upstream for a 2025-11-25 client that requested a task.

        The upstream decides whether the call becomes a task; otherwise it runs as a local task.
        """
        inner = _without_task(replace(call, capabilities=words.with_tasks_capability(call.capabilities)))

        async def send(inside: Call, parked: SuspendedCall) -> UpstreamResponse:
            answered: UpstreamResponse = await delegate(inside)
            handle = words.parse_created_task(answered.result)
            if handle is None or not parked.binding:
                return answered
            # The client already received the ID of the local task, so wait for the upstream's task here.
            return UpstreamResponse(
                await self.wait_for_task(upstream, handle.task_id, inside, parked.request_input), FIRST_MODERN_VERSION
            )

        parked = start_call(inner, upstream.alias, b"", send, forward_requests=True)
        assert parked.task is not None
        try:
            # `wait` rather than `wait_for`, which would cancel the call that continues as a local task.
            await asyncio.wait([parked.task], timeout=TASK_START_TIMEOUT_SECONDS)
            if parked.task.done() and (handle := words.parse_created_task(parked.task.result().result)) is not None:
                outward = self._give(call, upstream.alias, handle.task_id)
                return words.to_create_task_result(replace(handle, task_id=outward))
            # From now on `send` waits for a task of the upstream, because the client has the ID of the local one.
            parked.binding = b"given"
            return words.to_create_task_result(self._continue_as_task(call, upstream, parked))
        # Cancellation too: without this client the call would run on, and its result would be lost.
        except BaseException:
            parked.task.cancel()
            raise

    async def _call_and_wait(self, call: Call, route: TaskRoute, delegate: Forward, modern: bool) -> Any:
        """Call a tool that requires a task for a client without task support, and wait for its result."""
        upstream = route.upstream
        if not modern:
            if route.task_support != "required":
                return await delegate(call)
            answered = await delegate(_with_members(call, task={}))
        else:
            try:
                return await delegate(call)
            # The tool requires tasks. Other missing capabilities are the client's own and must reach it.
            except MissingClientCapability as missing:
                if EXTENSION not in missing.required_extensions:
                    raise
            answered = await delegate(replace(call, capabilities=words.with_tasks_capability(call.capabilities)))
        handle = words.parse_created_task(answered.result) if type(answered.result) is Raw else None
        if handle is None:
            return answered
        upstream.bind_task(handle.task_id, answered.lane)
        if not modern:
            result = await send_task_request(upstream, "tasks/result", handle.task_id, call)
            return replace(result, result=words.remove_related_task(result.result))
        return UpstreamResponse(
            await self.wait_for_task(upstream, handle.task_id, call, call.reply.request), FIRST_MODERN_VERSION
        )

    async def wait_for_task(
        self,
        upstream: UpstreamProvider,
        id: str,
        call: Call,
        send: Callable[[str, Any], Awaitable[Raw]],
        outward: str = "",
    ) -> Raw:
        """Wait for the result of a task, without a time limit. Meanwhile forward its input requests to the client."""
        answered: set[str] = set()
        modern = await upstream.is_stateless(call)
        async with self._upstream_tasks.watch_task(upstream, id, call) as news:
            while True:
                task = await self._upstream_tasks.get_task(upstream, id, call)
                if words.is_terminal(task):
                    return task_result(task)
                requests = task.input_requests if isinstance(task.input_requests, dict) else {}
                new = {key: request for key, request in requests.items() if key not in answered}
                for key, request in new.items():
                    # A later poll may still list the request, which must not be sent to the client again.
                    answered.add(key)
                    params = request.get("params")
                    if outward:
                        params = with_related(params, outward)
                    answer = await ask_client(send, request["method"], params)
                    responses = Raw(jsonrpc.encode({key: answer}))
                    await self._upstream_tasks.send_input_responses(upstream, id, call, responses)
                if not new:
                    await wait_for_change(news, task, has_notifications=modern)


def _with_members(call: Call, **more: Any) -> Call:
    return replace(call, params=Raw(jsonrpc.encode({**object_decoder.decode(call.params), **more})), read=None)


def _without_task(call: Call) -> Call:
    if b'"task"' not in bytes(call.params):
        return call
    inside: RawObject = object_decoder.decode(call.params)
    inside.pop("task", None)
    return replace(call, params=Raw(jsonrpc.encode(inside)), read=None)


def with_related(params: Any, id: str) -> dict[str, Any]:
    """Return the params of a client request with the ID of the related task."""
    inside = object_decoder.decode(params if isinstance(params, Raw) else jsonrpc.encode(params)) if params else {}
    meta = object_decoder.decode(inside["_meta"]) if inside.get("_meta") else {}
    return {**inside, "_meta": {**meta, RELATED_TASK_META_KEY: {"taskId": id}}}


async def ask_client(send_request: Callable[[str, Any], Awaitable[Raw]], method: str, params: Any) -> Any:
    """Return the client's response. A refused elicitation counts as cancelled; other errors are raised."""
    try:
        return await send_request(method, params)
    except ProtocolError:
        # Only elicitation has an answer that means "no"; an upstream must not mistake an error for a result.
        if method != "elicitation/create":
            raise
        return {"action": "cancel"}
