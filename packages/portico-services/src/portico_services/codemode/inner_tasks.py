"""Calls of a script that run as tasks: created once, polled to completion, and picked up again by a resumed run.

To the server, such a call comes from a 2026-07-28 client with task support, whatever the client of the run supports:
this module polls the task and forwards its elicitations to the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico import Context, PorticoError, ToolError
from portico.errors import InvalidParams
from portico.extend import Handler, error_from_response, to_json
from portico.types import CallToolResult, InputRequiredResult
from portico_services.codemode.tool_catalog import ScriptTool

# Bounds for the poll interval, whatever the server suggests.
MIN_POLL_SECONDS, DEFAULT_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5, 5.0
# How long to wait for the cancellation of tasks before the run ends without them.
CANCEL_TIMEOUT_SECONDS = 5.0
MAX_STATUS_CHARS = 500

ElicitationResolver = Callable[[], Any]


class _CreatedTask(Struct, rename="camel"):
    result_type: str = "complete"
    task_id: str = ""


class _TaskState(Struct, rename="camel"):
    status: str
    status_message: str | None = None
    poll_interval_ms: float | None = None
    result: Raw = Raw(b"")
    error: Any = None
    input_requests: Raw = Raw(b"{}")


_begun = msgspec.json.Decoder(_CreatedTask)
_state = msgspec.json.Decoder(_TaskState)
_keys = msgspec.json.Decoder(dict[str, Raw])
_questions = msgspec.json.Decoder(InputRequiredResult)


def task_id_in(result: Any) -> str | None:
    """Return the id of the task that a call has created, or None if it has returned a result."""
    if isinstance(result, CallToolResult) or (type(result) is Raw and b'"task"' not in bytes(result)):
        return None
    try:
        match = _begun.decode(to_json(result))
    except (msgspec.DecodeError, RecursionError):
        return None  # not a task; an invalid result is reported elsewhere
    return match.task_id if match.result_type == "task" else None


class InnerTasks:
    """The tasks of one run."""

    def __init__(self, ctx: Context, handler: Handler | None) -> None:
        self._ctx, self._handler = ctx, handler
        # Unfinished tasks, by call number.
        self._open: dict[int, str] = {}
        self._reports = 0

    async def create(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Await a request that may create a task. If this is cancelled, the created task is cancelled too."""
        beginning = asyncio.ensure_future(request)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The task may be created at this moment: wait for its id, since only then can it be cancelled.
            await asyncio.wait([beginning], timeout=CANCEL_TIMEOUT_SECONDS)
            if beginning.cancel() or beginning.exception() is not None:
                raise
            id = task_id_in(beginning.result())
            if id is not None:
                await self.end(id)
            raise

    async def wait_for_result(self, n: int, tool: ScriptTool, id: str, settle: ElicitationResolver) -> Any:
        """Wait for a task and return its result. Raises the error that the call would have raised."""
        self._open[n] = id
        # Waiting takes no resources, so the slot is released for other calls.
        async with self._ctx.release_slot():
            state = await self._final_state(n, tool, id, settle)
        self._open.pop(n, None)
        if state.status == "completed":
            return state.result
        if state.status == "cancelled":
            raise ToolError(f"The task of {tool.name} was cancelled.", error_type="ToolExecutionError")
        error = state.error if isinstance(state.error, dict) else {}
        code = error.get("code")
        raise error_from_response(
            code if isinstance(code, int) else -32603, str(error.get("message", "")), error.get("data")
        )

    async def _final_state(self, n: int, tool: ScriptTool, id: str, settle: ElicitationResolver) -> _TaskState:
        answered: set[str] = set()
        reported = None
        while True:
            state = await self._poll(tool, id)
            if state.status in ("completed", "failed", "cancelled"):
                return state
            if state.status_message not in (None, reported):
                reported = state.status_message
                self._report(tool, reported)
            if state.status == "input_required" and await self._answer_input(n, id, state, answered, settle):
                continue
            # The interval of the server is a suggestion: zero would busy-loop, and an hour would stall the script.
            wished = DEFAULT_POLL_SECONDS if state.poll_interval_ms is None else state.poll_interval_ms / 1000
            await asyncio.sleep(min(max(wished, MIN_POLL_SECONDS), MAX_POLL_SECONDS))

    async def _poll(self, tool: ScriptTool, id: str) -> _TaskState:
        try:
            return _state.decode(to_json(await self._request("tasks/get", {"taskId": id})))
        except InvalidParams:
            raise ToolError(
                f"The task of {tool.name} no longer exists, and its outcome is unknown. It is not called again: "
                "check its effect first.",
                error_type="OutcomeUnknown",
            ) from None

    def _report(self, tool: ScriptTool, message: str | None) -> None:
        """Report a task's status as progress of the run.

        The value is a counter: MCP requires progress to increase, and the values of several tasks would not.
        """
        self._reports += 1
        self._ctx.report_progress(self._reports, message=f"{tool.path}: {(message or '')[:MAX_STATUS_CHARS]}")

    async def _answer_input(
        self, n: int, id: str, state: _TaskState, answered: set[str], settle: ElicitationResolver
    ) -> bool:
        """Forward a task's input requests to the client. Return False if all of them were answered before."""
        # The server may still list a request shortly after it was answered.
        requests = {key: request for key, request in _keys.decode(state.input_requests).items() if key not in answered}
        if not requests:
            return False
        questions = _questions.decode(to_json({"resultType": "input_required", "inputRequests": requests}))
        responses = await self._ctx.answer_input_requests(questions, key=f"call-{n}", settle=settle)
        answered |= requests.keys()
        await self._request("tasks/update", {"taskId": id, "inputResponses": responses["inputResponses"]})
        return True

    async def cancel(self) -> None:
        """Cancel all unfinished tasks, because the run is over."""
        ids = list(self._open.values())
        self._open.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
                await asyncio.gather(*(self.end(id) for id in ids))

    async def end(self, id: str) -> None:
        """Request cancellation of a task. It may still complete first."""
        with suppress(PorticoError):
            await self._request("tasks/cancel", {"taskId": id})

    async def _request(self, method: str, params: dict[str, Any]) -> Any:
        return await self._ctx.request(method, params, key=method, handler=self._handler, tasks=True)
