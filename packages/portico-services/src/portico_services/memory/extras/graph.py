"""The graph of what memories speak of: who is beside whom, and how to get from one to another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct

from portico._lazy import LazyModule
from portico.extend import Transaction
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.ownership import LOCAL_OWNER, VISIBLE, HiddenCounts

if TYPE_CHECKING:
    from portico_services.memory.store import entities as naming
else:
    naming = LazyModule("portico_services.memory.store.entities")

Picture = Literal["mermaid", "dot", "text"]
MOST_DEPTH, MOST_EDGES, MOST_STEPS = 3, 200, 1000
# Of an entity that very many memories mention, so many are looked at; and fewer on the way to somewhere else.
MOST_LOOKED_AT, FEW_LOOKED_AT = 400, 100
# …and so many of those around it.
FEW_EDGES = 50


class EntityNode(Struct, frozen=True):
    name: Annotated[str, "Its name"]
    kind: Annotated[str, "What it is"]
    mentions: Annotated[int, "How many memories speak of it"]


class Edge(Struct, frozen=True):
    source: Annotated[str, "One of the two"]
    kind: Annotated[str, "How they belong together"]
    target: Annotated[str, "The other"]
    weight: Annotated[int, "How many memories say so"]


class Graph(Struct, frozen=True):
    nodes: list[EntityNode]
    edges: list[Edge]


def entities(tx: Transaction, kind: str | None, limit: int, *, owner: str = LOCAL_OWNER) -> list[EntityNode]:
    """List the entities of the memories that an owner sees, the most mentioned first."""
    hidden = HiddenCounts(tx, owner).count_mentions()
    order = "order by mentions desc, name limit cast(:limit as bigint)"
    # An index has them by kind, so the most mentioned of all are among those of each.
    of_kind = (
        "select * from (select name, label, kind, mentions from memory_entity where kind = :kind_{0} {1}) as of_{0}"
    )
    kinds = {f"kind_{number}": one for number, one in enumerate([kind] if kind is not None else naming.KINDS)}
    found = " union all ".join(of_kind.format(number, order) for number in range(len(kinds)))
    rows = tx.all(
        tuple[str, str, str, int],
        f"select name, label, kind, mentions from ({found}) as found where mentions > 0 {order}",
        {"limit": limit + len(hidden), **kinds},
    )
    left = [(name, EntityNode(label, kind, mentions - hidden[name])) for name, label, kind, mentions in rows]
    left = [one for one in left if one[1].mentions > 0]
    return [node for _, node in sorted(left, key=lambda one: (-one[1].mentions, one[0]))[:limit]]


def beside(
    tx: Transaction, name: str, limit: int = MOST_EDGES, most: int = MOST_LOOKED_AT, *, owner: str = LOCAL_OWNER
) -> list[Edge]:
    """What is said about it, then what is mentioned in the same memories; of very many, as the newest say."""
    values = {"name": name, "current": list(CURRENT), "limit": limit, "most": most, "owner": owner}
    said = tx.all(
        Edge,
        "select said.source, said.kind, said.target, count(*) as weight from ("
        "select * from (select source, kind, target, memory from memory_relation where source = :name "
        "limit cast(:most as bigint)) as outward union all "
        "select * from (select source, kind, target, memory from memory_relation where target = :name "
        "and source <> :name limit cast(:most as bigint)) as inward) as said "
        f"join memory on memory.id = said.memory where memory.status in :current and {VISIBLE} "
        "group by said.source, said.kind, said.target "
        "order by count(*) desc, said.source, said.target limit cast(:limit as bigint)",
        values,
    )
    together = tx.all(
        Edge,
        "select :name as source, 'RelatesTo' as kind, other.entity as target, count(*) as weight from ("
        "select memory from memory_mention where entity = :name order by at desc limit cast(:most as bigint)) as mine "
        "join memory_mention other on other.memory = mine.memory join memory on memory.id = mine.memory "
        f"where other.entity <> :name and memory.status in :current and {VISIBLE} "
        "group by other.entity order by count(*) desc, other.entity limit cast(:limit as bigint)",
        values,
    )
    known = {frozenset((one.source, one.target)) for one in said}
    return (said + [one for one in together if frozenset((one.source, one.target)) not in known])[:limit]


def neighbours(tx: Transaction, name: str, depth: int, limit: int, *, owner: str = LOCAL_OWNER) -> Graph:
    start = _found(tx, owner, name)
    if not 1 <= depth <= MOST_DEPTH:
        raise InvalidInput(f"depth is 1 to {MOST_DEPTH}.")
    edges: dict[tuple[str, str, str], Edge] = {}
    reached, border = {start}, [start]
    for _ in range(depth):
        following: list[str] = []
        for one in border:
            for edge in beside(tx, one, limit, owner=owner):
                if len(edges) >= limit:
                    break
                edges.setdefault((edge.source, edge.kind, edge.target), edge)
                following += [end for end in (edge.source, edge.target) if end not in reached]
                reached |= {edge.source, edge.target}
        border = following
    return _labelled(tx, owner, reached, list(edges.values()))


def path(tx: Transaction, start: str, end: str, *, owner: str = LOCAL_OWNER) -> Graph:
    """The shortest way, or an empty graph where there is none within reach."""
    first, last = _found(tx, owner, start), _found(tx, owner, end)
    edges = [] if first == last else _way(tx, _Reach(first, owner), _Reach(last, owner))
    return _labelled(tx, owner, {first, *_ends(edges)} if edges or first == last else set(), edges)


class _Reach:
    """What is within reach of one end: each with the edge that leads on towards it, and how many steps it is away."""

    def __init__(self, end: str, owner: str) -> None:
        self._owner = owner
        self.came: dict[str, Edge | None] = {end: None}
        self.steps: dict[str, int] = {end: 0}
        # The farthest.
        self.border = [end]
        # Whether some of them may have more around them than was looked at.
        self._is_cut = False

    def widen(self, tx: Transaction, room: int) -> None:
        """Take a step in every direction, or until there is no room for more."""
        border, self.border = self.border, []
        for here in border:
            if len(self.border) >= room:
                return
            edges = beside(tx, here, FEW_EDGES, FEW_LOOKED_AT, owner=self._owner)
            self._is_cut = self._is_cut or len(edges) == FEW_EDGES
            for edge in edges:
                there = edge.target if edge.source == here else edge.source
                if there not in self.came:
                    self.came[there] = edge
                    self.steps[there] = self.steps[here] + 1
                    self.border.append(there)

    def is_all(self, tx: Transaction) -> bool:
        """Whether there is nothing else around this end, and never was more than was looked at."""
        if self.border or self._is_cut:
            return False
        sql = (
            "select 1 from memory_entity where name in :names and exists (select 1 from memory_mention "
            f"where memory_mention.entity = memory_entity.name limit 1 offset {FEW_LOOKED_AT}) limit 1"
        )
        return tx.maybe(int, sql, {"names": list(self.came)}) is None

    def way_to(self, name: str) -> list[Edge]:
        """From something within reach to the end."""
        edges = []
        while (step := self.came[name]) is not None:
            edges.append(step)
            name = step.source if step.target == name else step.target
        return edges


def _way(tx: Transaction, one: _Reach, other: _Reach) -> list[Edge]:
    """From one end to the other. It is looked for from both: of two who know a hundred each, a common one is found
    without asking the hundred. Who has fewer to ask goes on."""
    while one.border or other.border:
        room = MOST_STEPS - len(one.came) - len(other.came)
        if room <= 0:
            break
        near, far = sorted((one, other), key=lambda reach: (not reach.border, len(reach.border)))
        near.widen(tx, room)
        met = [name for name in near.border if name in far.came]
        if met:
            between = min(met, key=far.steps.__getitem__)
            return one.way_to(between)[::-1] + other.way_to(between)
        if near.is_all(tx):
            break
    return []


def _ends(edges: Iterable[Edge]) -> set[str]:
    return {end for edge in edges for end in (edge.source, edge.target)}


def _found(tx: Transaction, owner: str, name: str) -> str:
    """By its name in any case, or by the only name it is a part of."""
    low = name.strip().casefold()
    found = _seen(tx, owner, tx.all(str, "select name from memory_entity where name = :name", {"name": low}))
    if not found:
        near = tx.all(str, "select name from memory_entity order by name limit 10000")
        found = _seen(tx, owner, [one for one in near if low and low in one])[:5]
    if len(found) != 1:
        meant = f" Did you mean {', '.join(found)}?" if found else " The operation entities lists those there are."
        raise InvalidInput(f"There is no entity {name[:80]!r}.{meant}")
    return found[0]


def _seen(tx: Transaction, owner: str, names: list[str]) -> list[str]:
    """Return those of the names that a memory mentions which the owner sees."""
    if not names or not HiddenCounts(tx, owner).exist:
        return names
    sql = (
        "select distinct memory_mention.entity from memory_mention join memory on memory.id = memory_mention.memory "
        f"where memory_mention.entity in :names and {VISIBLE}"
    )
    seen = set(tx.all(str, sql, {"names": names, "owner": owner}))
    return [one for one in names if one in seen]


def _labelled(tx: Transaction, owner: str, names: set[str], edges: list[Edge]) -> Graph:
    hidden = HiddenCounts(tx, owner).count_mentions()
    rows = tx.all(
        tuple[str, str, str, int],
        "select name, label, kind, mentions from memory_entity where name in :names order by name",
        {"names": sorted(names)},
    )
    label = {name: shown for name, shown, _, _ in rows}
    return Graph(
        [EntityNode(shown, kind, count - hidden[name]) for name, shown, kind, count in rows],
        [
            Edge(label.get(one.source, one.source), one.kind, label.get(one.target, one.target), one.weight)
            for one in edges
        ],
    )


def drawn(graph: Graph, picture: Picture) -> str:
    """Names are data: whatever could be syntax in them is taken off."""
    number = {one.name: f"n{at}" for at, one in enumerate(graph.nodes)}
    clean = {name: "".join(char if char.isalnum() or char in " ._-/+#" else " " for char in name) for name in number}
    if picture == "text":
        return "\n".join(f"{one.source} --{one.kind}--> {one.target}" for one in graph.edges)
    if picture == "dot":
        nodes = [f'  {number[one]} [label="{clean[one]}"];' for one in number]
        edges = [f'  {number[one.source]} -> {number[one.target]} [label="{one.kind}"];' for one in graph.edges]
        return "\n".join(["digraph memory {", *nodes, *edges, "}"])
    nodes = [f'  {number[one]}["{clean[one]}"]' for one in number]
    edges = [f"  {number[one.source]} -->|{one.kind}| {number[one.target]}" for one in graph.edges]
    return "\n".join(["graph LR", *nodes, *edges])
