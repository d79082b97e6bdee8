"""Entity extraction by simple rules: names, technologies, files, identifiers, and the relations between them.

Rules are sometimes wrong, but they need no model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import MemoryRecord

EntityKind = Literal["Person", "Organization", "Technology", "Concept", "File"]
ENTITY_KINDS: tuple[EntityKind, ...] = ("Person", "Organization", "Technology", "Concept", "File")
MAX_ENTITIES, MAX_NAME_CHARS, MAX_SCANNED_CHARS = 20, 80, 20_000

_TECHNOLOGIES = """
PostgreSQL MySQL MariaDB SQLite MongoDB Redis Elasticsearch OpenSearch Kafka RabbitMQ NATS Cassandra DynamoDB DuckDB
ClickHouse Snowflake BigQuery Neo4j Memcached Docker Kubernetes Podman Terraform Ansible Helm Nginx Apache Caddy Envoy
Linux Windows macOS Debian Ubuntu Android iOS Git GitHub GitLab Bitbucket Jenkins CircleCI Python Rust Java JavaScript
TypeScript Kotlin Swift Ruby Perl PHP Haskell Scala Elixir Erlang Clojure Julia Lua Bash PowerShell SQL GraphQL gRPC
REST OAuth JWT TLS SSH HTTP WebSocket MQTT JSON YAML TOML XML Protobuf Avro Parquet React Vue Angular Svelte Next.js
Node.js Deno Bun Django Flask FastAPI Starlette Rails Laravel Spring Express Pandas NumPy PyTorch TensorFlow
scikit-learn Jupyter Spark Airflow dbt Celery pytest mypy ruff Webpack Vite Tailwind Playwright Selenium Prometheus
Grafana OpenTelemetry Sentry Datadog AWS GCP Azure S3 EC2 Lambda Cloudflare Vercel Heroku Stripe Twilio Slack Jira
Confluence Notion Figma MCP LLM uvloop msgspec pydantic SQLAlchemy asyncio WebAssembly
"""
_KNOWN = {name.casefold(): name for name in _TECHNOLOGIES.split()} | {
    "postgres": "PostgreSQL",
    "k8s": "Kubernetes",
    "golang": "Go",
    "js": "JavaScript",
    "ts": "TypeScript",
}
_WORD = re.compile(r"[A-Za-z][\w+#-]*(?:\.(?:js|io|NET)\b)?")
# The first part of each known name. Translating the bytes so that everything but letters and digits becomes a space
# makes splitting fastest.
_SPACED = bytes(code if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_KNOWN_PARTS = frozenset(name.encode().translate(_SPACED).split()[0] for name in _KNOWN)
_ENDING = r"\.(?:py|pyi|js|ts|tsx|jsx|rs|go|java|kt|rb|php|c|h|cpp|cs|sh|sql|toml|yaml|yml|json|md|txt|html|css|cfg|ini|lock)\b"  # fmt: skip # noqa: E501
_TITLE = r" (?:Inc|Ltd|LLC|GmbH|Corp|AG|University|Institute|Foundation)\b"
_FILE = re.compile(rf"(?<![\w/.])(?:[\w.-]{{1,60}}/){{0,8}}[\w-]{{1,60}}{_ENDING}")
_NAME = re.compile(r"\b[A-Z][a-z]{1,20}(?: (?:van|von|de|da|la))? [A-Z][a-z]{1,20}\b")
_ORGANIZATION = re.compile(rf"\b[A-Z][\w&-]{{1,30}}(?: [A-Z][\w&-]{{1,30}}){{0,3}}{_TITLE}")
# Cheap checks for a required part of each pattern, run before the full pattern.
_MAY_BE_FILE, _MAY_BE_ORGANIZATION = re.compile(_ENDING), re.compile(_TITLE)
_MAY_BE_NAME = re.compile(r" [A-Z][a-z](?<=[a-z] [A-Z][a-z])")
_MAY_BE_IDENTIFIER = re.compile(r"[A-Z][a-z0-9]+[A-Z]")
_IDENTIFIER = re.compile(r"`([A-Za-z_][\w.]{2,60})(?:\(\))?`|\b([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+)\b")
_COMMON_FIRST = frozenset(re.findall(r"\w+", """
The This That These Those When Where What Why How And But For With From After Before Use Our We If In On At New All
Every Each
"""))  # fmt: skip

RELATIONS = {
    "Uses": r"uses?|using|relies on|depends on|runs on|is built (?:on|with)",
    "Implements": r"implements?",
    "PartOf": r"is part of|belongs to",
    "WorksAt": r"works? (?:at|for)",
    "Created": r"created|wrote|built|made",
    "Supersedes": r"replaces?|replaced|supersedes?|instead of",
    "ConflictsWith": r"conflicts? with|contradicts?",
}
_VERB = re.compile("|".join(f"(?P<{kind}>\\b(?:{words})\\b)" for kind, words in RELATIONS.items()), re.IGNORECASE)
_SENTENCE = re.compile(r"[^\n]+?(?:[.!?](?=\s)|$)", re.MULTILINE)


class Entity(NamedTuple):
    """An entity: normalized name, display label and kind."""

    name: str
    label: str
    kind: EntityKind


class Relation(NamedTuple):
    """A relation between two entities, by their normalized names."""

    source: str
    kind: str
    target: str


def extract_entities(text: str, author: str | None = None) -> tuple[list[Entity], list[Relation]]:
    """Return the entities that a text mentions, and the relations between them."""
    text = text[:MAX_SCANNED_CHARS]
    result: dict[str, Entity] = {}
    for label, kind in _find_entities(text, author):
        label = label.strip()[:MAX_NAME_CHARS]
        result.setdefault(label.casefold(), Entity(label.casefold(), label, kind))
        if len(result) >= MAX_ENTITIES:
            break
    return list(result.values()), _relations(text, list(result.values()))


def _find_entities(text: str, author: str | None) -> Iterator[tuple[str, EntityKind]]:
    """Yield labels and kinds of entities, in order of reliability."""
    if author and author.casefold() not in ("user", "assistant", "system", "i"):
        yield author, "Person"
    if _MAY_BE_FILE.search(text):
        for name in _FILE.findall(text):
            yield name, "File"
    if _MAY_BE_ORGANIZATION.search(text):
        for name in _ORGANIZATION.findall(text):
            yield name, "Organization"
    # Most texts mention no known technology, which this check finds out faster.
    if not _KNOWN_PARTS.isdisjoint(text.casefold().encode(errors="replace").translate(_SPACED).split()):
        for word in _WORD.findall(text):
            label = _KNOWN.get(word.casefold().rstrip("-"))
            if label is not None:
                yield label, "Technology"
    for name in _NAME.findall(text) if _MAY_BE_NAME.search(text) else ():
        called = name.split()
        if called[0] not in _COMMON_FIRST and not any(item.casefold() in _KNOWN for item in called):
            yield name, "Person"
    if "`" in text or _MAY_BE_IDENTIFIER.search(text):
        for match in _IDENTIFIER.finditer(text):
            yield match[1] or match[2], "Concept"


def _relations(text: str, entities: Sequence[Entity]) -> list[Relation]:
    """Return the relations: two entities in one sentence with a known verb between them."""
    relations: dict[Relation, None] = {}
    # Often one of two entities is the author, whom the text itself does not mention.
    for sentence in _SENTENCE.findall(text) if _has_two_entities(text.casefold(), entities) else ():
        low = sentence.casefold()
        if not _has_two_entities(low, entities):
            continue
        verb = _VERB.search(sentence)
        if verb is None or verb.lastgroup is None:
            continue
        before = {low.rfind(item.name, 0, verb.start()): item for item in entities}
        nearest = max(before, default=-1)
        if nearest < 0:
            continue
        for target in entities:
            if low.find(target.name, verb.end()) >= 0 and target.name != before[nearest].name:
                relations[Relation(before[nearest].name, verb.lastgroup, target.name)] = None
    return list(relations)[:MAX_ENTITIES]


def _has_two_entities(low: str, entities: Sequence[Entity]) -> bool:
    return len(entities) > 1 and sum(item.name in low for item in entities) > 1


def index_mentions(tx: Transaction, memories: Sequence[MemoryRecord]) -> None:
    """Store the entities and relations of memories that have none stored yet."""
    entities: dict[str, Entity] = {}
    # Columns: memory, entity, time.
    mentions: tuple[list[str], list[str], list[int]] = ([], [], [])
    relations: list[tuple[str, str, str, str]] = []
    current = defaultdict[str, int](int)
    for record in memories:
        named, related = extract_entities(record.content, record.author)
        for item in named:
            entities.setdefault(item.name, item)
            mentions[0].append(record.id)
            mentions[1].append(item.name)
            mentions[2].append(record.at)
            current[item.name] += record.status in CURRENT_STATUSES
        relations += [(*item, record.id) for item in related]
    if not entities:
        return
    now = timestamps.now_ms()
    # Sorted by name, so that concurrent transactions lock the rows in the same order and cannot deadlock.
    tx.execute_many(
        "insert into memory_entity (name, label, kind, created_at, mentions) values (?, ?, ?, ?, ?) "
        "on conflict (name) do update set mentions = memory_entity.mentions + excluded.mentions",
        [(*entities[name], now, current[name]) for name in sorted(entities)],
    )
    tx.execute_columns("insert into memory_mention (memory, entity, at) values (?, ?, ?)", mentions)
    if relations:
        tx.execute_many("insert into memory_relation (source, kind, target, memory) values (?, ?, ?, ?)", relations)


def reindex_mentions(tx: Transaction, memories: Sequence[MemoryRecord]) -> None:
    """Extract and store the entities and relations of memories again."""
    _adjust_mention_counts(tx, memories, -1)
    _delete_rows(tx, memories)
    index_mentions(tx, memories)


def update_mentions(tx: Transaction, before: MemoryRecord, after: MemoryRecord) -> None:
    """Update the entities of a changed memory."""
    was_current, is_now = before.status in CURRENT_STATUSES, after.status in CURRENT_STATUSES
    if (after.content, after.author, after.at) != (before.content, before.author, before.at):
        _adjust_mention_counts(tx, [before], -1)
        _delete_rows(tx, [after])
        index_mentions(tx, [after])
    elif was_current != is_now:
        _adjust_mention_counts(tx, [after if is_now else before], 1 if is_now else -1)


def delete_mentions(tx: Transaction, memories: Sequence[MemoryRecord], *, entirely: bool = False) -> None:
    """Delete the mentions of memories before they leave the table `memory`.

    With `entirely`, also delete entities that nothing else mentions: an erasure request can concern a name alone.
    """
    ids = {"ids": [item.id for item in memories]}
    _adjust_mention_counts(tx, memories, -1)
    if entirely:
        names = tx.fetch_all(str, "select distinct entity from memory_mention where memory in :ids", ids)
        _delete_rows(tx, memories)
        tx.execute(
            "delete from memory_entity where name in :names "
            "and not exists (select 1 from memory_mention where memory_mention.entity = memory_entity.name)",
            {"names": names},
        )


def _delete_rows(tx: Transaction, memories: Sequence[MemoryRecord]) -> None:
    ids = {"ids": [item.id for item in memories]}
    tx.execute("delete from memory_relation where memory in :ids", ids)
    tx.execute("delete from memory_mention where memory in :ids", ids)


def _adjust_mention_counts(tx: Transaction, memories: Sequence[MemoryRecord], step: int) -> None:
    """Add `step` to the mention counts for the current ones among these memories."""
    ids = [item.id for item in memories if item.status in CURRENT_STATUSES]
    sql = "select entity, count(*) from memory_mention where memory in :ids group by entity order by entity"
    counted = tx.fetch_all(tuple[str, int], sql, {"ids": ids}) if ids else []
    if counted:
        steps = [(step * mentions, name) for name, mentions in counted]
        tx.execute_many("update memory_entity set mentions = mentions + ? where name = ?", steps)
