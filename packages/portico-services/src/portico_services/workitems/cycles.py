"""Cycle detection: tasks that would wait for each other forever.

A task has two events, its start and its end, and each depends on others:

    begun(x)  waits for  done(y)         for every blocker y of x
    begun(x)  waits for  begun'(parent)  that is: for the blockers of all ancestors of x
    done(x)   waits for  begun(x)
    done(x)   waits for  done(c)         for every child c of x

As long as these dependencies form no cycle, some task can always be worked on. Every change that adds a dependency
calls `find_path` to check for a path back. The status does not matter: a completed task may be reopened.

The search is bidirectional and always expands the side that has visited fewer nodes. One end of a new dependency is
usually a task that no other waits for, and then the search ends immediately, however large the plan is.
"""

from __future__ import annotations

from collections.abc import Iterable

from portico.extend import Transaction
from portico_services.workitems.errors import DependencyCycle, InvalidWorkItem

# Bounds the time of a write transaction. A plan of this size is rejected rather than checked in part.
MAX_VISITED_NODES = 20_000

# Event of a task: ("begun" or "done", its id).
GraphNode = tuple[str, str]
# Each visited node with the one it was reached from, to reconstruct the path for the error message.
Predecessors = dict[GraphNode, GraphNode | None]

_CHILDREN = "select parent_id, id from work_item where parent_id in :ids"
_PARENTS = "select id, parent_id from work_item where id in :ids and parent_id is not null"
_BLOCKERS = "select item, blocker from work_item_blocker where item in :ids"
_BLOCKED = "select blocker, item from work_item_blocker where blocker in :ids"
# For each kind of event: the statements that follow its edges, and the kind of event they lead to.
_FORWARD_EDGES = {"done": ((_CHILDREN, "done"),), "begun": ((_BLOCKERS, "done"), (_PARENTS, "begun"))}
_BACKWARD_EDGES = {"done": ((_BLOCKED, "begun"), (_PARENTS, "done")), "begun": ((_CHILDREN, "begun"),)}
# The end of a task depends on its start.
_SAME_AHEAD, _SAME_BACK = ("done", "begun"), ("begun", "done")


def check_blocker_cycle(tx: Transaction, item: str, blockers: Iterable[str]) -> None:
    """Raise `DependencyCycle` if one of the new blockers waits for the task. The blockers are stored already."""
    path = find_path(tx, [("done", blocker) for blocker in blockers], ("begun", item))
    if path is not None:
        raise DependencyCycle([item, *path])


def check_parent_cycle(tx: Transaction, item: str, parent: str) -> None:
    """Raise `DependencyCycle` if the new parent is below the task, or if either waits for the other. The parent is
    stored already.
    """
    # Rejected without a search: the id is its own ancestor.
    if item == parent:
        raise DependencyCycle([item, item])
    # A new parent adds two dependencies: its end waits for the child's end, and the child's start waits for the
    # blockers of the parent.
    for source, target in ((("done", item), ("done", parent)), (("begun", parent), ("begun", item))):
        path = find_path(tx, [source], target)
        if path is not None:
            raise DependencyCycle([*path, path[0]])


def find_path(tx: Transaction, sources: list[GraphNode], target: GraphNode) -> list[str] | None:
    """Return the tasks on a path from one of the sources to an event that it waits for; None if there is no path.

    Raises `InvalidWorkItem` if the search visits too many nodes.
    """
    ahead: Predecessors = dict.fromkeys(sources)
    back: Predecessors = {target: None}
    front, rear = sources, [target]
    while front and rear:
        if len(ahead) + len(back) > MAX_VISITED_NODES:
            raise InvalidWorkItem(
                f"More than {MAX_VISITED_NODES:,} tasks hang together here, too many to see whether some would wait "
                "for "
                "one another. Make fewer of them wait for fewer others."
            )
        # Expand the smaller side: the cost of a search is the number of visited nodes, not the length of the path.
        if len(ahead) < len(back):
            front = _expand_frontier(tx, front, ahead, _FORWARD_EDGES, _SAME_AHEAD)
            met = next((item for item in front if item in back), None)
        else:
            rear = _expand_frontier(tx, rear, back, _BACKWARD_EDGES, _SAME_BACK)
            met = next((item for item in rear if item in ahead), None)
        if met is not None:
            return _ids_on_path([*reversed(list(_trace_path(met, ahead))), *list(_trace_path(met, back))[1:]])
    return None


def _expand_frontier(
    tx: Transaction,
    frontier: list[GraphNode],
    seen: Predecessors,
    lines: dict[str, tuple[tuple[str, str], ...]],
    same: tuple[str, str],
) -> list[GraphNode]:
    """Return the unvisited events one edge further."""
    results: list[GraphNode] = []

    def step(origin: GraphNode, to: GraphNode) -> None:
        if to not in seen:
            seen[to] = origin
            results.append(to)

    # One statement per kind and edge for the whole frontier, instead of one per node.
    for kind in ("done", "begun"):
        ids = [id for its_kind, id in frontier if its_kind == kind]
        if not ids:
            continue
        if kind == same[0]:
            for id in ids:
                step((kind, id), (same[1], id))
        for sql, other in lines[kind]:
            for origin, id in tx.fetch_all(tuple[str, str], sql, {"ids": ids}):
                step((kind, origin), (other, id))
    return results


def _trace_path(moment: GraphNode | None, seen: Predecessors) -> Iterable[GraphNode]:
    while moment is not None:
        yield moment
        moment = seen[moment]


def _ids_on_path(moments: list[GraphNode]) -> list[str]:
    """Return the task ids on a path, without consecutive duplicates."""
    results: list[str] = []
    for _, id in moments:
        if not results or results[-1] != id:
            results.append(id)
    return results
