"""Exceptions of the work item service.

    WorkItemError              message written for the model
    ├── WorkItemNotFound       task_not_found
    ├── InvalidWorkItem        validation_error
    └── WorkItemConflict       the state of the tasks does not permit the call
        └── DependencyCycle    circle: tasks would wait for each other

No caller handles the other conflicts separately, so they differ in their code only: see the functions below. The base
class itself has the codes read_only and storage_error.

`brief` is a short message for clients of a compatible server. Its beginning stays as those clients know it; the cause
and the remedy follow in parentheses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from portico import ToolError

# An invalid id may be a whole text; quoting it in full would flood the model's context.
MAX_QUOTED_CHARS = 80


class WorkItemError(ToolError):
    """Base class of errors that a work item tool reports to the model."""

    error_code: ClassVar[str] = "internal_error"
    # One of the eight error types of contracts.
    error_type = "ToolExecutionError"

    def __init__(
        self,
        message: str,
        *,
        brief: str = "",
        code: str = "",
        error_type: str | None = None,
        retryable: bool | None = None,
        **details: Any,
    ) -> None:
        super().__init__(
            message,
            details={"code": code or self.error_code, "brief": brief or message, **details},
            error_type=error_type,
            retryable=retryable,
        )


class WorkItemNotFound(WorkItemError):
    error_code, error_type = "task_not_found", "ResourceNotFound"

    def __init__(self, id: str, why: str = "") -> None:
        short_id = id[:MAX_QUOTED_CHARS]
        super().__init__(
            f"Task {short_id!r} does not exist{why}. Use list_tasks to find ids.",
            brief=f"task not found: {short_id}",
            id=short_id,
        )


class InvalidWorkItem(WorkItemError):
    error_code, error_type = "validation_error", "ValidationError"


class WorkItemConflict(WorkItemError):
    error_code = "already_completed"


def illegal_transition(id: str, before: str, after: str, legal: Sequence[str]) -> WorkItemConflict:
    """Return the error for a status that the current one cannot become."""
    return WorkItemConflict(
        f"The task {id} is {before} and cannot become {after}. From {before} it can become {_join_or(legal)}.",
        brief=f"illegal transition: {before} to {after} (from {before} to {_join_or(legal)} only)",
        code="illegal_transition",
        id=id,
        status=before,
        legal=list(legal),
    )


def work_item_blocked(id: str, status: str, blockers: Mapping[str, str], children: Sequence[str]) -> WorkItemConflict:
    """Return the error for open blockers or children. `blockers` maps each to the task that it blocks."""
    sentences, brief = [], []
    if blockers:
        named = _list_ids(
            [blocker if of == id else f"{blocker} (blocks its parent {of})" for blocker, of in blockers.items()]
        )
        remedy = "complete that first, or remove the blocker with remove_blocker"
        sentences.append(f"It is blocked by {named}: {remedy}.")
        brief.append(f"blocked by {named}: {remedy}")
    if children:
        remedy = "complete, fail or delete them first"
        sentences.append(f"It has open children: {_list_ids(children)}. {remedy.capitalize()}.")
        brief.append(f"open children {_list_ids(children)}: {remedy}")
    return WorkItemConflict(
        f"The task {id} cannot become {status} yet. {' '.join(sentences)}",
        brief=f"task is waiting: {id} ({'; '.join(brief)})",
        code="blocked",
        id=id,
        blockers=list(blockers),
        children=list(children),
    )


class DependencyCycle(WorkItemConflict):
    error_code = "dependency_cycle"

    def __init__(self, path: Sequence[str]) -> None:
        self.path = list(path)
        ids = list(path) if len(path) <= 10 else [*path[:5], "…", *path[-4:]]
        message = f"Rejected: these tasks would wait for each other forever: {' → '.join(ids)}."
        if len(set(path)) == 1:
            message = f"Rejected: the task {path[0]} cannot block itself or be its own parent."
        super().__init__(
            f"{message} (A task waits for its blockers, its children, and the blockers of its parents.)",
            brief=f"cycle: {' -> '.join(ids)}",
            path=list(path),
        )


def work_item_closed(id: str, status: str, consequence: str) -> WorkItemConflict:
    """Return the error for a task that is completed or failed and not open for changes."""
    return WorkItemConflict(
        f"The task {id} is {status}, so {consequence}. Reopen it first: update_task with status pending.",
        brief=f"task is {status}: {id} (reopen it first: update_task with status pending)",
        code="task_closed",
        id=id,
        status=status,
    )


def has_children(id: str, children: Sequence[str], count: int) -> WorkItemConflict:
    """Return the error for a deletion that does not say what happens to the children."""
    below = f"{count:,} {'task' if count == 1 else 'tasks'} below it ({_list_ids(children)})"
    return WorkItemConflict(
        f"The task {id} has {below}. Choose what happens to them: "
        "children=delete deletes them too, children=keep moves them to the parent of this task.",
        brief=f"task has children: {id} ({below}; pass children=delete to delete them too, or children=keep to "
        "move them up)",
        code="has_children",
        id=id,
        children=list(children),
        count=count,
    )


def claimed_by_other(id: str, holder: str, worker: str) -> WorkItemConflict:
    """Return the error for a task that another worker holds."""
    return WorkItemConflict(
        f"The task {id} is claimed by {holder!r}, not by {worker!r}. A claim ends with its lease; next_task gives "
        "another task.",
        brief=f"task is claimed by another worker: {id} (it is with {holder!r}, and its claim ends with its lease)",
        # Clients match on this code.
        code="already_claimed",
        error_type="PermissionError",
        id=id,
        worker=holder,
    )


def version_conflict(id: str, expected: int, actual: int) -> WorkItemConflict:
    """Return the error for a task that has changed since it was read."""
    return WorkItemConflict(
        f"The task {id} is at version {actual}, expected version {expected}: it has changed since. "
        "Read it with get_task and try again with its version.",
        brief=f"version conflict: {id} (expected {expected}, it is {actual}: read it again with get_task)",
        code="version_conflict",
        id=id,
        expected=expected,
        found=actual,
    )


def read_only() -> WorkItemError:
    """Return the error for a change of read-only tasks."""
    return WorkItemError(
        "These tasks are read-only.", brief="read-only", code="read_only", error_type="PermissionError"
    )


def _join_or(words: Sequence[str]) -> str:
    """Return the words joined with commas and "or"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _list_ids(ids: Sequence[str], limit: int = 5) -> str:
    """Return the ids joined with commas, at most `limit`."""
    return ", ".join(ids[:limit]) + (", …" if len(ids) > limit else "")
