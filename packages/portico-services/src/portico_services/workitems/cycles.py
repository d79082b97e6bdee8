"""Circles: tasks that would wait for one another for ever.

To begin a task and to be done with it are two moments, and each has to wait for others:

    begun(x)  waits for  done(y)         for every blocker y of x
    begun(x)  waits for  begun'(parent)  that is: for the blockers of everything that x is a part of
    done(x)   waits for  begun(x)
    done(x)   waits for  done(c)         for every child c of x

As long as there is no circle among these moments, some task can always be worked on. Whatever adds a line to this
picture asks `path` whether there is a way back. States do not matter: what is completed today may be reopened tomorrow.

A way is looked for from both ends at once, always from the side of which less has been seen. One end of a new line is
most often a task that no other waits for, and then this ends at once, however large the plan is.
"""

from __future__ import annotations

from collections.abc import Iterable

from portico.extend import Transaction
from portico_services.workitems.errors import Circle, InvalidTask

MOST_LOOKED_AT = 20_000

# A moment of a task: ("begun" or "done", its id).
Moment = tuple[str, str]
Steps = dict[Moment, Moment | None]

_CHILDREN = "select parent_id, id from work_item where parent_id in :ids"
_PARENTS = "select id, parent_id from work_item where id in :ids and parent_id is not null"
_BLOCKERS = "select item, blocker from work_item_blocker where item in :ids"
_BLOCKED = "select blocker, item from work_item_blocker where blocker in :ids"
# From each kind of moment: the pairs that lead on, and the kind of moment they lead to.
_AHEAD = {"done": ((_CHILDREN, "done"),), "begun": ((_BLOCKERS, "done"), (_PARENTS, "begun"))}
_BACK = {"done": ((_BLOCKED, "begun"), (_PARENTS, "done")), "begun": ((_CHILDREN, "begun"),)}
# To be done with it, it has to be begun.
_SAME_AHEAD, _SAME_BACK = ("done", "begun"), ("begun", "done")


def refuse_blockers(tx: Transaction, item: str, blockers: Iterable[str]) -> None:
    """The task waits for the blockers already. Does one of them wait for the task?"""
    found = path(tx, [("done", one) for one in blockers], ("begun", item))
    if found is not None:
        raise Circle([item, *found])


def refuse_parent(tx: Transaction, item: str, parent: str) -> None:
    """The task is below the parent already. Is the parent below the task, or does either wait for the other?"""
    if item == parent:
        raise Circle([item, item])
    for source, target in ((("done", item), ("done", parent)), (("begun", parent), ("begun", item))):
        found = path(tx, [source], target)
        if found is not None:
            raise Circle([*found, found[0]])


def path(tx: Transaction, sources: list[Moment], target: Moment) -> list[str] | None:
    """The tasks on a way from one of several moments to one that it has to wait for; None if none has."""
    ahead: Steps = dict.fromkeys(sources)
    back: Steps = {target: None}
    front, rear = sources, [target]
    while front and rear:
        if len(ahead) + len(back) > MOST_LOOKED_AT:
            raise InvalidTask(
                f"More than {MOST_LOOKED_AT:,} tasks hang together here, too many to see whether some would wait for "
                "one another. Make fewer of them wait for fewer others."
            )
        if len(ahead) < len(back):
            front = _grow(tx, front, ahead, _AHEAD, _SAME_AHEAD)
            met = next((one for one in front if one in back), None)
        else:
            rear = _grow(tx, rear, back, _BACK, _SAME_BACK)
            met = next((one for one in rear if one in ahead), None)
        if met is not None:
            return _ids([*reversed(list(_trail(met, ahead))), *list(_trail(met, back))[1:]])
    return None


def _grow(
    tx: Transaction,
    frontier: list[Moment],
    seen: Steps,
    lines: dict[str, tuple[tuple[str, str], ...]],
    same: tuple[str, str],
) -> list[Moment]:
    """The moments one line further that have not been seen."""
    found: list[Moment] = []

    def step(origin: Moment, to: Moment) -> None:
        if to not in seen:
            seen[to] = origin
            found.append(to)

    for kind in ("done", "begun"):
        ids = [id for its_kind, id in frontier if its_kind == kind]
        if not ids:
            continue
        if kind == same[0]:
            for id in ids:
                step((kind, id), (same[1], id))
        for sql, other in lines[kind]:
            for origin, id in tx.all(tuple[str, str], sql, {"ids": ids}):
                step((kind, origin), (other, id))
    return found


def _trail(moment: Moment | None, seen: Steps) -> Iterable[Moment]:
    while moment is not None:
        yield moment
        moment = seen[moment]


def _ids(moments: list[Moment]) -> list[str]:
    """Each task once for each time the way comes by."""
    found: list[str] = []
    for _, id in moments:
        if not found or found[-1] != id:
            found.append(id)
    return found
