"""The tasks of a server: which calls become tasks, and the task methods of both protocol designs."""

from __future__ import annotations

import asyncio
import logging
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
    ComponentNotFound,
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    TaskRequired,
)
from portico.protocol.jsonrpc import EMPTY_RAW, object_decoder
from portico.protocol.meta import SUBSCRIPTION_ID_META_KEY
from portico.protocol.methods import METHODS
from portico.protocol.subscriptions import SubscriptionFilter, SubscriptionsListenParams
from portico.protocol.tasks import EXTENSION, TASK_PROGRESS_EXTENSION, TaskIdParams, to_task_notification
from portico.protocol.tools import CallToolParams
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_11_25
from portico.rpc.call import Call
from portico.rpc.dispatcher import log_internal_error
from portico.rpc.identity import principal_id
from portico.rpc.supervision import BackgroundTasks
from portico.server.components.results import DetachedCall
from portico.server.components.runtime import Runtime
from portico.server.components.tools import TaskConfig, Tool
from portico.server.context.input_rounds import ComponentReply, decode_response, get_rounds
from portico.server.policy.interfaces import ComponentOwners
from portico.server.registry.registry import Registry
from portico.server.registry.service import MethodHandler, Service
from portico.server.registry.subscriptions import MAX_URIS_PER_SUBSCRIBER, Subscriber
from portico.server.tasks import jobs, tasks_2025_11_25, tasks_2026_07_28
from portico.server.tasks.engine import DEFAULT_CONCURRENCY, LEASE_SECONDS, TaskEngine
from portico.server.tasks.execution import JobRun, TaskCaller, run_job
from portico.server.tasks.jobs import Job, JobOutcome, now_ms
from portico.server.tasks.tasks_2025_11_25 import AskedRequests, InputRelay, TaskMetadata
from portico.store.data_directory import named_store
from portico.store.database import Database, retry_until_ready
from portico.store.errors import DiskFull, StoreError

if TYPE_CHECKING:
    from portico.server.policy.enforcement import PolicyEnforcer

log = logging.getLogger("portico")

# Maximum time to live that a client may request.
# Without a bound, a client could fill the store with tasks that never expire.
MAX_TTL_MS = 30 * 24 * 3600 * 1000
_POLL_SECONDS = TaskConfig().poll_interval

# Pattern of job ids, current and former.
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TaskHost(Protocol):
    """The part of a server that the service uses."""

    runtime: Runtime
    registry: Registry
    store: str | None
    policy: PolicyEnforcer | None

    @property
    def ownership(self) -> ComponentOwners: ...


class TaskService(Service):
    """Service for the tasks of one server, which adds it itself. The engine runs while the server does."""

    name = "portico/tasks"
    internal = True

    def __init__(self, *, concurrency: int = DEFAULT_CONCURRENCY, lease_seconds: float = LEASE_SECONDS) -> None:
        super().__init__()
        self.concurrency = concurrency
        self.lease = lease_seconds
        self._engine: TaskEngine | None = None
        self._starting = asyncio.Lock()
        self._asked_requests: AskedRequests = set()
        # Subscribers by task id.
        self._subscribers: dict[str, set[Subscriber]] = {}
        self._background = BackgroundTasks()

    def on_added(self, server: TaskHost) -> None:
        self._host = server

    def extensions(self) -> dict[str, dict[str, Any]]:
        return {EXTENSION: {}}

    def methods(self) -> dict[str, MethodHandler]:
        return {
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "tasks/update": self._update,
            "tasks/result": self._result,
            "tasks/list": self._list,
        }

    def wrap_method(self, method: str, handler: MethodHandler) -> MethodHandler:
        if method == "tools/call":
            return partial(self._call, handler)
        return partial(self._listen, handler) if method == "subscriptions/listen" else handler

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await retry_until_ready(self.engine)
        try:
            yield
        finally:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.stop()

    async def engine(self) -> TaskEngine:
        """Return the engine, started on first use."""
        async with self._starting:
            if self._engine is None:
                engine = TaskEngine(
                    self._host.runtime.name,
                    Database(named_store(self._host.store) or "sqlite://"),
                    self._configs,
                    self._run,
                    concurrency=self.concurrency,
                    lease_seconds=self.lease,
                    on_change=self._notify_subscribers,
                    followed_ids=self._watched_tasks,
                )
                await engine.start()
                self._engine = engine
        return self._engine

    async def _run(self, running: JobRun) -> JobOutcome:
        tool = self._host.registry.tool(running.job.tool)
        facets = getattr(self._host, "views", {})
        if self._host.policy is None:
            return await run_job(running, tool, self._host.runtime, server_views=facets)
        check, watch = partial(self._check, running.job), partial(self._watch, running.job)
        return await run_job(running, tool, self._host.runtime, check, watch, facets)

    async def _watch(self, job: Job, call: Call, tool: Tool, work: Awaitable[Any]) -> Any:
        protection = self._host.policy
        assert protection is not None
        return await protection.audit_task(
            call, job.id, self._host.ownership.component_qualified_name(tool), job.arguments, work
        )

    def _check(self, job: Job, call: Call, tool: Tool) -> None:
        """Raise ComponentNotFound if the call was allowed when the job was created but no longer is."""
        protection = self._host.policy
        if protection is not None and not protection.is_still_allowed(
            call, self._host.ownership.component_qualified_name(tool), job.arguments
        ):
            raise ComponentNotFound("tool", job.tool, [])

    def _configs(self) -> dict[str, TaskConfig]:
        registry = self._host.registry
        return {registry.unique_key(value): value.task for value in registry.by_name.values() if value.task is not None}

    def _poll(self, job: Job) -> float:
        tool = self._host.registry.tool(job.tool)
        return _POLL_SECONDS if tool is None or tool.task is None else tool.task.poll_interval

    # Calls that may become tasks

    def _call(self, answer: MethodHandler, call: Call) -> Any:
        params: CallToolParams = call.decode_params()
        tool = self._host.registry.tool(params.name)
        if tool is not None:
            if tool.task is not None:
                return self._call_tool(call, params, tool, tool.task)
            # 2025-11-25, Tasks: for a tool that does not support tasks, "servers SHOULD return a
            # -32601 (Method not found) error if a client attempts to do so".
            if params.task is not EMPTY_RAW and call.protocol_version == V2025_11_25:
                raise MethodNotFound(f"Method not found: {params.name!r} cannot be called as a task")
        return answer(call)

    async def _call_tool(self, call: Call, params: CallToolParams, tool: Tool, config: TaskConfig) -> Any:
        runtime = self._host.runtime
        # A nested call of a function is part of that function, and never becomes a task.
        if get_rounds(call) is not None or not self._becomes_task(call, params, config, tool.name):
            return await tool.call(call, params, runtime)
        # Check scopes and arguments now: as a task, the same mistake would only be seen with
        # `tasks/get`.
        if not config.detachable:
            await tool.validate_call(call, params, runtime)
            return await self._create(call, params, tool, config)
        inner = replace(call, reply=ComponentReply(call.reply, detachable=True))
        result = await tool.call(inner, params, runtime)
        if isinstance(result, DetachedCall):
            return await self._create(call, params, tool, config, result)
        return result

    def _becomes_task(self, call: Call, params: CallToolParams, config: TaskConfig, name: str) -> bool:
        """Return whether this call becomes a task. Raises if the tool requires a task and the client does not support
        it.
        """
        revision = call.protocol_version or FIRST_MODERN_VERSION
        if revision >= FIRST_MODERN_VERSION:
            if not tasks_2026_07_28.client_supports_tasks(call) and config.mode == "required":
                raise MissingClientCapability({"extensions": {EXTENSION: {}}})
            return tasks_2026_07_28.client_supports_tasks(call)
        if revision == V2025_11_25:
            wished = params.task is not EMPTY_RAW
            if not wished and config.mode == "required":
                raise MethodNotFound(f"Method not found: {name!r} must be called as a task")
            return wished
        if config.mode == "required":
            raise TaskRequired(name)
        return False

    async def _create(
        self, call: Call, params: CallToolParams, tool: Tool, config: TaskConfig, detached: DetachedCall | None = None
    ) -> Any:
        moment = now_ms()
        revision = call.protocol_version or FIRST_MODERN_VERSION
        facet = getattr(call.facet, "name", "")
        # Stored with the job, because it may run in another process, after a restart, when the
        # connection is gone.
        caller = TaskCaller(_principal(call), call.address, call.capabilities, call.client, revision, facet)
        # Clients of 2026-07-28 cannot request a time to live: `params.task` belongs to the older design.
        ttl = _wished_ttl(params, config) if revision < FIRST_MODERN_VERSION else _default_ttl(config)
        job = Job(
            id=jobs.new_id(),
            server=self._host.runtime.name,
            tool=self._host.registry.unique_key(tool),
            arguments=Raw(bytes(params.arguments) or b"{}"),
            owner=owner_id(call),
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
            answers={} if detached is None else detached.answers,
            outcome=Raw(b""),
        )
        with _store_errors("the task was not started"):
            await (await self.engine()).create(job, {} if detached is None else detached.steps)
        if revision >= FIRST_MODERN_VERSION:
            return tasks_2026_07_28.to_task_handle(job, config.poll_interval)
        return tasks_2025_11_25.to_create_result(job, config.poll_interval)

    # Task methods

    async def _job(self, call: Call) -> tuple[TaskEngine, Job]:
        """Return the job that a request names. Jobs of other owners are unknown (basic/security: ids are bound to
        callers).
        """
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
            tasks_2026_07_28.require_tasks_capability(call)
        params: TaskIdParams = METHODS[call.method].decode(call.params)
        job = None
        with _store_errors("the task cannot be read"):
            engine = await self.engine()
            # Other texts cannot be ids, and a NUL character in one would be an error of PostgreSQL.
            if _ID.fullmatch(params.task_id):
                job = await engine.get(params.task_id, owner_id(call))
        if job is None:
            raise InvalidParams(f"Unknown task: {params.task_id[:100]}", {"taskId": params.task_id[:100]})
        return engine, job

    async def _get(self, call: Call) -> Any:
        _, job = await self._job(call)
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
            return tasks_2026_07_28.to_detailed_task(job, self._poll(job))
        return tasks_2025_11_25.to_get_result(job, self._poll(job))

    async def _cancel(self, call: Call) -> Any:
        engine, job = await self._job(call)
        with _store_errors("the task was not cancelled"):
            cancelled = None if job.is_finished else await engine.cancel(job.id)
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
            return EmptyResult()
        if cancelled is None:
            _, job = await self._job(call)
            raise InvalidParams(
                f"The task has already finished: {tasks_2025_11_25.to_get_result(job, _POLL_SECONDS).status}"
            )
        return tasks_2025_11_25.to_get_result(cancelled, self._poll(job))

    async def _update(self, call: Call) -> EmptyResult:
        engine, job = await self._job(call)
        input_responses = METHODS["tasks/update"].decode(call.params).input_responses
        if input_responses is EMPTY_RAW:
            raise InvalidParams("Missing inputResponses: expected an object with one response for each key")
        try:
            responses = object_decoder.decode(input_responses)
        except msgspec.DecodeError:
            raise InvalidParams("Invalid inputResponses: expected an object with one response for each key") from None
        for key, question in job.questions.items():
            if key in responses:
                # Reject invalid responses here, where the client can correct them; the function could only fail.
                decode_response(responses[key], METHODS[question["method"]].result, key)
        with _store_errors("the responses were not stored"):
            await engine.update(job.id, responses)
        return EmptyResult()

    async def _result(self, call: Call) -> Any:
        """Wait for the end of a task (2025-11-25), relaying its input requests to the waiting client."""
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
            raise MethodNotFound.of(call.method)
        engine, named = await self._job(call)
        with _store_errors("the task cannot be read"):
            job = await InputRelay(call, engine, self._asked_requests).wait(named.id)
        if job is None:
            raise InvalidParams(f"Unknown task: {named.id}", {"taskId": named.id})
        return tasks_2025_11_25.to_call_result(job)

    async def _list(self, call: Call) -> Any:
        # Anonymous clients share an empty owner: a list would show each the tasks, and thereby the
        # ids, of all others.
        if (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION or call.is_anonymous:
            raise MethodNotFound.of(call.method)
        params = METHODS["tasks/list"].decode(call.params)
        cursors, owner = self._host.registry.cursors, owner_id(call)
        after = tasks_2025_11_25.parse_cursor(params.cursor, cursors, owner)
        with _store_errors("the tasks cannot be listed"):
            page = await (await self.engine()).list_jobs(owner, after)
        return tasks_2025_11_25.to_list_result(page, self._poll, cursors, owner)

    # Subscriptions

    def _listen(self, answer: MethodHandler, call: Call) -> Any:
        """Answer subscriptions/listen, including subscriptions to tasks."""
        task_ids = call.decode_params().notifications.task_ids
        return self._listen_to_tasks(answer, call, task_ids) if task_ids else answer(call)

    async def _listen_to_tasks(self, answer: MethodHandler, call: Call, task_ids: list[str]) -> Any:
        """Subscribe to tasks. Unknown ids and tasks of other owners are ignored."""
        params: SubscriptionsListenParams = call.decode_params()
        tasks_2026_07_28.require_tasks_capability(call)
        if len(task_ids) > MAX_URIS_PER_SUBSCRIBER:
            raise InternalError("Rejected: too many subscriptions")
        with _store_errors("the tasks cannot be read"):
            engine = await self.engine()
            jobs = await engine.get_many([id for id in dict.fromkeys(task_ids) if _ID.fullmatch(id)], owner_id(call))
        ids = [job.id for job in jobs]
        params = replace(params, notifications=replace(params.notifications, task_ids=ids))
        numbers = TASK_PROGRESS_EXTENSION in (call.capabilities.extensions or {})
        subscriber = Subscriber(
            call.reply.notify, SubscriptionFilter(task_ids=ids), {SUBSCRIPTION_ID_META_KEY: call.id}, numbers
        )
        for id in ids:
            self._subscribers.setdefault(id, set()).add(subscriber)
        # The server's acknowledgement must be the first message; it is sent in this turn of the loop, so notify in the
        # next.
        asyncio.get_running_loop().call_soon(self._send_initial_states, subscriber, engine, jobs)
        try:
            return await answer(replace(call, read=(call.params, params)))
        finally:
            for id in ids:
                self._subscribers[id].discard(subscriber)
                if not self._subscribers[id]:
                    del self._subscribers[id]

    def _send_initial_states(self, subscriber: Subscriber, engine: TaskEngine, jobs: list[Job]) -> None:
        """Send a new subscriber the state of its tasks, then the changes since they were read."""
        if not jobs or subscriber not in self._subscribers.get(jobs[0].id, ()):
            return
        for job in jobs:
            self._notify_subscriber(subscriber, job)
        self._background.start(self._tell_missed(engine, jobs))

    async def _tell_missed(self, engine: TaskEngine, jobs: list[Job]) -> None:
        before = {job.id: tasks_2026_07_28.visible_state(job) for job in jobs}
        try:
            for job in await engine.get_many(list(before), jobs[0].owner):
                if tasks_2026_07_28.visible_state(job) != before[job.id]:
                    self._notify_subscribers(job)
        except StoreError as failure:
            log.warning("task changes may have been missed: %s", failure)

    def _notify_subscribers(self, job: Job) -> None:
        for subscriber in list(self._subscribers.get(job.id, ())):
            self._notify_subscriber(subscriber, job)

    def _notify_subscriber(self, subscriber: Subscriber, job: Job) -> None:
        tag = {**subscriber.tag, **tasks_2026_07_28.progress_meta(job)} if subscriber.progress else subscriber.tag
        subscriber.notify(
            notifications.TASK_UPDATED,
            to_task_notification(tasks_2026_07_28.to_detailed_task(job, self._poll(job)), tag),
        )

    def _watched_tasks(self) -> Collection[str]:
        return self._subscribers.keys()


@contextmanager
def _store_errors(action: str) -> Iterator[None]:
    """Turn a StoreError into an InternalError that names the failed operation and an error id."""
    try:
        yield
    except StoreError as failure:
        why = "the server's disk is full" if isinstance(failure, DiskFull) else "its store failed"
        error_id = log_internal_error(failure, "tasks").data["errorId"]
        raise InternalError(
            f"Internal error: {action}, for {why} (error id {error_id})", {"errorId": error_id}
        ) from None


def owner_id(call: Call) -> str:
    """Return the owner of a client's tasks: a digest of the principal's identity, or empty without a principal."""
    identity = principal_id(call.principal)
    # A digest of fixed length: identities contain issuer and subject, which need not be readable in
    # the store.
    return "" if identity is None else sha256(identity.encode()).hexdigest()


def _principal(call: Call) -> Principal | None:
    """Return the principal in a form that can be stored."""
    principal = call.principal
    if principal is None or isinstance(principal, Principal):
        return principal
    scopes = getattr(principal, "scopes", None)
    return Principal(
        str(getattr(principal, "id", None) or principal), None if scopes is None else frozenset(map(str, scopes))
    )


def _default_ttl(config: TaskConfig) -> int | None:
    return None if config.ttl is None else int(config.ttl * 1000)


def _wished_ttl(params: CallToolParams, config: TaskConfig) -> int | None:
    """Return the time to live in milliseconds: the client's, within bounds, or else the tool's."""
    try:
        wished = msgspec.json.decode(params.task, type=TaskMetadata).ttl
    except msgspec.DecodeError:
        raise InvalidParams(
            "Invalid params for tools/call: task must be an object with a ttl in milliseconds"
        ) from None
    return _default_ttl(config) if wished is None else max(1000, int(min(wished, MAX_TTL_MS)))
