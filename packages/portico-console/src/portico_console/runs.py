"""Requests to a target, with the notifications and input requests before their responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.client.client import Client
from portico.client.input_handlers import InputHandlers
from portico.protocol import notifications
from portico.protocol.client_features import InputRequiredResult, ListRootsResult, Root
from portico.protocol.errors import MissingClientCapability, PorticoError, ProtocolError, ToolError
from portico.protocol.jsonrpc import encode
from portico.protocol.methods import METHODS
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call, CallbackReply

MAX_INPUT_ROUNDS = 20

EventCallback = Callable[[str, Any], None]
"""Sends an event to the page: its subject and its data."""


class ConsoleRunError(Struct):
    """A JSON-RPC error, or another reason why a request failed."""

    code: int | None
    message: str
    data: Any = None


class ConsoleRunResult(Struct, kw_only=True):
    run: str
    ok: bool
    result: Raw | None = None
    error: ConsoleRunError | None = None
    seconds: float
    rounds: int
    # Round trips in the message log.
    trips: list[str] = []


class ConsoleRun:
    """A request that the page made."""

    def __init__(
        self, id: str, emit: EventCallback, progress: Callable[[Any], None], asker: str | None = None, name: str = ""
    ) -> None:
        self.id = id
        # The tool, prompt or resource that the request is about.
        self.name = name
        # The identity of the caller; None for the owner of this process.
        self.principal = asker
        self.rounds = 0
        # The running request, and whether the user cancelled it.
        self.task: asyncio.Task[Raw] | None = None
        self.is_cancelled = False
        self._emit = emit
        self._progress = progress
        emit("run", {"run": id})

    def cancel(self) -> bool:
        """Cancel the request. The target receives a cancellation notification."""
        self.is_cancelled = self.task is not None and self.task.cancel()
        return self.is_cancelled

    def emit(self, topic: str, data: Any) -> None:
        """Send an event to the page."""
        self._emit(topic, data)

    def on_notification(self, method: str, params: Raw) -> None:
        """Forward a progress or log notification of the target to the page."""
        try:
            notification = (
                METHODS[method].decode(params)
                if method in (notifications.PROGRESS, notifications.LOG_MESSAGE)
                else None
            )
        except ProtocolError:
            return
        if method == notifications.PROGRESS:
            self._progress(notification)
        elif notification is not None:
            self._emit(
                "log",
                {"run": self.id, "level": notification.level, "logger": notification.logger, "data": notification.data},
            )


# The run whose result contains an input request, so that the request can be attributed to it.
current_run: ContextVar[ConsoleRun | None] = ContextVar("current_run", default=None)


async def execute(
    client: Client,
    run: ConsoleRun,
    method: str,
    params: dict[str, Any],
    timeout: float | None,
    as_task: bool = False,
) -> ConsoleRunResult:
    """Run a request and return its result. Failures of the target are results too. `as_task`: run a tool as a task."""
    started_at = time.perf_counter()
    current_run.set(run)
    result, failure = None, None
    work = _run_as_task(client, run, params) if as_task else _run_rounds(client, run, method, params)
    run.task = asyncio.get_running_loop().create_task(work)
    try:
        async with asyncio.timeout(timeout):
            result = await run.task
    except asyncio.CancelledError:
        # The page itself went away, so the cancellation must reach the caller; only a cancelled run is a result.
        if not run.is_cancelled:
            raise
        failure = ConsoleRunError(None, "cancelled")
    except ProtocolError as wrong:
        failure = ConsoleRunError(getattr(wrong, "code", None), str(wrong), getattr(wrong, "data", None))
    except PorticoError as wrong:
        failure = ConsoleRunError(None, str(wrong))
    except TimeoutError:
        failure = ConsoleRunError(None, f"no response within {timeout:g} s")
    took = time.perf_counter() - started_at
    ok = failure is None and not _is_error(result)
    return ConsoleRunResult(run=run.id, ok=ok, result=result, error=failure, seconds=took, rounds=run.rounds)


async def _run_rounds(client: Client, run: ConsoleRun, method: str, params: dict[str, Any]) -> Raw:
    round_params = params
    for _ in range(MAX_INPUT_ROUNDS):
        run.rounds += 1
        call = Call(
            method=method,
            params=Raw(encode(round_params)),
            id=0,
            progress_token=run.id,
            reply=CallbackReply(run.on_notification),
        )
        try:
            response: Raw = await client(call)
        # The console does not declare the tasks extension for ordinary calls, so a tool that requires it answers with
        # this error and is called again as a task.
        except MissingClientCapability as missing:
            if EXTENSION not in missing.required_extensions or method != "tools/call":
                raise
            return await _run_as_task(client, run, params)
        if _kind(response) != "input_required":
            return response
        # The original params are sent again with the answers (2026-07-28, Multi Round-Trip Requests); answers of
        # earlier rounds are in the server's requestState.
        round_params = {**params, **await _collect_inputs(client, response)}
    raise ProtocolError(f"the server still requires input after {MAX_INPUT_ROUNDS} rounds")


async def _run_as_task(client: Client, run: ConsoleRun, params: dict[str, Any]) -> Raw:
    """Run a tool as a task, and wait for its result. The server may return the result immediately instead."""
    task = await client.start_task(params["name"], params.get("arguments"))
    how = f"running as task {task.id}" if task.id else "the server did not start a task"
    run.emit("log", {"run": run.id, "level": "info", "logger": "task", "data": how})
    try:
        result = await task.result(timeout=None, raise_on_error=False)
    except asyncio.CancelledError:
        # Shielded: the task at the server must be cancelled even while this coroutine is being cancelled.
        await asyncio.shield(task.cancel())
        raise
    plain = {"content": result.content, "structuredContent": result.structured, "isError": result.is_error}
    return Raw(encode({name: value for name, value in plain.items() if value is not None}))


async def _collect_inputs(client: Client, result: Raw) -> dict[str, Any]:
    try:
        input_required = msgspec.json.decode(result, type=InputRequiredResult)
    except (msgspec.DecodeError, RecursionError):
        raise ProtocolError("the server returned an invalid input_required result") from None
    again: dict[str, Any] = {}
    if input_required.input_requests is not UNSET:
        answer = partial(client.input_handlers.handle, revision=client.protocol_version)
        again["inputResponses"] = {
            key: await answer(input_request.method, Raw(encode(input_request.params or {})))
            for key, input_request in input_required.input_requests.items()
        }
    if input_required.request_state is not UNSET:
        again["requestState"] = input_required.request_state
    # Without either member the next round would be identical to this one, forever.
    if not again:
        raise ProtocolError("the server returned input_required without inputRequests or requestState")
    return again


class ConsoleInputs(InputHandlers):
    """Input handlers that also ask the user for roots."""

    def __init__(self, roots: Callable[[], Any], sampling: Any, elicitation: Any, **options: Any) -> None:
        super().__init__(sampling, elicitation, [], **options)
        self._ask_roots = roots

    async def handle(self, method: str, params: Raw, revision: Any) -> Any:
        if method == "roots/list":
            return parse_roots(await self._ask_roots())
        return await super().handle(method, params, revision)


def parse_roots(content: Any) -> ListRootsResult:
    """Convert a user's response to roots. Raises ToolError if it is invalid."""
    entries = content.get("roots", []) if isinstance(content, dict) else []
    try:
        return ListRootsResult(msgspec.convert(entries, list[Root]))
    except msgspec.ValidationError as wrong:
        raise ToolError(f"invalid roots: {wrong}") from None


class _ResultKind(Struct):
    result_type: Any = msgspec.field(default="complete", name="resultType")


class _ResultError(Struct):
    is_error: Any = msgspec.field(default=False, name="isError")


def _kind(result: Raw) -> Any:
    try:
        # A result that cannot be decoded is shown as it is: the console is used to debug servers that send such
        # results.
        return msgspec.json.decode(result, type=_ResultKind).result_type
    except (msgspec.DecodeError, RecursionError):
        return "complete"


def _is_error(result: Raw | None) -> bool:
    if result is None:
        return False
    try:
        return msgspec.json.decode(result, type=_ResultError).is_error is True
    except (msgspec.DecodeError, RecursionError):
        return False
