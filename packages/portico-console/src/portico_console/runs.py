"""One thing that is being asked of a target, and what is said on the way to its answer."""

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
from portico.client.input_handlers import Inputs
from portico.protocol import notifications
from portico.protocol.client_features import InputRequiredResult, ListRootsResult, Root
from portico.protocol.errors import Error, MissingCapability, ProtocolError, ToolError
from portico.protocol.jsonrpc import encode
from portico.protocol.methods import METHODS
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call, Listening

MOST_ROUNDS = 20

Emit = Callable[[str, Any], None]
"""Says something to the page: what it is about, and what there is to say."""


class RunFailure(Struct):
    """A JSON-RPC error, or what else has kept a request from being answered."""

    code: int | None
    message: str
    data: Any = None


class RunOutcome(Struct, kw_only=True):
    run: str
    ok: bool
    result: Raw | None = None
    error: RunFailure | None = None
    seconds: float
    rounds: int
    # On the wire.
    trips: list[str] = []


class PageRun:
    """A request that the page has made."""

    def __init__(self, id: str, emit: Emit, progress: Callable[[Any], None], asker: str | None = None) -> None:
        self.id = id
        # Who has made it; None is the owner of this process.
        self.asker = asker
        self.rounds = 0
        # What is waited for, and whether a person has given that up.
        self.asking: asyncio.Task[Raw] | None = None
        self.given_up = False
        self._emit = emit
        self._progress = progress
        emit("run", {"run": id})

    def cancel(self) -> bool:
        """Give up waiting. The target is told."""
        self.given_up = self.asking is not None and self.asking.cancel()
        return self.given_up

    def say(self, topic: str, data: Any) -> None:
        self._emit(topic, data)

    def hear(self, method: str, params: Raw) -> None:
        """A notification of the target."""
        try:
            said = METHODS[method].decode(params) if method in (notifications.PROGRESS, notifications.MESSAGE) else None
        except ProtocolError:
            return
        if method == notifications.PROGRESS:
            self._progress(said)
        elif said is not None:
            self._emit("log", {"run": self.id, "level": said.level, "logger": said.logger, "data": said.data})


# Whose questions are asked, where the question comes in the result of its own call.
current_run: ContextVar[PageRun | None] = ContextVar("current_run", default=None)


async def carry_out(
    client: Client, run: PageRun, method: str, params: dict[str, Any], seconds: float | None
) -> RunOutcome:
    """The outcome, whatever it is. What a target does wrong is an outcome too."""
    began = time.perf_counter()
    current_run.set(run)
    result, failure = None, None
    run.asking = asyncio.get_running_loop().create_task(_rounds(client, run, method, params))
    try:
        async with asyncio.timeout(seconds):
            result = await run.asking
    except asyncio.CancelledError:
        if not run.given_up:
            raise
        failure = RunFailure(None, "it was cancelled")
    except ProtocolError as wrong:
        failure = RunFailure(getattr(wrong, "code", None), str(wrong), getattr(wrong, "data", None))
    except Error as wrong:
        failure = RunFailure(None, str(wrong))
    except TimeoutError:
        failure = RunFailure(None, f"there was no answer within {seconds:g} s")
    took = time.perf_counter() - began
    ok = failure is None and not _is_error(result)
    return RunOutcome(run=run.id, ok=ok, result=result, error=failure, seconds=took, rounds=run.rounds)


async def _rounds(client: Client, run: PageRun, method: str, params: dict[str, Any]) -> Raw:
    asked = params
    for _ in range(MOST_ROUNDS):
        run.rounds += 1
        call = Call(method=method, params=Raw(encode(asked)), id=0, progress_token=run.id, reply=Listening(run.hear))
        try:
            said: Raw = await client(call)
        except MissingCapability as missing:
            if EXTENSION not in missing.extensions or method != "tools/call":
                raise
            return await _as_task(client, run, params)
        if _kind(said) != "input_required":
            return said
        asked = {**params, **await _answers(client, said)}
    raise ProtocolError(f"it still asks after {MOST_ROUNDS} rounds")


async def _as_task(client: Client, run: PageRun, params: dict[str, Any]) -> Raw:
    """A tool that runs as nothing but a task."""
    task = await client.start_task(params["name"], params.get("arguments"))
    run.say("log", {"run": run.id, "level": "info", "logger": "task", "data": f"it runs as the task {task.id}"})
    try:
        result = await task.result(timeout=None, raise_on_error=False)
    except asyncio.CancelledError:
        await asyncio.shield(task.cancel())
        raise
    plain = {"content": result.content, "structuredContent": result.structured, "isError": result.is_error}
    return Raw(encode({name: value for name, value in plain.items() if value is not None}))


async def _answers(client: Client, said: Raw) -> dict[str, Any]:
    try:
        asked = msgspec.json.decode(said, type=InputRequiredResult)
    except (msgspec.DecodeError, RecursionError):
        raise ProtocolError("it asks for input in a way that cannot be read") from None
    again: dict[str, Any] = {}
    if asked.input_requests is not UNSET:
        answer = partial(client.inputs.answer, revision=client.revision)
        again["inputResponses"] = {
            key: await answer(one.method, Raw(encode(one.params or {}))) for key, one in asked.input_requests.items()
        }
    if asked.request_state is not UNSET:
        again["requestState"] = asked.request_state
    if not again:
        raise ProtocolError("it asks for input, and says not for which")
    return again


class PageInputs(Inputs):
    """The same as any client's, and roots are asked for as well."""

    def __init__(self, roots: Callable[[], Any], sampling: Any, elicitation: Any, **options: Any) -> None:
        super().__init__(sampling, elicitation, [], **options)
        self._ask_roots = roots

    async def answer(self, method: str, params: Raw, revision: Any) -> Any:
        if method == "roots/list":
            return as_roots(await self._ask_roots())
        return await super().answer(method, params, revision)


def as_roots(content: Any) -> ListRootsResult:
    given = content.get("roots", []) if isinstance(content, dict) else []
    try:
        return ListRootsResult(msgspec.convert(given, list[Root]))
    except msgspec.ValidationError as wrong:
        raise ToolError(f"these are no roots: {wrong}") from None


class _ResultKind(Struct):
    result_type: Any = msgspec.field(default="complete", name="resultType")


class _ResultError(Struct):
    is_error: Any = msgspec.field(default=False, name="isError")


def _kind(said: Raw) -> Any:
    try:
        return msgspec.json.decode(said, type=_ResultKind).result_type
    except (msgspec.DecodeError, RecursionError):
        return "complete"


def _is_error(said: Raw | None) -> bool:
    if said is None:
        return False
    try:
        return msgspec.json.decode(said, type=_ResultError).is_error is True
    except (msgspec.DecodeError, RecursionError):
        return False
