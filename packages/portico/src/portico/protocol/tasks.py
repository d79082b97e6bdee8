"""Tasks: two incompatible designs that share some names.

2025-11-25 has them as an experiment in the core: a caller asks for a task, and gets its result by `tasks/result`. The
extension `io.modelcontextprotocol/tasks` of 2026-07-28 lets the server decide, and puts everything into `tasks/get`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import Result
from portico.protocol.jsonrpc import NOTHING
from portico.protocol.meta import Name, Params

EXTENSION = "io.modelcontextprotocol/tasks"
# Its name where there are others beside it.
TASKS_EXTENSION = EXTENSION
RELATED = "io.modelcontextprotocol/related-task"
# An extension of ours: a listener that declares it is told in `_meta` how far a task is, in numbers.
PROGRESS = "portico/progress"

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]

ENDED = frozenset({"completed", "failed", "cancelled"})


class TaskParams(Params, rename="camel", gc=False):
    """What names a task."""

    task_id: Name


class UpdateTaskParams(Params, rename="camel", gc=False):
    task_id: str
    input_responses: Raw = NOTHING


class _TaskState(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """What both designs say of a task; where they put it, and in which unit its times are, is what they differ in."""

    task_id: str
    status: Status
    status_message: str | None = None
    created_at: str
    last_updated_at: str


class Task(_TaskState, kw_only=True):
    """A task of 2025-11-25. `ttl` may be null, and is said then too."""

    ttl: int | None
    poll_interval: int | None = None


class TaskStatusParams(Task, kw_only=True):
    """`notifications/tasks/status`: the task itself, flat."""

    meta: dict[str, Any] | None = field(default=None, name="_meta")


class CreateTaskResult(Result, kw_only=True):
    task: Task


class ListTasksResult(Result, kw_only=True):
    tasks: list[Task]
    next_cursor: str | UnsetType | None = UNSET


class TaskHandle(_TaskState, tag_field="resultType", tag="task", kw_only=True):
    """The extension's answer to a call that has become a task."""

    ttl_ms: int | None
    poll_interval_ms: int | None = None
    meta: Any = field(default=UNSET, name="_meta")


class TaskNotice(_TaskState, kw_only=True):
    """`notifications/tasks`: a whole task, told to a listener. The outcome stands beside the status."""

    ttl_ms: int | UnsetType | None = UNSET
    poll_interval_ms: int | None = None
    result: Any = UNSET
    error: Any = UNSET
    input_requests: Any = UNSET
    meta: Any = field(default=UNSET, name="_meta")


class DetailedTask(TaskNotice, tag_field="resultType", tag="complete", kw_only=True):
    """`tasks/get` of either design, and `tasks/cancel` of 2025-11-25."""

    ttl: int | UnsetType | None = UNSET
    poll_interval: int | None = None


def notified(task: DetailedTask, tag: dict[str, Any]) -> TaskNotice:
    members = {name: getattr(task, name) for name in TaskNotice.__struct_fields__}
    return TaskNotice(**{**members, "meta": tag})
