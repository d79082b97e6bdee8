"""A server's tasks: which calls become one, and what can be asked about them, in both designs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico.auth.principal import Principal
from portico.protocol import notifications
from portico.protocol.content import EmptyResult
from portico.protocol.errors import (
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    NeedsTask,
    Unknown,
)
from portico.protocol.jsonrpc import NOTHING
from portico.protocol.meta import SUBSCRIPTION_ID
from portico.protocol.methods import METHODS
from portico.protocol.subscriptions import Filter, ListenParams
from portico.protocol.tasks import EXTENSION, PROGRESS, TaskParams, notified
from portico.protocol.tools import CallToolParams
from portico.protocol.versions import MODERN, V2025_11_25
from portico.rpc.call import Call
from portico.rpc.dispatcher import unexpected
from portico.rpc.identity import identity_of
from portico.server.components.results import Detached
from portico.server.components.runtime import Runtime
from portico.server.components.tools import TaskConfig, Tool
from portico.server.context.input_rounds import BodyReply, rounds_of, typed
from portico.server.policy.interfaces import Owned
from portico.server.registry.registry import Registry
from portico.server.registry.service import Answer, Service
from portico.server.registry.subscriptions import MOST_URIS, Subscriber
from portico.server.tasks import jobs, tasks_2025_11_25, tasks_2026_07_28
from portico.server.tasks.engine import CONCURRENCY, LEASE_SECONDS, Engine
from portico.server.tasks.execution import Caller, RunningJob, run
from portico.server.tasks.jobs import Job, Outcome, now
from portico.server.tasks.tasks_2025_11_25 import Asked, InputRelay, TaskWish
from portico.store.database import Database, when_ready
from portico.store.errors import DiskFull, StoreError

if TYPE_CHECKING:
    from portico.server.policy.enforcement import Protection

log = logging.getLogger("portico")

# The longest time to live that a client may wish for.
LONGEST_TTL_MS = 30 * 24 * 3600 * 1000
_POLL_SECONDS = TaskConfig().poll_interval

# The form of `jobs.new_id`, now and before.
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_responses = msgspec.json.Decoder(dict[str, Raw])


class Host(Protocol):
    """What tasks need of the server that they belong to."""

    runtime: Runtime
    registry: Registry
    store: str | None
    protection: Protection | None

    def owned(self, component: Any) -> Owned: ...


class TaskService(Service):
    """The tasks of one server, which adds this service by itself. The engine runs while the server does."""

    name = "portico/tasks"

    def __init__(self, *, concurrency: int = CONCURRENCY, lease: float = LEASE_SECONDS) -> None:
        super().__init__()
        self.concurrency = concurrency
        self.lease = lease
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()
        self._asked: Asked = set()
        # Those who listen to a task, by its id.
        self._subscribers: dict[str, set[Subscriber]] = {}
        self._background: set[asyncio.Task[None]] = set()

    def added(self, server: Host) -> None:
        self._host = server

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {EXTENSION: {}}

    def methods(self) -> dict[str, Answer]:
        return {
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
            "tasks/result": self._result,
            "tasks/list": self._list,
        }

    def around(self, method: str, answer: Answer) -> Answer:
        if method == "tools/call":
            return partial(self._call, answer)
        return partial(self._listen, answer) if method == "subscriptions/listen" else answer

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await when_ready(self.engine)
        try:
            yield
        finally:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.stop()

    async def engine(self) -> Engine:
        """The engine, started with the first use."""
        async with self._starting:
            if self._engine is None:
                engine = Engine(
                    self._host.runtime.name,
                    Database(self._host.store or os.environ.get("PORTICO_STORE") or "sqlite://"),
                    self._configs,
                    self._run,
                    concurrency=self.concurrency,
                    lease=self.lease,
                    heard=self._heard,
                    followed=self._followed,
                )
                await engine.start()
                self._engine = engine
        return self._engine

    async def _run(self, running: RunningJob) -> Outcome:
        tool = self._host.registry.tool(running.job.tool)
        facets = getattr(self._host, "views", {})
        if self._host.protection is None:
            return await run(running, tool, self._host.runtime, facets=facets)
        check, watch = partial(self._check, running.job), partial(self._watch, running.job)
        return await run(running, tool, self._host.runtime, check, watch, facets)

    async def _watch(self, job: Job, call: Call, tool: Tool, work: Awaitable[Any]) -> Any:
        protection = self._host.protection
        assert protection is not None
        return await protection.watch(call, job.id, self._host.owned(tool), job.arguments, work)

    def _check(self, job: Job, call: Call, tool: Tool) -> None:
        """What was allowed when the job was made may not be any more."""
        protection = self._host.protection
        if protection is not None and not protection.still_allows(call, self._host.owned(tool), job.arguments):
            raise Unknown("tool", job.tool, [])

    def _configs(self) -> dict[str, TaskConfig]:
        registry = self._host.registry
        return {registry.key_of(one): one.task for one in registry.by_name.values() if one.task is not None}

    def _poll(self, job: Job) -> float:
        tool = self._host.registry.tool(job.tool)
        return _POLL_SECONDS if tool is None or tool.task is None else tool.task.poll_interval

    # Calls that may become tasks

    def _call(self, answer: Answer, call: Call) -> Any:
        params: CallToolParams = call.typed()
        tool = self._host.registry.tool(params.name)
        if tool is not None:
            if tool.task is not None:
                return self._call_tool(call, params, tool, tool.task)
            if params.task is not NOTHING and call.revision == V2025_11_25:
                raise MethodNotFound(f"Method not found: {params.name!r} cannot be called as a task")
        return answer(call)

    async def _call_tool(self, call: Call, params: CallToolParams, tool: Tool, config: TaskConfig) -> Any:
        runtime = self._host.runtime
        # What a body calls from the inside is part of that body.
        if rounds_of(call) is not None or not self._wanted(call, params, config, tool.name):
            return await tool.call(call, params, runtime)
        if not config.detached:
            await tool.check(call, params, runtime)
            return await self._create(call, params, tool, config)
        inner = replace(call, reply=BodyReply(call.reply, detachable=True))
        result = await tool.call(inner, params, runtime)
        if isinstance(result, Detached):
            return await self._create(call, params, tool, config, result)
        return result

    def _wanted(self, call: Call, params: CallToolParams, config: TaskConfig, name: str) -> bool:
        """Whether this call becomes a task. Raises the refusal of a client that cannot have one and needs one."""
        revision = call.revision or MODERN
        if revision >= MODERN:
            if not tasks_2026_07_28.declared(call) and config.mode == "required":
                raise MissingCapability({"extensions": {EXTENSION: {}}})
            return tasks_2026_07_28.declared(call)
        if revision == V2025_11_25:
            wished = params.task is not NOTHING
            if not wished and config.mode == "required":
                raise MethodNotFound(f"Method not found: {name!r} has to be called as a task")
            return wished
        if config.mode == "required":
            raise NeedsTask(name)
        return False

    async def _create(
        self, call: Call, params: CallToolParams, tool: Tool, config: TaskConfig, begun: Detached | None = None
    ) -> Any:
        moment = now()
        revision = call.revision or MODERN
        facet = getattr(call.facet, "name", "")
        caller = Caller(_principal(call), call.address, call.capabilities, call.client, revision, facet)
        # A client of 2026-07-28 cannot wish for a time to live: `params.task` is of the older design.
        ttl = _wished_ttl(params, config) if revision < MODERN else _default_ttl(config)
        job = Job(
            id=jobs.new_id(),
            server=self._host.runtime.name,
            tool=self._host.registry.key_of(tool),
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
        with _store_errors("the task was not started"):
            await (await self.engine()).create(job, {} if begun is None else begun.steps)
        if revision >= MODERN:
            return tasks_2026_07_28.created(job, config.poll_interval)
        return tasks_2025_11_25.created(job, config.poll_interval)

    # The methods

    async def _job(self, call: Call) -> tuple[Engine, Job]:
        """The job that a request names. Other owners' are unknown (basic/security: ids are bound to callers)."""
        if (call.revision or MODERN) >= MODERN:
            tasks_2026_07_28.check(call)
        params: TaskParams = METHODS[call.method].decode(call.params)
        job = None
        with _store_errors("the task cannot be looked at"):
            engine = await self.engine()
            if _ID.fullmatch(params.task_id):
                job = await engine.get(params.task_id, owner(call))
        if job is None:
            raise InvalidParams(f"Unknown task: {params.task_id[:100]}", {"taskId": params.task_id[:100]})
        return engine, job

    async def _get(self, call: Call) -> Any:
        _, job = await self._job(call)
        if (call.revision or MODERN) >= MODERN:
            return tasks_2026_07_28.detailed(job, self._poll(job))
        return tasks_2025_11_25.got(job, self._poll(job))

    async def _cancel(self, call: Call) -> Any:
        engine, job = await self._job(call)
        with _store_errors("the task was not cancelled"):
            cancelled = None if job.ended else await engine.cancel(job.id)
        if (call.revision or MODERN) >= MODERN:
            return EmptyResult()
        if cancelled is None:
            _, job = await self._job(call)
            raise InvalidParams(f"The task is over: {tasks_2025_11_25.got(job, _POLL_SECONDS).status}")
        return tasks_2025_11_25.got(cancelled, self._poll(job))

    async def _update(self, call: Call) -> EmptyResult:
        engine, job = await self._job(call)
        given = METHODS["tasks/update"].decode(call.params).input_responses
        if given is NOTHING:
            raise InvalidParams("Missing inputResponses: an object with one answer for each key")
        try:
            responses = _responses.decode(given)
        except msgspec.DecodeError:
            raise InvalidParams("Invalid inputResponses: expected an object with one answer for each key") from None
        for key, question in job.questions.items():
            if key in responses:
                # Refused here, where the client can answer again; the body could only fail.
                typed(responses[key], METHODS[question["method"]].result, key)
        with _store_errors("the answers were not kept"):
            await engine.update(job.id, responses)
        return EmptyResult()

    async def _result(self, call: Call) -> Any:
        """2025-11-25: wait for the end. Meanwhile the client that waits is asked what the body wants to know."""
        if (call.revision or MODERN) >= MODERN:
            raise MethodNotFound(f"Method not found: {call.method}")
        engine, named = await self._job(call)
        with _store_errors("the task cannot be looked at"):
            job = await InputRelay(call, engine, self._asked).wait(named.id)
        if job is None:
            raise InvalidParams(f"Unknown task: {named.id}", {"taskId": named.id})
        return tasks_2025_11_25.result(job)

    async def _list(self, call: Call) -> Any:
        if (call.revision or MODERN) >= MODERN or call.anonymous:
            raise MethodNotFound(f"Method not found: {call.method}")
        params = METHODS["tasks/list"].decode(call.params)
        cursors, whose = self._host.registry.cursors, owner(call)
        after = tasks_2025_11_25.after(params.cursor, cursors, whose)
        with _store_errors("the tasks cannot be listed"):
            page = await (await self.engine()).listed(whose, after)
        return tasks_2025_11_25.listed(page, self._poll, cursors, whose)

    # Listening

    def _listen(self, answer: Answer, call: Call) -> Any:
        """subscriptions/listen, with the tasks among what is listened to."""
        wanted = call.typed().notifications.task_ids
        return self._listen_to_tasks(answer, call, wanted) if wanted else answer(call)

    async def _listen_to_tasks(self, answer: Answer, call: Call, wanted: list[str]) -> Any:
        """Unknown ids and others' are dropped."""
        params: ListenParams = call.typed()
        tasks_2026_07_28.check(call)
        if len(wanted) > MOST_URIS:
            raise InternalError("Refused: too many subscriptions")
        with _store_errors("the tasks cannot be looked at"):
            engine = await self.engine()
            known = await engine.some([id for id in dict.fromkeys(wanted) if _ID.fullmatch(id)], owner(call))
        ids = [job.id for job in known]
        params = replace(params, notifications=replace(params.notifications, task_ids=ids))
        numbers = PROGRESS in (call.capabilities.extensions or {})
        subscriber = Subscriber(call.reply.emit, Filter(task_ids=ids), {SUBSCRIPTION_ID: call.id}, numbers)
        for id in ids:
            self._subscribers.setdefault(id, set()).add(subscriber)
        # The server acknowledges in this turn of the loop, which has to be the first message; the tasks follow.
        asyncio.get_running_loop().call_soon(self._greet, subscriber, engine, known)
        try:
            return await answer(replace(call, read=(call.params, params)))
        finally:
            for id in ids:
                self._subscribers[id].discard(subscriber)
                if not self._subscribers[id]:
                    del self._subscribers[id]

    def _greet(self, subscriber: Subscriber, engine: Engine, known: list[Job]) -> None:
        """Tell a new listener how its tasks stand, and then what has changed since they were read."""
        if not known or subscriber not in self._subscribers.get(known[0].id, ()):
            return
        for job in known:
            self._tell(subscriber, job)
        catching_up = asyncio.get_running_loop().create_task(self._tell_missed(engine, known))
        self._background.add(catching_up)
        catching_up.add_done_callback(self._background.discard)

    async def _tell_missed(self, engine: Engine, known: list[Job]) -> None:
        before = {job.id: tasks_2026_07_28.visible(job) for job in known}
        try:
            for job in await engine.some(list(before), known[0].owner):
                if tasks_2026_07_28.visible(job) != before[job.id]:
                    self._heard(job)
        except StoreError as failure:
            log.warning("changes of tasks may not have been seen: %s", failure)

    def _heard(self, job: Job) -> None:
        for subscriber in list(self._subscribers.get(job.id, ())):
            self._tell(subscriber, job)

    def _tell(self, subscriber: Subscriber, job: Job) -> None:
        tag = {**subscriber.tag, **tasks_2026_07_28.progress(job)} if subscriber.progress else subscriber.tag
        subscriber.tell(notifications.TASK, notified(tasks_2026_07_28.detailed(job, self._poll(job)), tag))

    def _followed(self) -> Collection[str]:
        return self._subscribers.keys()


@contextmanager
def _store_errors(what: str) -> Iterator[None]:
    """Turn a StoreError into an InternalError that names the failed operation and an error id."""
    try:
        yield
    except StoreError as failure:
        why = "there is no room on the server's disk" if isinstance(failure, DiskFull) else "its store failed"
        error_id = unexpected(failure, "tasks").data["errorId"]
        raise InternalError(f"Internal error: {what}, for {why} (error id {error_id})", {"errorId": error_id}) from None


def owner(call: Call) -> str:
    """The owner of a client's tasks: empty without a principal, else a digest of its identity."""
    identity = identity_of(call.principal)
    return "" if identity is None else sha256(identity.encode()).hexdigest()


def _principal(call: Call) -> Principal | None:
    """The principal in storable form."""
    who = call.principal
    if who is None or isinstance(who, Principal):
        return who
    scopes = getattr(who, "scopes", None)
    return Principal(str(getattr(who, "id", None) or who), None if scopes is None else frozenset(map(str, scopes)))


def _default_ttl(config: TaskConfig) -> int | None:
    return None if config.ttl is None else int(config.ttl * 1000)


def _wished_ttl(params: CallToolParams, config: TaskConfig) -> int | None:
    """The time to live in milliseconds: what the client wished for, within bounds, or else the tool's."""
    try:
        wished = msgspec.json.decode(params.task, type=TaskWish).ttl
    except msgspec.DecodeError:
        raise InvalidParams("Invalid params for tools/call: task is an object with a ttl in milliseconds") from None
    return _default_ttl(config) if wished is None else max(1000, int(min(wished, LONGEST_TTL_MS)))
