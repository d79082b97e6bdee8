"""Parameters of the tools, with their descriptions for clients."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from portico_services.workitems.dependencies import MAX_BLOCKERS
from portico_services.workitems.edits import DEFAULT_PRIORITY
from portico_services.workitems.ids import ID_LENGTH
from portico_services.workitems.item_store import MAX_LEASE_SECONDS
from portico_services.workitems.validation import (
    MAX_DESCRIPTION_CHARS,
    MAX_LABEL_CHARS,
    MAX_LABELS,
    MAX_NAME_CHARS,
    MAX_PROJECT_CHARS,
    MAX_TEXT_CHARS,
)

# The length of an id or its URI, with a margin: a longer value that is not an id gets a specific error.
MAX_ID_CHARS = ID_LENGTH + 200


def id_parameter(about: str) -> Meta:
    return Meta(min_length=1, max_length=MAX_ID_CHARS, description=about)


ItemId = Annotated[str, id_parameter("Task id, e.g. task_1hf3k9d0qv7e2m5rx")]
BlockedItemId = Annotated[str, id_parameter("Id of the blocked task")]
BlockerId = Annotated[str, id_parameter("Id of the task that must be completed first")]
DESCRIPTION_META = Meta(
    min_length=1,
    max_length=MAX_DESCRIPTION_CHARS,
    description="The work to do and when it is done, understandable for another worker",
)
PRIORITY_META = Meta(ge=1, le=5, description="1 (most urgent) to 5; default 3")
CONTEXT_META = Meta(
    max_length=MAX_TEXT_CHARS, description="Background for the worker: files, links, decisions, constraints"
)
Result = Annotated[str | None, Meta(max_length=MAX_TEXT_CHARS, description="Outcome")]
Worker = Annotated[
    str | None,
    Meta(
        max_length=MAX_NAME_CHARS,
        description="Your worker name, the same in every call; fails if another worker holds the task",
    ),
]
Lease = Annotated[
    int | None,
    Meta(
        ge=1,
        le=MAX_LEASE_SECONDS,
        description="Claim duration in seconds; afterwards others may claim the task. Default: until finished",
    ),
]
ExpectedVersion = Annotated[
    int | None, Meta(ge=1, description="Version you last read; the call fails if the task has changed since")
]
Reason = Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARS, description="Reason recorded in the history")]

Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_CHARS)]
LABELS_META = Meta(max_length=MAX_LABELS, description="Labels, e.g. backend, waiting-for-review")
LabelFilter = Annotated[list[Label] | None, Meta(max_length=MAX_LABELS, description="Only tasks with all these labels")]
DUE_META = Meta(max_length=40, description="Due date, 2026-01-31 or 2026-01-31T12:00:00Z (UTC by default)")
Project = Annotated[
    str | None,
    Meta(
        max_length=MAX_PROJECT_CHARS,
        description="Project name; default: the current project",
    ),
]
ProjectFilter = Annotated[
    str | None,
    Meta(
        max_length=MAX_PROJECT_CHARS,
        description='Project name, or "*" for all; default: the current project',
    ),
]


# Unknown fields are rejected: a misspelled `blocked_by` would silently create a plan without order.
class PlannedItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task of a batch."""

    description: Annotated[str, DESCRIPTION_META]
    ref: Annotated[
        str | None,
        Meta(min_length=1, max_length=MAX_NAME_CHARS, description="Name by which other tasks of this call refer to it"),
    ] = None
    parent_id: Annotated[str | None, id_parameter("Parent: a ref of this call or an id")] = None
    priority: Annotated[int, PRIORITY_META] = DEFAULT_PRIORITY
    context: Annotated[str, CONTEXT_META] = ""
    blocked_by: Annotated[
        list[str] | None,
        Meta(max_length=MAX_BLOCKERS, description="Refs of this call or ids that must be completed first"),
    ] = None
    labels: Annotated[list[Label] | None, LABELS_META] = None
    due: Annotated[str | None, DUE_META] = None
