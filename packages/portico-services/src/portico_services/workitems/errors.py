"""The refusals of the task service.

```
TaskRefusal              its text is written for the model
├── NoSuchTask           task_not_found
├── InvalidTask          validation_error
├── NotNow               what is asked does not go with the state of the tasks
│   ├── IllegalTransition    illegal_transition
│   ├── Waits                waiting: for blockers or children
│   ├── Circle               circle: tasks would wait for one another
│   ├── TaskClosed           over: it is completed or has failed, and takes nothing new
│   ├── HasChildren          has_children: the call does not say what becomes of them
│   ├── ClaimedByOther       taken: another worker has it
│   └── TaskChanged          version_conflict: the task was changed since it was read
├── TasksReadOnly        read_only
└── TaskStoreFailed      storage_error
```

`brief` says the same in a few words, for clients that were written for another server. Its beginning stays as those
clients know it; what blocks and what helps stands behind it in brackets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from portico import ToolError

LONGEST_QUOTE = 80


class TaskRefusal(ToolError):
    code: ClassVar[str] = "internal_error"
    # One of the eight words that contracts have for errors.
    kind = "ToolExecutionError"

    def __init__(self, message: str, *, brief: str = "", retryable: bool | None = None, **details: Any) -> None:
        super().__init__(
            message, details={"code": self.code, "brief": brief or message, **details}, retryable=retryable
        )


class NoSuchTask(TaskRefusal):
    code, kind = "task_not_found", "ResourceNotFound"

    def __init__(self, id: str, why: str = "") -> None:
        shown = id[:LONGEST_QUOTE]
        super().__init__(
            f"There is no task {shown!r}{why}. list_tasks says which there are.",
            brief=f"task not found: {shown}",
            id=shown,
        )


class InvalidTask(TaskRefusal):
    code, kind = "validation_error", "ValidationError"


class NotNow(TaskRefusal):
    code = "not_now"


class IllegalTransition(NotNow):
    code = "illegal_transition"

    def __init__(self, id: str, before: str, after: str, legal: Sequence[str]) -> None:
        super().__init__(
            f"The task {id} is {before} and cannot become {after}. From {before} it can become {_either(legal)}.",
            brief=f"illegal transition: {before} to {after} (from {before} to {_either(legal)} only)",
            id=id,
            status=before,
            legal=list(legal),
        )


class Waits(NotNow):
    code = "waiting"

    def __init__(self, id: str, wanted: str, blockers: Mapping[str, str], children: Sequence[str]) -> None:
        """`blockers` maps each blocker to the task that has it: this one, or one that this is a part of."""
        said, brief = [], []
        if blockers:
            named = _some([one if of == id else f"{one} (blocks its parent {of})" for one, of in blockers.items()])
            remedy = "complete that first, or take the blocker off with remove_blocker"
            said.append(f"It waits for {named}: {remedy}.")
            brief.append(f"blocked by {named}: {remedy}")
        if children:
            remedy = "complete, fail or delete them first"
            said.append(f"Its children are not over: {_some(children)}. {remedy.capitalize()}.")
            brief.append(f"open children {_some(children)}: {remedy}")
        super().__init__(
            f"The task {id} cannot become {wanted} yet. {' '.join(said)}",
            brief=f"task is waiting: {id} ({'; '.join(brief)})",
            id=id,
            blockers=list(blockers),
            children=list(children),
        )


class Circle(NotNow):
    code = "circle"

    def __init__(self, path: Sequence[str]) -> None:
        self.path = list(path)
        shown = list(path) if len(path) <= 10 else [*path[:5], "…", *path[-4:]]
        said = f"Refused: these tasks would wait for one another for ever: {' → '.join(shown)}."
        if len(set(path)) == 1:
            said = f"Refused: the task {path[0]} cannot wait for itself, nor be a part of itself."
        super().__init__(
            f"{said} (A task waits for its blockers, for its children, and for the blockers of what it is a part of.)",
            brief=f"cycle: {' -> '.join(shown)}",
            path=list(path),
        )


class TaskClosed(NotNow):
    code = "over"

    def __init__(self, id: str, status: str, wanted: str) -> None:
        super().__init__(
            f"The task {id} is {status}, so {wanted}. Reopen it first: update_task with status pending.",
            brief=f"task is {status}: {id} (reopen it first: update_task with status pending)",
            id=id,
            status=status,
        )


class HasChildren(NotNow):
    code = "has_children"

    def __init__(self, id: str, children: Sequence[str], count: int) -> None:
        below = f"{count:,} {'task' if count == 1 else 'tasks'} below it ({_some(children)})"
        super().__init__(
            f"The task {id} has {below}. Say what becomes of them: "
            "children=delete deletes them too, children=keep moves them up to where this task was.",
            brief=f"task has children: {id} ({below}; pass children=delete to delete them too, or children=keep to "
            "move them up)",
            id=id,
            children=list(children),
            count=count,
        )


class ClaimedByOther(NotNow):
    code, kind = "taken", "PermissionError"

    def __init__(self, id: str, holder: str, worker: str) -> None:
        super().__init__(
            f"The task {id} is with {holder!r} now, not with {worker!r}. A claim ends with its lease; next_task gives "
            "another task.",
            brief=f"task is claimed by another worker: {id} (it is with {holder!r}, and its claim ends with its lease)",
            id=id,
            worker=holder,
        )


class TaskChanged(NotNow):
    code = "version_conflict"

    def __init__(self, id: str, expected: int, found: int) -> None:
        super().__init__(
            f"The task {id} is at version {found}, and version {expected} was expected: it was changed since. "
            "Read it with get_task and try again with its version.",
            brief=f"version conflict: {id} (expected {expected}, it is {found}: read it again with get_task)",
            id=id,
            expected=expected,
            found=found,
        )


class TasksReadOnly(TaskRefusal):
    code, kind = "read_only", "PermissionError"

    def __init__(self) -> None:
        super().__init__("These tasks are read-only: they can be looked at, and not changed.", brief="read-only")


class TaskStoreFailed(TaskRefusal):
    code = "storage_error"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _some(ids: Sequence[str], most: int = 5) -> str:
    return ", ".join(ids[:most]) + (", …" if len(ids) > most else "")
