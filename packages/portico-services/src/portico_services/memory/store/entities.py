"""Who and what memories speak of, found by simple rules: names, technologies, files, identifiers, and who does what
with what. A rule that is wrong now and then is worth more here than a model that is not there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import Record

Kind = Literal["Person", "Organization", "Technology", "Concept", "File"]
KINDS: tuple[Kind, ...] = ("Person", "Organization", "Technology", "Concept", "File")
MOST, LONGEST_NAME, LONGEST_TEXT = 20, 80, 20_000

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
# Every name begins with one of these. Bytes with spaces for all that is no letter or digit are the quickest to split.
_SPACED = bytes(one if one < 128 and chr(one).isalnum() else 32 for one in range(256))
_KNOWN_PARTS = frozenset(name.encode().translate(_SPACED).split()[0] for name in _KNOWN)
_ENDING = r"\.(?:py|pyi|js|ts|tsx|jsx|rs|go|java|kt|rb|php|c|h|cpp|cs|sh|sql|toml|yaml|yml|json|md|txt|html|css|cfg|ini|lock)\b"  # fmt: skip # noqa: E501
_TITLE = r" (?:Inc|Ltd|LLC|GmbH|Corp|AG|University|Institute|Foundation)\b"
_FILE = re.compile(rf"(?<![\w/.])(?:[\w.-]{{1,60}}/){{0,8}}[\w-]{{1,60}}{_ENDING}")
_NAME = re.compile(r"\b[A-Z][a-z]{1,20}(?: (?:van|von|de|da|la))? [A-Z][a-z]{1,20}\b")
_ORGANIZATION = re.compile(rf"\b[A-Z][\w&-]{{1,30}}(?: [A-Z][\w&-]{{1,30}}){{0,3}}{_TITLE}")
# What these have to have in them is found much more quickly.
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
    name: str
    label: str
    kind: Kind


class Relation(NamedTuple):
    source: str
    kind: str
    target: str


def extract(text: str, author: str | None = None) -> tuple[list[Entity], list[Relation]]:
    text = text[:LONGEST_TEXT]
    found: dict[str, Entity] = {}
    for label, kind in _seen(text, author):
        label = label.strip()[:LONGEST_NAME]
        found.setdefault(label.casefold(), Entity(label.casefold(), label, kind))
        if len(found) >= MOST:
            break
    return list(found.values()), _relations(text, list(found.values()))


def _seen(text: str, author: str | None) -> Iterator[tuple[str, Kind]]:
    if author and author.casefold() not in ("user", "assistant", "system", "i"):
        yield author, "Person"
    if _MAY_BE_FILE.search(text):
        for name in _FILE.findall(text):
            yield name, "File"
    if _MAY_BE_ORGANIZATION.search(text):
        for name in _ORGANIZATION.findall(text):
            yield name, "Organization"
    # Most texts name none, which is seen more quickly.
    if not _KNOWN_PARTS.isdisjoint(text.casefold().encode(errors="replace").translate(_SPACED).split()):
        for word in _WORD.findall(text):
            label = _KNOWN.get(word.casefold().rstrip("-"))
            if label is not None:
                yield label, "Technology"
    for name in _NAME.findall(text) if _MAY_BE_NAME.search(text) else ():
        called = name.split()
        if called[0] not in _COMMON_FIRST and not any(one.casefold() in _KNOWN for one in called):
            yield name, "Person"
    if "`" in text or _MAY_BE_IDENTIFIER.search(text):
        for match in _IDENTIFIER.finditer(text):
            yield match[1] or match[2], "Concept"


def _relations(text: str, found: Sequence[Entity]) -> list[Relation]:
    """Two entities of one sentence with a known verb between them."""
    made: dict[Relation, None] = {}
    # Most often one of two is the author, whom the text does not name.
    for sentence in _SENTENCE.findall(text) if _names_two(text.casefold(), found) else ():
        low = sentence.casefold()
        if not _names_two(low, found):
            continue
        verb = _VERB.search(sentence)
        if verb is None or verb.lastgroup is None:
            continue
        before = {low.rfind(one.name, 0, verb.start()): one for one in found}
        nearest = max(before, default=-1)
        if nearest < 0:
            continue
        for target in found:
            if low.find(target.name, verb.end()) >= 0 and target.name != before[nearest].name:
                made[Relation(before[nearest].name, verb.lastgroup, target.name)] = None
    return list(made)[:MOST]


def _names_two(low: str, found: Sequence[Entity]) -> bool:
    return len(found) > 1 and sum(one.name in low for one in found) > 1


def note(tx: Transaction, found: Sequence[Record]) -> None:
    """Write down what these memories speak of, none of which is noted yet."""
    entities: dict[str, Entity] = {}
    # Who mentions what, and when, as columns.
    mentions: tuple[list[str], list[str], list[int]] = ([], [], [])
    relations: list[tuple[str, str, str, str]] = []
    current = defaultdict[str, int](int)
    for record in found:
        named, related = extract(record.content, record.author)
        for one in named:
            entities.setdefault(one.name, one)
            mentions[0].append(record.id)
            mentions[1].append(one.name)
            mentions[2].append(record.at)
            current[one.name] += record.status in CURRENT
        relations += [(*one, record.id) for one in related]
    if not entities:
        return
    now = timestamps.now()
    # In the order of their names, so that two who note the same at once do not wait for each other in a circle.
    tx.many(
        "insert into memory_entity (name, label, kind, created_at, mentions) values (?, ?, ?, ?, ?) "
        "on conflict (name) do update set mentions = memory_entity.mentions + excluded.mentions",
        [(*entities[name], now, current[name]) for name in sorted(entities)],
    )
    tx.fill("insert into memory_mention (memory, entity, at) values (?, ?, ?)", mentions)
    if relations:
        tx.many("insert into memory_relation (source, kind, target, memory) values (?, ?, ?, ?)", relations)


def note_anew(tx: Transaction, found: Sequence[Record]) -> None:
    """Write down again what memories speak of."""
    _step(tx, found, -1)
    _take_out(tx, found)
    note(tx, found)


def renote(tx: Transaction, before: Record, after: Record) -> None:
    """What a memory speaks of that has changed."""
    was, is_now = before.status in CURRENT, after.status in CURRENT
    if (after.content, after.author, after.at) != (before.content, before.author, before.at):
        _step(tx, [before], -1)
        _take_out(tx, [after])
        note(tx, [after])
    elif was != is_now:
        _step(tx, [after if is_now else before], 1 if is_now else -1)


def forget(tx: Transaction, found: Sequence[Record], *, entirely: bool = False) -> None:
    """Before memories leave the table `memory`. `entirely` also deletes the entities that nothing else mentions: a name
    can be all that there is to forget."""
    ids = {"ids": [one.id for one in found]}
    _step(tx, found, -1)
    if entirely:
        names = tx.all(str, "select distinct entity from memory_mention where memory in :ids", ids)
        _take_out(tx, found)
        tx.run(
            "delete from memory_entity where name in :names "
            "and not exists (select 1 from memory_mention where memory_mention.entity = memory_entity.name)",
            {"names": names},
        )


def _take_out(tx: Transaction, found: Sequence[Record]) -> None:
    ids = {"ids": [one.id for one in found]}
    tx.run("delete from memory_relation where memory in :ids", ids)
    tx.run("delete from memory_mention where memory in :ids", ids)


def _step(tx: Transaction, found: Sequence[Record], step: int) -> None:
    """Count the mentions in those of these memories that are current."""
    ids = [one.id for one in found if one.status in CURRENT]
    sql = "select entity, count(*) from memory_mention where memory in :ids group by entity order by entity"
    counted = tx.all(tuple[str, int], sql, {"ids": ids}) if ids else []
    if counted:
        steps = [(step * mentions, name) for name, mentions in counted]
        tx.many("update memory_entity set mentions = mentions + ? where name = ?", steps)
