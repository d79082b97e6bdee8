"""Tasks: two incompatible designs with overlapping names.

In 2025-11-25 they are an experimental core feature: the caller requests a task and fetches its result with
`tasks/result`. The extension `io.modelcontextprotocol/tasks` of 2026-07-28 lets the server decide and returns
everything from `tasks/get`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from portico.protocol.content import Result
from portico.protocol.jsonrpc import EMPTY_RAW
from portico.protocol.meta import BoundedName, RequestParams

EXTENSION = "io.modelcontextprotocol/tasks"
# The qualified name, for modules that import several extensions.
TASKS_EXTENSION = EXTENSION
RELATED_TASK_META_KEY = "io.modelcontextprotocol/related-task"
# A Portico extension: listeners that declare it receive the numeric progress of a task in `_meta`.
TASK_PROGRESS_EXTENSION = "portico/progress"

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

TERMINAL_STATUSES = frozenset({"completed", "failed", "cancelled"})


class TaskIdParams(RequestParams, rename="camel", gc=False):
    """Parameters that name a task."""

    task_id: BoundedName


class UpdateTaskParams(RequestParams, rename="camel", gc=False):
    task_id: str
    input_responses: Raw = EMPTY_RAW


class _TaskFields(Struct, omit_defaults=True, rename="camel", kw_only=True):
    """Members that both designs share; they differ in nesting and in the unit of times."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str
    last_updated_at: str


class Task(_TaskFields, kw_only=True):
    """Task of 2025-11-25. `ttl` is always present and may be null."""

    ttl: int | None
    poll_interval: int | None = None


class TaskStatusParams(Task, kw_only=True):
    """`notifications/tasks/status`: the task's members, not nested."""

    meta: dict[str, Any] | None = field(default=None, name="_meta")


class CreateTaskResult(Result, kw_only=True):
    task: Task


class ListTasksResult(Result, kw_only=True):
    tasks: list[Task]
    next_cursor: str | UnsetType | None = UNSET


class TaskHandle(_TaskFields, tag_field="resultType", tag="task", kw_only=True):
    """Response of the extension to a call that became a task."""

    ttl_ms: int | None
    poll_interval_ms: int | None = None
    meta: Any = field(default=UNSET, name="_meta")


class TaskNotificationParams(_TaskFields, kw_only=True):
    """`notifications/tasks`: the complete task, with its outcome next to the status."""

    ttl_ms: int | UnsetType | None = UNSET
    poll_interval_ms: int | None = None
    result: Any = UNSET
    error: Any = UNSET
    input_requests: Any = UNSET
    meta: Any = field(default=UNSET, name="_meta")


class DetailedTask(TaskNotificationParams, tag_field="resultType", tag="complete", kw_only=True):
    """Result of `tasks/get` in either design, and of `tasks/cancel` in 2025-11-25."""

    ttl: int | UnsetType | None = UNSET
    poll_interval: int | None = None


def to_task_notification(task: DetailedTask, tag: dict[str, Any]) -> TaskNotificationParams:
    """Build the notification of a task. `tag` is its `_meta`."""
    members = {name: getattr(task, name) for name in TaskNotificationParams.__struct_fields__}
    return TaskNotificationParams(**{**members, "meta": tag})
