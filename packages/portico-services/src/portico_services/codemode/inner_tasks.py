"""Calls of a script that are tasks: begun once, followed to their end, and taken up again by a run that goes on.

To its server such a call comes from a client of 2026-07-28 that can deal with tasks, whatever the client of the run can
do: it is this side that asks how the task stands, and puts its questions to the person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico import Context, Error, ToolError
from portico.extend import CallToolResult, Handler, InputRequiredResult, InvalidParams, from_wire, to_json
from portico_services.codemode.tool_catalog import ScriptTool

# How often a task is looked at, whatever its server wishes.
SHORTEST_POLL_SECONDS, USUAL_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 0.5, 5.0
# How long a task may take to hear that it is cancelled, before the run ends without it.
CANCEL_SECONDS = 5.0
LONGEST_MESSAGE = 500

Settle = Callable[[], Any]


class _BegunTask(Struct, rename="camel"):
    result_type: str = "complete"
    task_id: str = ""


class _FollowedTask(Struct, rename="camel"):
    status: str
    status_message: str | None = None
    poll_interval_ms: float | None = None
    result: Raw = Raw(b"")
    error: Any = None
    input_requests: Raw = Raw(b"{}")


_begun = msgspec.json.Decoder(_BegunTask)
_state = msgspec.json.Decoder(_FollowedTask)
_keys = msgspec.json.Decoder(dict[str, Raw])
_questions = msgspec.json.Decoder(InputRequiredResult)


def task_in(result: Any) -> str | None:
    """The id of the task that a call has become; None if it has come to a result."""
    if isinstance(result, CallToolResult) or (type(result) is Raw and b'"task"' not in bytes(result)):
        return None
    try:
        found = _begun.decode(to_json(result))
    except (msgspec.DecodeError, RecursionError):
        return None  # no task, and what else it is not is said elsewhere
    return found.task_id if found.result_type == "task" else None


class InnerTasks:
    """The tasks of one run."""

    def __init__(self, ctx: Context, handler: Handler | None) -> None:
        self._ctx, self._handler = ctx, handler
        # Those that have not ended, by the number of the call.
        self._open: dict[int, str] = {}
        self._reports = 0

    async def begun(self, request: Coroutine[Any, Any, Any]) -> Any:
        """What a request came to that may begin a task. If this is cancelled meanwhile, so is the task."""
        beginning = asyncio.ensure_future(request)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await asyncio.wait([beginning], timeout=CANCEL_SECONDS)
            if beginning.cancel() or beginning.exception() is not None:
                raise
            id = task_in(beginning.result())
            if id is not None:
                await self.end(id)
            raise

    async def result(self, n: int, tool: ScriptTool, id: str, settle: Settle) -> Any:
        """What comes of a task. Raises what the call would have been refused with."""
        self._open[n] = id
        async with self._ctx.idle():
            state = await self._ended(n, tool, id, settle)
        self._open.pop(n, None)
        if state.status == "completed":
            return state.result
        if state.status == "cancelled":
            raise ToolError(f"The task of {tool.name} was cancelled.", kind="ToolExecutionError")
        said = state.error if isinstance(state.error, dict) else {}
        code = said.get("code")
        raise from_wire(code if isinstance(code, int) else -32603, str(said.get("message", "")), said.get("data"))

    async def _ended(self, n: int, tool: ScriptTool, id: str, settle: Settle) -> _FollowedTask:
        answered: set[str] = set()
        told = None
        while True:
            state = await self._look(tool, id)
            if state.status in ("completed", "failed", "cancelled"):
                return state
            if state.status_message not in (None, told):
                told = state.status_message
                self._report(tool, told)
            if state.status == "input_required" and await self._answer(n, id, state, answered, settle):
                continue
            wished = USUAL_POLL_SECONDS if state.poll_interval_ms is None else state.poll_interval_ms / 1000
            await asyncio.sleep(min(max(wished, SHORTEST_POLL_SECONDS), LONGEST_POLL_SECONDS))

    async def _look(self, tool: ScriptTool, id: str) -> _FollowedTask:
        try:
            return _state.decode(to_json(await self._request("tasks/get", {"taskId": id})))
        except InvalidParams:
            raise ToolError(
                f"The task of {tool.name} is gone, and it is not known whether it was done. It is not called again: "
                "look first.",
                kind="OutcomeUnknown",
            ) from None

    def _report(self, tool: ScriptTool, message: str | None) -> None:
        """How far a task is, as progress of the run: the numbers of several would not grow together."""
        self._reports += 1
        self._ctx.report_progress(self._reports, message=f"{tool.path}: {(message or '')[:LONGEST_MESSAGE]}")

    async def _answer(self, n: int, id: str, state: _FollowedTask, answered: set[str], settle: Settle) -> bool:
        """Put what a task asks to the client. False if that was done before: its server may take a moment."""
        asked = {key: one for key, one in _keys.decode(state.input_requests).items() if key not in answered}
        if not asked:
            return False
        questions = _questions.decode(to_json({"resultType": "input_required", "inputRequests": asked}))
        given = await self._ctx.answer_questions(questions, key=f"call-{n}", settle=settle)
        answered |= asked.keys()
        await self._request("tasks/update", {"taskId": id, "inputResponses": given["inputResponses"]})
        return True

    async def cancel(self) -> None:
        """End those that are still open, because the run is over."""
        ids = list(self._open.values())
        self._open.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await asyncio.gather(*(self.end(id) for id in ids))

    async def end(self, id: str) -> None:
        """Ask for the end of a task; it may come to another first."""
        with suppress(Error):
            await self._request("tasks/cancel", {"taskId": id})

    async def _request(self, method: str, params: dict[str, Any]) -> Any:
        return await self._ctx.request(method, params, key=method, handler=self._handler, tasks=True)
