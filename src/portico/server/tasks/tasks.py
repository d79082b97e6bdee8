"""A server's tasks: which calls become one, and what can be asked about them, in both designs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.auth.principal import Principal
from portico.rpc.call import Call
from portico.rpc.door import unexpected
from portico.server.asking.rounds import BodyReply, Detached, rounds_of, typed
from portico.server.calling.tools import Tool
from portico.server.tasks import experiment, extension, jobs
from portico.server.tasks.config import TaskConfig
from portico.server.tasks.engine import CONCURRENCY, LEASE, Engine
from portico.server.tasks.held import now
from portico.server.tasks.interview import Asked, Interview
from portico.server.tasks.jobs import Job
from portico.server.tasks.running import Caller, run
from portico.store.database import Database
from portico.store.errors import DiskFull, StoreError
from portico.wire.content import EmptyResult
from portico.wire.errors import InternalError, InvalidParams, MethodNotFound, MissingCapability, ToolError
from portico.wire.jsonrpc import NOTHING
from portico.wire.methods import METHODS
from portico.wire.revisions import MODERN, V2025_11_25
from portico.wire.tasks import EXTENSION, TaskParams
from portico.wire.tools import CallToolParams

if TYPE_CHECKING:
    from portico.server.server import Server

log = logging.getLogger("portico")

# What a client may wish for at most, in milliseconds, when it says how long a task is to be kept.
LONGEST_TTL = 30 * 24 * 3600 * 1000
_POLL = TaskConfig().poll_interval

# The shape of `jobs.new_id`. Nothing else can be the name of one.
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_responses = msgspec.json.Decoder(dict[str, Raw])


class Tasks:
    """The tasks of one server. The engine runs while the server does."""

    def __init__(self, server: Server, *, concurrency: int = CONCURRENCY, lease: float = LEASE) -> None:
        self._server = server
        self.concurrency = concurrency
        self.lease = lease
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()
        self._asked: Asked = set()
        self._errands: set[asyncio.Task[None]] = set()

    # Beginning and end

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await self.engine()
        try:
            yield
        finally:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.stop()

    async def engine(self) -> Engine:
        """Running, from the first moment somebody needs it."""
        async with self._starting:
            if self._engine is None:
                engine = Engine(
                    self._server.info.name,
                    Database(self._server.store or os.environ.get("PORTICO_STORE") or "sqlite://"),
                    self._configs,
                    partial(run, server=self._server),
                    concurrency=self.concurrency,
                    lease=self.lease,
                    heard=self._heard,
                    followed=self._followed,
                )
                await engine.start()
                self._engine = engine
        return self._engine

    def _configs(self) -> dict[str, TaskConfig]:
        return {tool.name: tool.task for tool in self._server.tools if tool.task is not None}

    def _poll(self, job: Job) -> float:
        tool = self._server.offers.tool(job.tool)
        return _POLL if tool is None or tool.task is None else tool.task.poll_interval

    def _heard(self, job: Job) -> None:
        self._server.subscriptions.publish_task(job.id, lambda: extension.detailed(job, self._poll(job)))

    def _followed(self) -> set[str]:
        listeners = self._server.subscriptions._listeners
        return {id for listener in listeners for id in listener.tasks}

    # Calls that may become tasks

    async def call(self, call: Call, params: CallToolParams, tool: Tool) -> Any:
        config = tool.task
        assert config is not None
        # What a body calls from the inside is part of that body.
        if rounds_of(call) is not None or not self._wanted(call, params, config, tool.name):
            return await tool.call(call, params, self._server)
        if not config.detached:
            tool.check(call, params, self._server)
            return await self._create(call, params, tool, config)
        inner = replace(call, reply=BodyReply(call.reply, detachable=True))
        result = await tool.call(inner, params, self._server)
        if isinstance(result, Detached):
            return await self._create(call, params, tool, config, result)
        return result

    def _wanted(self, call: Call, params: CallToolParams, config: TaskConfig, name: str) -> bool:
        """Whether this call is to be a task. Who cannot deal with one is told so where there is no other way."""
        revision = call.revision or MODERN
        if revision >= MODERN:
            if not extension.declared(call) and config.mode == "required":
                raise MissingCapability({"extensions": {EXTENSION: {}}})
            return extension.declared(call)
        if revision == V2025_11_25:
            wished = params.task is not NOTHING
            if not wished and config.mode == "required":
                raise MethodNotFound(f"Method not found: {name!r} has to be called as a task")
            return wished
        if config.mode == "required":
            raise ToolError(f"{name!r} takes longer than a call may, and this client cannot deal with tasks.")
        return False

    async def _create(
        self, call: Call, params: CallToolParams, tool: Tool, config: TaskConfig, begun: Detached | None = None
    ) -> Any:
        moment = now()
        revision = call.revision or MODERN
        caller = Caller(_principal(call), call.capabilities, call.client, revision)
        # Who speaks 2026-07-28 cannot wish for a time to live; the word they would have for it is from the past.
        ttl = _ttl(params, config) if revision < MODERN else _usual(config)
        job = Job(
            id=jobs.new_id(),
            server=self._server.info.name,
            tool=tool.name,
            arguments=Raw(bytes(params.arguments) or b"{}"),
            owner=owner(call),
            caller=Raw(msgspec.json.encode(caller)),
            status="queued",
            priority=config.priority,
            created_at=moment,
            updated_at=moment,
            run_at=moment,
            ttl=ttl,
            expires_at=None if ttl is None else moment + ttl,
            attempts=0,
            deaths=0,
            worker=None,
            lease=None,
            message=None,
            progress=None,
            total=None,
            questions={},
            answers={} if begun is None else begun.answers,
            outcome=Raw(b""),
        )
        with _excusing("the task was not started"):
            await (await self.engine()).create(job, {} if begun is None else begun.steps)
        if revision >= MODERN:
            return extension.created(job, config.poll_interval)
        return experiment.created(job, config.poll_interval)

    # What can be asked about them

    def methods(self) -> dict[str, Callable[[Call], Awaitable[Any]]]:
        return {
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
            "tasks/result": self._result,
            "tasks/list": self._list,
        }

    async def _job(self, call: Call) -> tuple[Engine, Job]:
        """The task a request names. Another's task is not there (basic/security: ids are bound to who asked)."""
        if (call.revision or MODERN) >= MODERN:
            extension.check(call)
        params: TaskParams = METHODS[call.method].decode(call.params)
        job = None
        with _excusing("the task cannot be looked at"):
            engine = await self.engine()
            if _ID.fullmatch(params.task_id):
                job = await engine.get(params.task_id, owner(call))
        if job is None:
            raise InvalidParams(f"Unknown task: {params.task_id[:100]}", {"taskId": params.task_id[:100]})
        return engine, job

    async def _get(self, call: Call) -> Any:
        _, job = await self._job(call)
        if (call.revision or MODERN) >= MODERN:
            return extension.detailed(job, self._poll(job))
        return experiment.got(job, self._poll(job))

    async def _cancel(self, call: Call) -> Any:
        engine, job = await self._job(call)
        with _excusing("the task was not cancelled"):
            cancelled = None if job.ended else await engine.cancel(job.id)
        if (call.revision or MODERN) >= MODERN:
            return EmptyResult()
        if cancelled is None:
            _, job = await self._job(call)
            raise InvalidParams(f"The task is over: {experiment.got(job, _POLL).status}")
        return experiment.got(cancelled, self._poll(job))

    async def _update(self, call: Call) -> EmptyResult:
        engine, job = await self._job(call)
        said = METHODS["tasks/update"].decode(call.params).input_responses
        try:
            responses = _responses.decode(said) if said is not NOTHING else {}
        except msgspec.DecodeError:
            raise InvalidParams("Invalid inputResponses: expected an object with one answer for each key") from None
        for key, question in job.questions.items():
            if key in responses:
                # Told to whoever answers, who can do it again; the body could only fail.
                typed(responses[key], METHODS[question["method"]].result, key)
        with _excusing("the answers were not kept"):
            await engine.update(job.id, responses)
        return EmptyResult()

    async def _result(self, call: Call) -> Any:
        """2025-11-25: wait for the end. Meanwhile whoever waits is asked what the body wants to know."""
        if (call.revision or MODERN) >= MODERN:
            raise MethodNotFound(f"Method not found: {call.method}")
        engine, found = await self._job(call)
        with _excusing("the task cannot be looked at"):
            job = await Interview(call, engine, self._asked).wait(found.id)
        if job is None:
            raise InvalidParams(f"Unknown task: {found.id}", {"taskId": found.id})
        return experiment.result(job)

    async def _list(self, call: Call) -> Any:
        if (call.revision or MODERN) >= MODERN or call.anonymous:
            raise MethodNotFound(f"Method not found: {call.method}")
        params = METHODS["tasks/list"].decode(call.params)
        after = experiment.after(params.cursor)
        with _excusing("the tasks cannot be listed"):
            found = await (await self.engine()).listed(owner(call), after)
        return experiment.listed(found, self._poll)

    async def visible(self, call: Call, ids: list[str]) -> list[Job]:
        """Those of the named tasks that the caller may hear of."""
        with _excusing("the tasks cannot be looked at"):
            engine = await self.engine()
            found = await engine.some([id for id in dict.fromkeys(ids) if _ID.fullmatch(id)], owner(call))
        if found:
            # The caller begins to listen in this turn of the loop. What changed since we looked is told in the next.
            asyncio.get_running_loop().call_soon(self._catch_up, engine, found)
        return found

    def _catch_up(self, engine: Engine, seen: list[Job]) -> None:
        catching = asyncio.get_running_loop().create_task(self._tell_missed(engine, seen))
        self._errands.add(catching)
        catching.add_done_callback(self._errands.discard)

    async def _tell_missed(self, engine: Engine, seen: list[Job]) -> None:
        before = {job.id: extension.visible(job) for job in seen}
        try:
            for job in await engine.some(list(before), seen[0].owner):
                if extension.visible(job) != before[job.id]:
                    self._heard(job)
        except StoreError as failure:
            log.warning("changes of tasks may not have been seen: %s", failure)

    def told(self, job: Job) -> Any:
        return extension.detailed(job, self._poll(job))


@contextmanager
def _excusing(what: str) -> Iterator[None]:
    """What the client is told when the store says no: which of its wishes, and why as far as it can be its business."""
    try:
        yield
    except StoreError as failure:
        why = "there is no room on the server's disk" if isinstance(failure, DiskFull) else "its store failed"
        error_id = unexpected(failure, "tasks").data["errorId"]
        raise InternalError(f"Internal error: {what}, for {why} (error id {error_id})", {"errorId": error_id}) from None


def owner(call: Call) -> str:
    """Whose task it is. Nobody on this machine's own pipes is one owner; who has logged in is another."""
    principal = call.principal
    if principal is None:
        return ""
    return sha256(str(getattr(principal, "id", None) or repr(principal)).encode()).hexdigest()


def _principal(call: Call) -> Principal | None:
    """As it can be kept. Whoever brings principals of their own gets back who it was, and what they were let do."""
    who = call.principal
    if who is None or isinstance(who, Principal):
        return who
    scopes = getattr(who, "scopes", None)
    return Principal(str(getattr(who, "id", None) or who), None if scopes is None else frozenset(map(str, scopes)))


def _usual(config: TaskConfig) -> int | None:
    return None if config.ttl is None else int(config.ttl * 1000)


def _ttl(params: CallToolParams, config: TaskConfig) -> int | None:
    """How long it is kept, in milliseconds: as long as was wished for, within reason, or as the tool has it."""
    try:
        wished = msgspec.json.decode(params.task, type=experiment.Asked).ttl
    except msgspec.DecodeError:
        raise InvalidParams("Invalid params for tools/call: task is an object with a ttl in milliseconds") from None
    return _usual(config) if wished is None else max(1000, int(min(wished, LONGEST_TTL)))
