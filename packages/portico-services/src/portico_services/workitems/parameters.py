"""The parameters of the tools, as clients are told of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from portico_services.workitems.dependencies import MOST_BLOCKERS
from portico_services.workitems.edits import PRIORITY
from portico_services.workitems.ids import LENGTH
from portico_services.workitems.item_store import LONGEST_LEASE
from portico_services.workitems.validation import (
    LONGEST_DESCRIPTION,
    LONGEST_LABEL,
    LONGEST_NAME,
    LONGEST_PROJECT,
    LONGEST_TEXT,
    MOST_LABELS,
)

# As long as an id or its address can be, with some room for what is none: that gets an error of its own.
LONGEST_ID = LENGTH + 200


def id_of(about: str) -> Meta:
    return Meta(min_length=1, max_length=LONGEST_ID, description=about)


Id = Annotated[str, id_of("The id of the task, such as task_1hf3k9d0qv7e2m5rx")]
TaskId = Annotated[str, id_of("The id of the task that waits")]
BlockerId = Annotated[str, id_of("The id of the task that it waits for")]
DESCRIPTION = Meta(
    min_length=1,
    max_length=LONGEST_DESCRIPTION,
    description="What is to be done, so that another worker understands it and can tell when it is done",
)
URGENCY = Meta(ge=1, le=5, description="1 is the most urgent, 5 the least; 3 is usual")
BACKGROUND = Meta(
    max_length=LONGEST_TEXT, description="What a worker has to know: files, links, decisions, constraints"
)
Result = Annotated[str | None, Meta(max_length=LONGEST_TEXT, description="What came of it")]
Worker = Annotated[
    str | None,
    Meta(
        max_length=LONGEST_NAME,
        description="Who works on it: a name of your own, the same each time. Refused if another worker has the task",
    ),
]
Lease = Annotated[
    int | None,
    Meta(
        ge=1,
        le=LONGEST_LEASE,
        description="For how many seconds it is yours; then others may get it, unless it is finished or renewed",
    ),
]
ExpectedVersion = Annotated[
    int | None, Meta(ge=1, description="The version you have read; refused if it has changed since")
]
Reason = Annotated[str, Meta(max_length=LONGEST_DESCRIPTION, description="Why, for its history")]

Label = Annotated[str, Meta(min_length=1, max_length=LONGEST_LABEL)]
LABELS = Meta(max_length=MOST_LABELS, description="Words to find it by, such as backend or waiting-for-review")
AllLabels = Annotated[
    list[Label] | None, Meta(max_length=MOST_LABELS, description="Only tasks that have all these labels")
]
DUE = Meta(max_length=40, description="When it is due: 2026-01-31, or 2026-01-31T12:00:00Z; without a zone it is UTC")
Project = Annotated[
    str | None,
    Meta(
        max_length=LONGEST_PROJECT,
        description="Whose list: the name of a project. Left out: the one that you, or the server, are working in",
    ),
]
AnyProject = Annotated[
    str | None,
    Meta(
        max_length=LONGEST_PROJECT,
        description='Whose list: the name of a project, or "*" for all. Left out: the one you are working in',
    ),
]


class PlannedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several tasks that are made at once."""

    description: Annotated[str, DESCRIPTION]
    ref: Annotated[
        str | None, Meta(min_length=1, max_length=LONGEST_NAME, description="What the others of this call call it")
    ] = None
    parent_id: Annotated[str | None, id_of("The task that it is a part of: a ref of this call, or an id")] = None
    priority: Annotated[int, URGENCY] = PRIORITY
    context: Annotated[str, BACKGROUND] = ""
    blocked_by: Annotated[
        list[str] | None,
        Meta(max_length=MOST_BLOCKERS, description="What must be completed first: refs of this call, or ids"),
    ] = None
    labels: Annotated[list[Label] | None, LABELS] = None
    due: Annotated[str | None, DUE] = None
