"""The states of a work item, and how it comes from one to another.

A transition sets the times: `started_at` when it is begun, `completed_at` when it is completed or has failed. What goes
back to pending begins anew: both times, the worker, the lease and the result are taken off. The history keeps them.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from portico_services.workitems.errors import IllegalTransition

Status = Literal["pending", "in_progress", "completed", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)

# From each state, where it can go.
LEGAL: dict[str, tuple[str, ...]] = {
    "pending": ("in_progress", "completed", "failed"),
    "in_progress": ("completed", "failed", "pending"),
    "completed": ("pending",),
    "failed": ("pending",),
}
# Not to be reached while its blockers are not completed, or its children not over. Giving up does not wait for
# blockers; but what is over has nothing open below it.
NEEDS_BLOCKERS = ("in_progress", "completed")
NEEDS_CHILDREN = ("completed", "failed")


def transition(id: str, before: str, after: str, now: int, worker: str | None) -> dict[str, Any]:
    """The fields that a transition changes."""
    if after not in LEGAL[before]:
        raise IllegalTransition(id, before, after, LEGAL[before])
    if after == "pending":
        fresh = dict.fromkeys(("started_at", "completed_at", "worker", "lease_until"))
        return {"status": after, "result": "", **fresh}
    if after == "in_progress":
        return {"status": after, "started_at": now, "worker": worker}
    return {"status": after, "completed_at": now, "lease_until": None}
