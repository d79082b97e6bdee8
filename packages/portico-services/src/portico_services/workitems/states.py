"""Statuses of a work item and their transitions.

A transition sets the times: `started_at` when it starts, `completed_at` when it is completed or failed. Going back to
pending resets both times, the worker, the lease and the result; the history retains them.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from portico_services.workitems.errors import illegal_transition

Status = Literal["pending", "in_progress", "completed", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)

# Allowed transitions by status.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "pending": ("in_progress", "completed", "failed"),
    "in_progress": ("completed", "failed", "pending"),
    "completed": ("pending",),
    "failed": ("pending",),
}
# Statuses that require completed blockers or closed children. Failing does not require completed blockers, but a closed
# task cannot have open children.
REQUIRES_BLOCKERS_DONE = ("in_progress", "completed")
REQUIRES_CHILDREN_DONE = ("completed", "failed")


def apply_transition(id: str, before: str, after: str, now: int, worker: str | None) -> dict[str, Any]:
    """Return the fields that a transition changes. Raises `WorkItemConflict`."""
    if after not in TRANSITIONS[before]:
        raise illegal_transition(id, before, after, TRANSITIONS[before])
    # A released or reopened task starts over: an old worker or lease must not remain, or it could not be claimed
    # again.
    if after == "pending":
        fresh = dict.fromkeys(("started_at", "completed_at", "worker", "lease_until"))
        return {"status": after, "result": "", **fresh}
    if after == "in_progress":
        return {"status": after, "started_at": now, "worker": worker}
    # The worker stays, to show who finished it; the lease ends, so that no expiry reopens a finished task.
    return {"status": after, "completed_at": now, "lease_until": None}
