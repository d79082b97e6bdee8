"""Both designs of tasks, each in the words of the other. Inside the gateway a task is as 2026-07-28 has it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from portico.protocol import jsonrpc, translation
from portico.protocol.errors import ProtocolError
from portico.protocol.meta import ClientCapabilities
from portico.protocol.tasks import (
    ENDED,
    EXTENSION,
    RELATED,
    CreateTaskResult,
    DetailedTask,
    Task,
    TaskHandle,
    TaskNotice,
)
from portico_gateway.gateway.catalog_entries import Members, members

_detailed = msgspec.json.Decoder(DetailedTask)


class _BegunResult(Struct, rename="camel"):
    result_type: str = "complete"
    task_id: str = ""
    task: Task | None = None


def begun(result: Raw) -> TaskHandle | None:
    """The task that a call has become, in either design; None for any other result."""
    if b'"taskId"' not in bytes(result):
        return None
    try:
        kind = msgspec.json.decode(result, type=_BegunResult)
        if kind.result_type == "task":
            return msgspec.json.decode(result, type=TaskHandle)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _handle(kind.task) if kind.task is not None else None


def _handle(task: Task) -> TaskHandle:
    return TaskHandle(
        task_id=task.task_id,
        status="working",
        status_message=task.status_message,
        created_at=task.created_at,
        last_updated_at=task.last_updated_at,
        ttl_ms=task.ttl,
        poll_interval_ms=task.poll_interval,
    )


def created(handle: TaskHandle) -> CreateTaskResult:
    """The answer to a client of 2025-11-25 that asked for a task."""
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


def read(result: Raw) -> DetailedTask:
    """What an upstream says of a task, in either design. Raises ProtocolError for what says nothing."""
    try:
        inside = members.decode(result)
        # Some examples of the extension have "task" here, and 2025-11-25 has nothing.
        inside["resultType"] = Raw(b'"complete"')
        task = _detailed.decode(jsonrpc.encode(inside))
    except (msgspec.DecodeError, RecursionError) as mistake:
        raise ProtocolError(f"the state of a task cannot be read: {mistake}") from None
    if task.ttl_ms is UNSET:
        task.ttl_ms = None if task.ttl is UNSET else task.ttl
    task.poll_interval_ms = task.poll_interval_ms or task.poll_interval
    task.ttl, task.poll_interval = UNSET, None
    for name in ("result", "error"):
        if name in inside:
            setattr(task, name, inside[name])
    return task


def old(task: DetailedTask, kind: type[Any] = DetailedTask) -> Any:
    """A task as 2025-11-25 says it: without its outcome, and one whose tool said no has failed."""
    status = translation.task_status(task)
    return kind(
        task_id=status.task_id,
        status=status.status,
        status_message=status.status_message,
        created_at=status.created_at,
        last_updated_at=status.last_updated_at,
        ttl=status.ttl,
        poll_interval=status.poll_interval,
    )


def notice(task: DetailedTask, tag: dict[str, Any]) -> TaskNotice:
    inside = {name: getattr(task, name) for name in TaskNotice.__struct_fields__}
    return TaskNotice(**{**inside, "meta": tag})


def visible(task: TaskNotice) -> tuple[Any, ...]:
    """What a listener can see of a task, apart from when."""
    asked = task.input_requests if isinstance(task.input_requests, dict) else {}
    return task.status, task.status_message, sorted(asked)


def with_id(result: Raw, id: str) -> Raw:
    """A result that says which task it is of, with another id: in its own member, and where it is related to one."""
    inside: Members = members.decode(result)
    changed: dict[str, Any] = dict(inside)
    if "taskId" in inside:
        changed["taskId"] = id
    if RELATED.encode() in bytes(inside.get("_meta", b"")):
        changed["_meta"] = {**members.decode(inside["_meta"]), RELATED: {"taskId": id}}
    return Raw(jsonrpc.encode(changed))


def related(result: Raw, id: str) -> Raw:
    """2025-11-25, basic/utilities/tasks: the answer to `tasks/result` says which task it is of."""
    inside: dict[str, Any] = dict(members.decode(result))
    inside["_meta"] = {**members.decode(inside.get("_meta", b"{}")), RELATED: {"taskId": id}}
    return Raw(jsonrpc.encode(inside))


def unrelated(result: Raw) -> Raw:
    """The same without saying so."""
    inside: dict[str, Any] = dict(members.decode(result))
    meta = members.decode(inside.pop("_meta", b"{}"))
    meta.pop(RELATED, None)
    return Raw(jsonrpc.encode({**inside, "_meta": meta} if meta else inside))


def has_ended(task: TaskNotice) -> bool:
    return task.status in ENDED


def declares(able: ClientCapabilities) -> bool:
    """Whether a client of 2026-07-28 can deal with tasks; each request says so for itself."""
    return able.extensions is not None and EXTENSION in able.extensions


def declaring(able: ClientCapabilities) -> ClientCapabilities:
    return msgspec.structs.replace(able, extensions={**(able.extensions or {}), EXTENSION: {}})
