"""A tool's body as a job: what it asks waits in the store, and what it has done is remembered there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct, field

from portico.auth.principal import Principal
from portico.rpc.call import Call, Listening
from portico.rpc.door import refusal, unexpected
from portico.server.asking.replay_keys import Places
from portico.server.asking.rounds import BodyReply, require, typed
from portico.server.tasks import holds
from portico.server.tasks.held import Held, LostHold, now
from portico.server.tasks.jobs import Outcome
from portico.store.errors import StoreError
from portico.wire import notices
from portico.wire.content import TextContent
from portico.wire.errors import ProtocolError, Refused, ToolError
from portico.wire.jsonrpc import ErrorBody, encode
from portico.wire.meta import ClientCapabilities, Implementation
from portico.wire.methods import METHODS
from portico.wire.revisions import MODERN, Revision
from portico.wire.tools import CallToolParams, CallToolResult

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico")

# Progress is kept for whoever asks now and then, so it is not written more often than anybody would.
REPORT_SECONDS = 0.25
LONGEST_MESSAGE = 500


class Caller(Struct, omit_defaults=True):
    """Who asked for the task, as much of it as a body may want to know, also after a restart."""

    principal: Principal | None = None
    capabilities: ClientCapabilities = ClientCapabilities()
    client: Implementation | None = None
    # What comes of it is what the call would have come to.
    revision: Revision = MODERN


class Refusal(Struct):
    """In the place of an answer: the client would not give one."""

    reason: str = field(name="portico/refused")


async def run(held: Held, server: Server) -> Outcome:
    """Run the body of a job, from its beginning; what is done already is not done again."""
    job = held.job
    tool = server.offers.tool(job.tool)
    if tool is None:
        raise LostHold  # removed since it was taken; another process may have it
    caller = msgspec.json.decode(job.caller, type=Caller)
    reporter = Reporter(held)
    questions, reply = Questions(held), Listening(reporter.emit)
    call = Call(
        method="tools/call",
        id=job.id,
        revision=caller.revision,
        capabilities=caller.capabilities,
        client=caller.client,
        principal=caller.principal,
        progress_token=job.id,
        reply=BodyReply(reply, rounds=questions),
    )
    questions.call = held.call = call
    try:
        return _done(await tool.call(call, CallToolParams(job.tool, job.arguments), server))
    except BaseException as failure:
        return _failed(failure, job.tool)
    finally:
        reply.close()
        await reporter.end()


def _done(result: Any) -> Outcome:
    refused = isinstance(result, CallToolResult) and result.is_error is True
    message = next((one.text for one in result.content if isinstance(one, TextContent)), None) if refused else None
    return Outcome("completed", Raw(encode(result)), message and message[:LONGEST_MESSAGE], refused)


def _failed(failure: BaseException, tool: str) -> Outcome:
    """As the answer to a call would have it, except that nobody is there to whom it could be said."""
    if isinstance(failure, LostHold | KeyboardInterrupt | GeneratorExit) or _is_being_cancelled(failure):
        raise failure
    if isinstance(failure, BaseExceptionGroup) and failure.subgroup(LostHold) is not None:
        raise LostHold from failure
    try:
        if isinstance(failure, ProtocolError):
            error = Raw(encode(ErrorBody(failure.code, failure.message, failure.data)))
            return Outcome("failed", error, failure.message[:LONGEST_MESSAGE])
    except Exception as worse:  # what its author wanted to say cannot be said in JSON
        failure = worse
    if isinstance(failure, ToolError):
        return _done(refusal(failure))
    return msgspec.structs.replace(_done(refusal(unexpected(failure, f"the task {tool}"))), again=True)


def _is_being_cancelled(failure: BaseException) -> bool:
    """Or else a body has let some cancellation of its own escape."""
    task = asyncio.current_task()
    return isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class Questions:
    """The questions and steps of a body that runs as a job: unlike those of a call, they wait, and they last."""

    call: Call

    def __init__(self, held: Held) -> None:
        self._held = held
        self.places = Places()

    async def ask(self, method: str, params: Any, key: str | None = None) -> Any:
        require(self.call, method, params)
        key = self.places.question(method.partition("/")[0], key)
        question = {"method": method} if params is None else {"method": method, "params": params}
        answer = await self._held.answer(key, question)
        try:
            refused = msgspec.json.decode(answer, type=Refusal)
        except msgspec.DecodeError:
            return typed(answer, METHODS[method].result, key)
        raise Refused(f"The client refused {method}: {refused.reason}")

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """Done once: when this returns, that it was done is on the disk."""
        place = self.places.step(name)
        if place not in self._held.steps:
            await self._held.be_sure()
            with self.places.inside_step(name):
                value = fn()
                if isinstance(value, Awaitable):
                    value = await value
            await self._held.keep(place, Raw(encode(value)))
        return msgspec.json.decode(self._held.steps[place])

    async def detach(self) -> None:
        """It is a task already."""


class Reporter:
    """Progress on its way to the store: the newest, and not too often."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._newest: notices.ProgressParams | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def emit(self, method: str, params: Any) -> None:
        # A thread whose task is over may go on to report.
        if isinstance(params, notices.ProgressParams) and not self._ended:
            self._newest = params
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._report())

    async def _report(self) -> None:
        while self._newest is not None:
            newest, self._newest = self._newest, None
            message = newest.message and newest.message[:LONGEST_MESSAGE]
            try:
                await self._held.try_to_write(holds.report, newest.progress, newest.total, message, now())
            except LostHold:
                break
            except StoreError as failure:
                log.warning("progress was not kept: %s", failure)
            await asyncio.sleep(REPORT_SECONDS)
        self._task = None

    async def end(self) -> None:
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
