"""Translation between the two task designs. Internally, a task has its 2026-07-28 form."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.protocol import jsonrpc, translation
from portico.protocol.errors import ProtocolError
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.meta import ClientCapabilities
from portico.protocol.tasks import (
    EXTENSION,
    RELATED_TASK_META_KEY,
    TERMINAL_STATUSES,
    CreateTaskResult,
    DetailedTask,
    Task,
    TaskHandle,
    TaskNotificationParams,
)
from portico_gateway.gateway.catalog_entries import RawObject

_detailed = msgspec.json.Decoder(DetailedTask)


class _TaskCreation(Struct, rename="camel"):
    result_type: str = "complete"
    task_id: str = ""
    task: Task | None = None


def parse_created_task(result: Raw) -> TaskHandle | None:
    """Return the handle of a task that a call created, in either design; None for any other result."""
    # A substring search first: almost no result creates a task, and results may be large.
    if b'"taskId"' not in bytes(result):
        return None
    try:
        kind = msgspec.json.decode(result, type=_TaskCreation)
        if kind.result_type == "task":
            return msgspec.json.decode(result, type=TaskHandle)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _to_handle(kind.task) if kind.task is not None else None


def _to_handle(task: Task) -> TaskHandle:
    return TaskHandle(
        task_id=task.task_id,
        status="working",
        status_message=task.status_message,
        created_at=task.created_at,
        last_updated_at=task.last_updated_at,
        ttl_ms=task.ttl,
        poll_interval_ms=task.poll_interval,
    )


def to_create_task_result(handle: TaskHandle) -> CreateTaskResult:
    """Return the response for a 2025-11-25 client that requested a task."""
    return CreateTaskResult(
        task=Task(
            task_id=handle.task_id,
            status="working",
            status_message=handle.status_message,
            created_at=handle.created_at,
            last_updated_at=handle.last_updated_at,
            ttl=handle.ttl_ms,
            poll_interval=handle.poll_interval_ms,
        )
    )


def parse_task(result: Raw) -> DetailedTask:
    """Parse the state of a task, in either design. Raises ProtocolError if it is invalid."""
    try:
        inside = object_decoder.decode(result)
        # Some examples of the extension have "task" here, and 2025-11-25 has no such member.
        inside["resultType"] = Raw(b'"complete"')
        task = _detailed.decode(jsonrpc.encode(inside))
    except (msgspec.DecodeError, RecursionError) as mistake:
        raise ProtocolError(f"invalid task state: {mistake}") from None
    # 2025-11-25 names the members `ttl` and `pollInterval`; only the later names are used from here on.
    if task.ttl_ms is UNSET:
        task.ttl_ms = None if task.ttl is UNSET else task.ttl
    task.poll_interval_ms = task.poll_interval_ms or task.poll_interval
    task.ttl, task.poll_interval = UNSET, None
    for name in ("result", "error"):
        if name in inside:
            setattr(task, name, inside[name])
    return task


def to_2025_11_25(task: DetailedTask, kind: type[Any] = DetailedTask) -> Any:
    """Convert a task to 2025-11-25: without its result, and with a tool error as status `failed`."""
    status = translation.to_task_status(task)
    return kind(
        task_id=status.task_id,
        status=status.status,
        status_message=status.status_message,
        created_at=status.created_at,
        last_updated_at=status.last_updated_at,
        ttl=status.ttl,
        poll_interval=status.poll_interval,
    )


def observable_state(task: TaskNotificationParams) -> tuple[Any, ...]:
    """Return the part of a task's state that a listener can observe, without timestamps."""
    requests = task.input_requests if isinstance(task.input_requests, dict) else {}
    # Timestamps alone must not cause a notification.
    return task.status, task.status_message, sorted(requests)


def replace_task_id(result: Raw, id: str) -> Raw:
    """Replace the task ID in a result: in its own member and in the related-task metadata."""
    inside: RawObject = object_decoder.decode(result)
    changed: dict[str, Any] = dict(inside)
    if "taskId" in inside:
        changed["taskId"] = id
    if RELATED_TASK_META_KEY.encode() in bytes(inside.get("_meta", b"")):
        changed["_meta"] = {**object_decoder.decode(inside["_meta"]), RELATED_TASK_META_KEY: {"taskId": id}}
    return Raw(jsonrpc.encode(changed))


def add_related_task(result: Raw, id: str) -> Raw:
    """Add the related task to a `tasks/result` response, as 2025-11-25 (basic/utilities/tasks) requires."""
    inside: dict[str, Any] = dict(object_decoder.decode(result))
    inside["_meta"] = {**object_decoder.decode(inside.get("_meta", b"{}")), RELATED_TASK_META_KEY: {"taskId": id}}
    return Raw(jsonrpc.encode(inside))


def remove_related_task(result: Raw) -> Raw:
    """Remove the related task from a result."""
    inside: dict[str, Any] = dict(object_decoder.decode(result))
    meta = object_decoder.decode(inside.pop("_meta", b"{}"))
    meta.pop(RELATED_TASK_META_KEY, None)
    return Raw(jsonrpc.encode({**inside, "_meta": meta} if meta else inside))


def is_terminal(task: TaskNotificationParams) -> bool:
    return task.status in TERMINAL_STATUSES


def supports_tasks(able: ClientCapabilities) -> bool:
    """Return whether a 2026-07-28 client supports tasks; it declares so in each request."""
    return able.extensions is not None and EXTENSION in able.extensions


def with_tasks_capability(able: ClientCapabilities) -> ClientCapabilities:
    return msgspec.structs.replace(able, extensions={**(able.extensions or {}), EXTENSION: {}})
