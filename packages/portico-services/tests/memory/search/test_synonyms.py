"""Synonym expansion finds memories without a model."""

from __future__ import annotations

import pytest

from portico.search import synonyms
from portico_services.memory.search import synonyms as other_words
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from support.engines import sqlite_engine  # noqa: F401
from support.memories import capture_memory

# What is asked, and what is to be found among all the others.
PAIRS = (
    ("which database do we store in", "Use PostgreSQL for storage"),
    ("how do people log in? which login?", "Authentication goes through Keycloak"),
    ("how do we deploy", "A release is cut every Thursday from the main branch"),
    ("where do the tests run", "GitHub Actions runs pytest for each pull request"),
    ("which bugs are known", "There is a defect in the rounding of invoices"),
    ("what do we use as a cache", "Redis holds sessions for an hour"),
    ("what is the frontend written in", "The dashboard is a React app"),
    ("which queue carries our events", "Kafka brings the orders to the billing team"),
    ("which cloud are we in", "Everything runs on AWS in Frankfurt"),
    ("how are containers orchestrated", "We run a small Kubernetes with three nodes"),
    ("where are secrets kept", "HashiCorp Vault has all passwords"),
    ("what do we use for monitoring", "Prometheus scrapes every service, and Grafana shows it"),
    ("who is our payment provider", "Stripe takes 2.9 percent"),
    ("which linter do we have", "Ruff checks each commit"),
    ("how is infrastructure provisioned", "Terraform plans are reviewed by two"),
    ("which search engine is behind the shop", "Elasticsearch has the products"),
    ("how do we send email", "SendGrid is allowed 40,000 a day"),
    ("what is the backend framework", "FastAPI answers for the orders"),
    ("who looks after the physician's rota", "Doctors choose their own shifts"),
    ("how are people signed in", "OAuth authenticates everybody"),
    ("who is our boss", "Peter is the manager of the team"),
    ("what font is taken", "Typography is Inter everywhere"),
    ("how can I undo a migration", "Alembic downgrades to the version before"),
    ("what is our uptime", "The SLO is 99.9 percent"),
    ("who has access to k8s", "Only Zara may call kubectl"),
)


@pytest.fixture
async def everything(memories: MemoryStore) -> MemoryStore:
    await memories.capture_batch([MemoryDraft(content=content, namespace="context") for _, content in PAIRS])
    return memories


async def test_synonyms_find_the_intended_memory(everything: MemoryStore) -> None:
    missed = []
    for question, content in PAIRS:
        page = await everything.recall(question, everything.filter(""), limit=3)
        if content not in [hit.record.content for hit in page.hits]:
            missed.append((question, [hit.record.content for hit in page.hits]))
    assert missed == []


async def test_database_query_finds_postgresql_first_and_not_as_a_weak_match(everything: MemoryStore) -> None:
    page = await everything.recall("which database do we store in", everything.filter(""))
    assert (page.hits[0].record.content, page.hits[0].weak) == ("Use PostgreSQL for storage", False)


async def test_exact_term_ranks_above_synonym(memories: MemoryStore) -> None:
    await capture_memory(memories, "Use PostgreSQL for the orders")
    await capture_memory(memories, "The database of the orders is in Frankfurt")
    page = await memories.recall("database orders", memories.filter(""))
    assert page.hits[0].record.content == "The database of the orders is in Frankfurt"
    assert len(page.hits) == 2


async def test_filters_apply_to_synonym_matches(everything: MemoryStore) -> None:
    page = await everything.recall("which database do we store in", everything.filter("ns:decisions"))
    assert page.hits == []


async def test_large_store_expands_synonyms(everything: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from portico_services.memory.search import bm25

    monkeypatch.setattr(bm25, "LARGE_STORE_MEMORIES", 5)
    monkeypatch.setattr(other_words, "LARGE_STORE_MEMORIES", 5)
    for filter in ("", "ns:context"):
        page = await everything.recall("which database do we store in", everything.filter(filter))
        assert page.hits[0].record.content == "Use PostgreSQL for storage"


# The table


def test_every_line_of_the_table_is_found_by_bisection() -> None:
    lines = [
        line for line in synonyms.SYNONYMS_PATH.read_text(encoding="ascii").splitlines() if not line.startswith("#")
    ]
    assert lines == sorted(lines)
    assert len(lines) > 10_000
    for line in (lines[0], lines[-1], *lines[:: len(lines) // 200]):
        term, first, near, *_ = line.split(" ")
        assert synonyms.find_synonyms(term)[0] == (first, int(near) / 100)
    for unknown in ("", "a", "zzzzz", "#", "0", "databas ", "ünknown", "\n"):
        assert synonyms.find_synonyms(unknown) == ()


def test_synonym_table_is_small_and_names_its_source() -> None:
    assert synonyms.SYNONYMS_PATH.stat().st_size < 2_000_000
    with synonyms.SYNONYMS_PATH.open(encoding="ascii") as file:
        head = file.readline() + file.readline()
    assert "all-MiniLM-L6-v2" in head
    assert "Apache" in head
