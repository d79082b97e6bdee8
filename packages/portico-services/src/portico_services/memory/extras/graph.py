"""Entity graph of memories: neighbours of an entity and paths between entities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.ownership import LOCAL_OWNER, VISIBLE, HiddenCounts

DiagramFormat = Literal["mermaid", "dot", "text"]
# Three hops reach most of a graph; further ones cost more and say less.
MAX_DEPTH, MAX_EDGES, MAX_SEARCH_STEPS = 3, 200, 1000
# Maximum number of mentions read per entity; fewer per hop of a path search.
MAX_MENTIONS_PER_ENTITY, MAX_MENTIONS_PER_HOP = 400, 100
# Maximum number of edges followed per hop.
MAX_EDGES_PER_HOP = 50


class EntityNode(Struct, frozen=True):
    """An entity."""

    name: Annotated[str, "Name"]
    kind: Annotated[str, "Entity type"]
    mentions: Annotated[int, "Number of memories that mention it"]


class EntityEdge(Struct, frozen=True):
    """A relation between two entities."""

    source: Annotated[str, "Source entity"]
    kind: Annotated[str, "Relation"]
    target: Annotated[str, "Target entity"]
    weight: Annotated[int, "Number of memories that support it"]


class EntityGraph(Struct, frozen=True):
    """Part of the entity graph."""

    nodes: list[EntityNode]
    edges: list[EntityEdge]


def list_entities(tx: Transaction, kind: str | None, limit: int, *, owner: str = LOCAL_OWNER) -> list[EntityNode]:
    """List the entities of the memories that an owner sees, most mentioned first."""
    hidden = HiddenCounts(tx, owner).count_mentions()
    order = "order by mentions desc, name limit cast(:limit as bigint)"
    # The index is ordered by kind, so the most mentioned of each kind are read and merged.
    of_kind = (
        "select * from (select name, label, kind, mentions from memory_entity where kind = :kind_{0} {1}) as of_{0}"
    )
    from portico_services.memory.store import entities as naming

    kinds = {f"kind_{number}": item for number, item in enumerate([kind] if kind is not None else naming.ENTITY_KINDS)}
    result = " union all ".join(of_kind.format(number, order) for number in range(len(kinds)))
    rows = tx.fetch_all(
        tuple[str, str, str, int],
        f"select name, label, kind, mentions from ({result}) as found where mentions > 0 {order}",
        # Hidden mentions are subtracted afterwards and can remove up to this many entities from the list.
        {"limit": limit + len(hidden), **kinds},
    )
    left = [(name, EntityNode(label, kind, mentions - hidden[name])) for name, label, kind, mentions in rows]
    left = [item for item in left if item[1].mentions > 0]
    return [node for _, node in sorted(left, key=lambda entry: (-entry[1].mentions, entry[0]))[:limit]]


def adjacent_edges(
    tx: Transaction, name: str, limit: int = MAX_EDGES, most: int = MAX_MENTIONS_PER_ENTITY, *, owner: str = LOCAL_OWNER
) -> list[EntityEdge]:
    """Return the stated relations of an entity, then its co-mentions. For frequent entities, only the newest memories
    count.
    """
    values = {"name": name, "current": list(CURRENT_STATUSES), "limit": limit, "most": most, "owner": owner}
    stated = tx.fetch_all(
        EntityEdge,
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
    together = tx.fetch_all(
        EntityEdge,
        "select :name as source, 'RelatesTo' as kind, other.entity as target, count(*) as weight from ("
        "select memory from memory_mention where entity = :name order by at desc limit cast(:most as bigint)) as mine "
        "join memory_mention other on other.memory = mine.memory join memory on memory.id = mine.memory "
        f"where other.entity <> :name and memory.status in :current and {VISIBLE} "
        "group by other.entity order by count(*) desc, other.entity limit cast(:limit as bigint)",
        values,
    )
    # A stated relation is more specific than a co-mention of the same two entities.
    pairs = {frozenset((item.source, item.target)) for item in stated}
    return (stated + [item for item in together if frozenset((item.source, item.target)) not in pairs])[:limit]


def neighbours(tx: Transaction, name: str, depth: int, limit: int, *, owner: str = LOCAL_OWNER) -> EntityGraph:
    """Return the entities within `depth` hops of an entity and the edges between them."""
    start = _find_entity(tx, owner, name)
    if not 1 <= depth <= MAX_DEPTH:
        raise InvalidInput(f"depth must be between 1 and {MAX_DEPTH}.")
    edges: dict[tuple[str, str, str], EntityEdge] = {}
    reached, border = {start}, [start]
    for _ in range(depth):
        following: list[str] = []
        for item in border:
            for edge in adjacent_edges(tx, item, limit, owner=owner):
                if len(edges) >= limit:
                    break
                edges.setdefault((edge.source, edge.kind, edge.target), edge)
                following += [end for end in (edge.source, edge.target) if end not in reached]
                reached |= {edge.source, edge.target}
        border = following
    return _label_nodes(tx, owner, reached, list(edges.values()))


def shortest_path(tx: Transaction, start: str, end: str, *, owner: str = LOCAL_OWNER) -> EntityGraph:
    """Return the shortest path, or an empty graph if none is within reach."""
    first, last = _find_entity(tx, owner, start), _find_entity(tx, owner, end)
    edges = (
        [] if first == last else _bidirectional_search(tx, _SearchFrontier(first, owner), _SearchFrontier(last, owner))
    )
    return _label_nodes(tx, owner, {first, *_endpoints(edges)} if edges or first == last else set(), edges)


class _SearchFrontier:
    """Entities reached from one end of a path, each with the edge towards that end and its distance."""

    def __init__(self, end: str, owner: str) -> None:
        self._owner = owner
        self.came: dict[str, EntityEdge | None] = {end: None}
        self.steps: dict[str, int] = {end: 0}
        # Entities at the largest distance.
        self.border = [end]
        # Whether some entities may have more edges than were read.
        self._is_cut = False

    def widen(self, tx: Transaction, room: int) -> None:
        """Expand the frontier by one hop, until `room` entities were added."""
        border, self.border = self.border, []
        for node in border:
            if len(self.border) >= room:
                return
            edges = adjacent_edges(tx, node, MAX_EDGES_PER_HOP, MAX_MENTIONS_PER_HOP, owner=self._owner)
            self._is_cut = self._is_cut or len(edges) == MAX_EDGES_PER_HOP
            for edge in edges:
                neighbour = edge.target if edge.source == node else edge.source
                if neighbour not in self.came:
                    self.came[neighbour] = edge
                    self.steps[neighbour] = self.steps[node] + 1
                    self.border.append(neighbour)

    def is_all(self, tx: Transaction) -> bool:
        """Return whether everything reachable from this end has been visited completely."""
        if self.border or self._is_cut:
            return False
        sql = (
            "select 1 from memory_entity where name in :names and exists (select 1 from memory_mention "
            f"where memory_mention.entity = memory_entity.name limit 1 offset {MAX_MENTIONS_PER_HOP}) limit 1"
        )
        return tx.fetch_optional(int, sql, {"names": list(self.came)}) is None

    def way_to(self, name: str) -> list[EntityEdge]:
        """Return the edges from a reached entity to the end."""
        edges = []
        while (step := self.came[name]) is not None:
            edges.append(step)
            name = step.source if step.target == name else step.target
        return edges


def _bidirectional_search(tx: Transaction, item: _SearchFrontier, other: _SearchFrontier) -> list[EntityEdge]:
    """Return the edges of a shortest path by bidirectional search.

    Two entities with a hundred neighbours each meet at a common one without expanding all of them. The smaller frontier
    is expanded first.
    """
    while item.border or other.border:
        # Bounds the work for two entities without a connection in a large store.
        room = MAX_SEARCH_STEPS - len(item.came) - len(other.came)
        if room <= 0:
            break
        smaller, far = sorted((item, other), key=lambda reach: (not reach.border, len(reach.border)))
        smaller.widen(tx, room)
        met = [name for name in smaller.border if name in far.came]
        if met:
            # The near side has the same distance for all of them, so the far side decides.
            between = min(met, key=far.steps.__getitem__)
            return item.way_to(between)[::-1] + other.way_to(between)
        if smaller.is_all(tx):
            break
    return []


def _endpoints(edges: Iterable[EntityEdge]) -> set[str]:
    return {end for edge in edges for end in (edge.source, edge.target)}


def _find_entity(tx: Transaction, owner: str, name: str) -> str:
    """Return the name of an entity, by case-insensitive name or by a unique part of it. Raises `InvalidInput`."""
    low = name.strip().casefold()
    result = _visible_names(
        tx, owner, tx.fetch_all(str, "select name from memory_entity where name = :name", {"name": low})
    )
    if not result:
        # A scan, because neither engine has an index for substrings; bounded, and only for names that do not match.
        similar_names = tx.fetch_all(str, "select name from memory_entity order by name limit 10000")
        result = _visible_names(tx, owner, [item for item in similar_names if low and low in item])[:5]
    if len(result) != 1:
        hint = f" Did you mean {', '.join(result)}?" if result else " Use the operation entities to list all entities."
        raise InvalidInput(f"Entity {name[:80]!r} not found.{hint}")
    return result[0]


def _visible_names(tx: Transaction, owner: str, names: list[str]) -> list[str]:
    """Return the names mentioned in memories that the owner sees."""
    if not names or not HiddenCounts(tx, owner).exist:
        return names
    sql = (
        "select distinct memory_mention.entity from memory_mention join memory on memory.id = memory_mention.memory "
        f"where memory_mention.entity in :names and {VISIBLE}"
    )
    # The names of entities in memories of other users must not leak through suggestions.
    seen = set(tx.fetch_all(str, sql, {"names": names, "owner": owner}))
    return [name for name in names if name in seen]


def _label_nodes(tx: Transaction, owner: str, names: set[str], edges: list[EntityEdge]) -> EntityGraph:
    """Return the graph with display labels and the visible mention counts."""
    hidden = HiddenCounts(tx, owner).count_mentions()
    rows = tx.fetch_all(
        tuple[str, str, str, int],
        "select name, label, kind, mentions from memory_entity where name in :names order by name",
        {"names": sorted(names)},
    )
    label = {name: display_name for name, display_name, _, _ in rows}
    return EntityGraph(
        [EntityNode(display_name, kind, count - hidden[name]) for name, display_name, kind, count in rows],
        [
            EntityEdge(label.get(edge.source, edge.source), edge.kind, label.get(edge.target, edge.target), edge.weight)
            for edge in edges
        ],
    )


def render_graph(graph: EntityGraph, picture: DiagramFormat) -> str:
    """Render the graph as a diagram. Characters with a syntactic meaning are removed from names, which are
    untrusted.
    """
    number = {node.name: f"n{at}" for at, node in enumerate(graph.nodes)}
    clean = {name: "".join(char if char.isalnum() or char in " ._-/+#" else " " for char in name) for name in number}
    if picture == "text":
        return "\n".join(f"{edge.source} --{edge.kind}--> {edge.target}" for edge in graph.edges)
    if picture == "dot":
        nodes = [f'  {number[name]} [label="{clean[name]}"];' for name in number]
        edges = [f'  {number[edge.source]} -> {number[edge.target]} [label="{edge.kind}"];' for edge in graph.edges]
        return "\n".join(["digraph memory {", *nodes, *edges, "}"])
    nodes = [f'  {number[name]}["{clean[name]}"]' for name in number]
    edges = [f"  {number[edge.source]} -->|{edge.kind}| {number[edge.target]}" for edge in graph.edges]
    return "\n".join(["graph LR", *nodes, *edges])
