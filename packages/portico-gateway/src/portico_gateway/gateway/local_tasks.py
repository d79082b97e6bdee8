"""Calls that go on in this process as tasks: those that ask, and those that only their client wants as one."""

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
from portico.protocol.versions import MODERN
from portico.rpc.dispatcher import refusal, unexpected
from portico.server.context.request_state import here
from portico_gateway.gateway.server_request_bridge import Parked

MOST_TASKS = 10_000
MOST_TASKS_PER_OWNER = 64
# How long one that nothing is asked of any more is kept.
KEPT_SECONDS = 600.0
POLL_MS = 1000

# Never the name of an upstream, for it cannot be empty.
OWN_ALIAS = ""


class BridgedTask(Struct, eq=False):
    """`outcome` makes the result that clients see of what the call came to."""

    id: str
    parked: Parked
    outcome: Callable[[Any], Raw]
    created: float
    updated: float
    used: float
    cancelled: bool = False
    # Set for those who follow it, whenever it changes.
    followers: set[asyncio.Event] = msgspec.field(default_factory=set)

    def changed(self) -> None:
        self.updated = time.time()
        for one in self.followers:
            one.set()

    def handle(self) -> TaskHandle:
        return TaskHandle(
            task_id=self.id,
            status="working",
            created_at=_iso(self.created),
            last_updated_at=_iso(self.updated),
            ttl_ms=int(KEPT_SECONDS * 1000),
            poll_interval_ms=POLL_MS,
        )

    def detailed(self) -> DetailedTask:
        task = self.parked.task
        assert task is not None
        said = DetailedTask(
            task_id=self.id,
            status="working",
            created_at=_iso(self.created),
            last_updated_at=_iso(self.updated),
            ttl_ms=int(KEPT_SECONDS * 1000),
            poll_interval_ms=POLL_MS,
        )
        if self.cancelled or (task.done() and task.cancelled()):
            said.status = "cancelled"
        elif not task.done():
            if self.parked.asked:
                said.status, said.input_requests = "input_required", dict(self.parked.asked)
        else:
            self._conclude(said, task)
        return said

    def _conclude(self, said: DetailedTask, task: asyncio.Task[Any]) -> None:
        try:
            said.status, said.result = "completed", self.outcome(task.result())
        except ToolError as no:
            said.status, said.result = "completed", Raw(jsonrpc.encode(refusal(no)))
        except Exception as failure:
            wrong = failure if isinstance(failure, ProtocolError) else unexpected(failure, "tools/call")
            said.status = "failed"
            said.error = {"code": wrong.code_at(MODERN), "message": wrong.message}

    def cancel(self) -> None:
        assert self.parked.task is not None
        if not self.parked.task.done():
            self.cancelled = True
            self.parked.task.cancel()


class BridgedTasks:
    """Those of one gateway."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, BridgedTask] = OrderedDict()

    def add(self, parked: Parked, outcome: Callable[[Any], Raw]) -> BridgedTask:
        """Raises ToolError, and ends the call, if there are too many."""
        self._sweep()
        mine = sum(one.parked.owner == parked.owner for one in self._tasks.values())
        if len(self._tasks) >= MOST_TASKS or mine >= MOST_TASKS_PER_OWNER:
            raise ToolError("Too many tasks are under way.", kind="ApiLimitExceeded", retryable=True)
        now = time.time()
        task = BridgedTask(here() or os.urandom(12).hex(), parked, outcome, now, now, time.monotonic())
        parked.changed = task.changed
        self._tasks[task.id] = task
        return task

    def get(self, id: str) -> BridgedTask | None:
        task = self._tasks.get(id)
        if task is not None:
            task.used = time.monotonic()
            self._tasks.move_to_end(id)
        return task

    def _sweep(self) -> None:
        """End those that no client has asked for in a while."""
        oldest = time.monotonic() - KEPT_SECONDS
        while self._tasks and next(iter(self._tasks.values())).used < oldest:
            self._tasks.popitem(last=False)[1].cancel()

    async def close(self) -> None:
        tasks = [one.parked.task for one in self._tasks.values() if one.parked.task is not None]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
