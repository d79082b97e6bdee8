"""Calls that run as tasks in this process: calls that need client input, and calls that the client requested as a
task.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import jsonrpc
from portico.protocol.errors import ProtocolError, ToolError
from portico.protocol.tasks import DetailedTask, TaskHandle
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.rpc.dispatcher import log_internal_error, tool_error_result
from portico.server.context.request_state import process_locator
from portico_gateway.gateway.server_request_bridge import SuspendedCall

MAX_LOCAL_TASKS = 10_000
MAX_LOCAL_TASKS_PER_CALLER = 64
# Lifetime of a task after its last use.
TASK_TTL_SECONDS = 600.0
POLL_INTERVAL_MS = 1000

# Cannot collide with an upstream, whose alias is never empty.
LOCAL_ALIAS = ""


class LocalTask(Struct, eq=False):
    """Task that runs in this process. `outcome` converts the result of the call for the client."""

    id: str
    parked: SuspendedCall
    outcome: Callable[[Any], Raw]
    created: float
    updated: float
    used: float
    cancelled: bool = False
    # Events of the followers, set on every change.
    followers: set[asyncio.Event] = msgspec.field(default_factory=set)

    def notify_followers(self) -> None:
        """Record a change and wake all followers."""
        self.updated = time.time()
        for follower in self.followers:
            follower.set()

    def to_handle(self) -> TaskHandle:
        """Return the handle for the client."""
        return TaskHandle(
            task_id=self.id,
            status="working",
            created_at=_format_timestamp(self.created),
            last_updated_at=_format_timestamp(self.updated),
            ttl_ms=int(TASK_TTL_SECONDS * 1000),
            poll_interval_ms=POLL_INTERVAL_MS,
        )

    def to_detailed_task(self) -> DetailedTask:
        """Return the task with its current status, input requests, result or error."""
        task = self.parked.task
        assert task is not None
        detailed = DetailedTask(
            task_id=self.id,
            status="working",
            created_at=_format_timestamp(self.created),
            last_updated_at=_format_timestamp(self.updated),
            ttl_ms=int(TASK_TTL_SECONDS * 1000),
            poll_interval_ms=POLL_INTERVAL_MS,
        )
        if self.cancelled or (task.done() and task.cancelled()):
            detailed.status = "cancelled"
        elif not task.done():
            if self.parked.asked:
                detailed.status, detailed.input_requests = "input_required", dict(self.parked.asked)
        else:
            self._conclude(detailed, task)
        return detailed

    def _conclude(self, detailed: DetailedTask, task: asyncio.Task[Any]) -> None:
        try:
            detailed.status, detailed.result = "completed", self.outcome(task.result())
        except ToolError as no:
            detailed.status, detailed.result = "completed", Raw(jsonrpc.encode(tool_error_result(no)))
        except Exception as failure:
            wrong = failure if isinstance(failure, ProtocolError) else log_internal_error(failure, "tools/call")
            detailed.status = "failed"
            detailed.error = {"code": wrong.code_for(FIRST_MODERN_VERSION), "message": wrong.message}

    def cancel(self) -> None:
        """Cancel the call, unless it is done."""
        assert self.parked.task is not None
        if not self.parked.task.done():
            self.cancelled = True
            self.parked.task.cancel()


class LocalTasks:
    """Local tasks of one gateway."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, LocalTask] = OrderedDict()

    def add(self, parked: SuspendedCall, outcome: Callable[[Any], Raw]) -> LocalTask:
        """Add a task for a suspended call. Raises ToolError if there are too many."""
        self._expire_stale()
        count = sum(item.parked.owner == parked.owner for item in self._tasks.values())
        if len(self._tasks) >= MAX_LOCAL_TASKS or count >= MAX_LOCAL_TASKS_PER_CALLER:
            raise ToolError("Too many tasks are running.", error_type="ApiLimitExceeded", retryable=True)
        now = time.time()
        task = LocalTask(process_locator() or os.urandom(12).hex(), parked, outcome, now, now, time.monotonic())
        parked.changed = task.notify_followers
        self._tasks[task.id] = task
        return task

    def get(self, id: str) -> LocalTask | None:
        """Return a task and mark it as used, or None."""
        task = self._tasks.get(id)
        if task is not None:
            task.used = time.monotonic()
            self._tasks.move_to_end(id)
        return task

    def _expire_stale(self) -> None:
        """Cancel and remove tasks that no client has used recently."""
        oldest = time.monotonic() - TASK_TTL_SECONDS
        while self._tasks and next(iter(self._tasks.values())).used < oldest:
            self._tasks.popitem(last=False)[1].cancel()

    async def close(self) -> None:
        tasks = [item.parked.task for item in self._tasks.values() if item.parked.task is not None]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _format_timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
