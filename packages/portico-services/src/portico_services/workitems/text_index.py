"""Text index of tasks, for substring queries.

A query consists of words, each of which may occur anywhere in the text, also inside a word: `arse` matches `Parser`. A
text is split into terms, runs of letters and runs of symbols, and every term is indexed by the beginning of each of its
suffixes: `parser`, `arser`, `rser`, …. A query word is then a prefix of a suffix. Very long runs are split into
overlapping terms, and only some terms of a text with very many are indexed. Matches are therefore verified against the
text; the index may return too many, but never too few.

Changed tasks are only queued, because indexing many together costs a fraction of indexing each one. Until then every
query reads them directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from portico.extend import Transaction

# Stored length of a suffix.
# Longer suffixes distinguish few additional texts but would multiply the size of the index.
MAX_SUFFIX_CHARS = 12
MAX_TERM_CHARS = 2 * MAX_SUFFIX_CHARS
# A pasted log must not make one task as expensive as thousands.
MAX_TERMS = 1000
# Replaces the terms that are not indexed if a text has too many. No real term is empty.
OVERFLOW_TERM = ""
_TOKEN = re.compile(r"\w+|[^\w\s]+")
# Greater than every character, as the exclusive end of a prefix range.
_MAX_CHAR = "\U0010ffff"


def index_terms(folded: str) -> list[str]:
    """Return the terms of a text, sorted and without duplicates. If there are too many, those at the beginning are
    indexed.
    """
    result: dict[str, None] = {}
    for run in _TOKEN.finditer(folded):
        result |= dict.fromkeys(_split_token(run[0]))
        if len(result) > MAX_TERMS:
            return sorted([OVERFLOW_TERM, *list(result)[: MAX_TERMS - 1]])
    return sorted(result)


def _split_token(run: str) -> Iterator[str]:
    """Yield overlapping parts of a run, so that every substring of up to MAX_SUFFIX_CHARS is inside one of them."""
    for start in range(0, max(len(run) - MAX_SUFFIX_CHARS, 1), MAX_SUFFIX_CHARS):
        yield run[start : start + MAX_TERM_CHARS]


def term_suffixes(terms: Iterable[str]) -> list[tuple[str, str]]:
    """Return the suffixes of each term, with the term."""
    return sorted(
        {(term[start : start + MAX_SUFFIX_CHARS], term) for term in terms for start in range(max(len(term), 1))}
    )


def suffix_ranges(word: str) -> list[tuple[str, str]]:
    """Return the range of suffixes that match each run of a query word, longest run first."""
    runs = sorted({run[0] for run in _TOKEN.finditer(word)}, key=lambda run: (-len(run), run))
    return [(run[:MAX_SUFFIX_CHARS], run[:MAX_SUFFIX_CHARS] + _MAX_CHAR) for run in runs]


INDEX_LOCK = "portico work item terms"
# Tasks indexed per transaction.
INDEX_BATCH_SIZE = 200


def enqueue_items(tx: Transaction, ids: Sequence[str]) -> None:
    """Queue tasks for indexing. Call it after a text has changed: if the previous text is being indexed, this waits for
    it, so that the new one is not lost.
    """
    tx.execute_many(
        # `do update` instead of `do nothing`: it takes the row lock, and so waits for an indexer that holds the row.
        "insert into work_item_unindexed (item) values (?) on conflict (item) do update set item = excluded.item",
        [(id,) for id in ids],
    )


def remove_items(tx: Transaction, texts: Sequence[tuple[str, str]]) -> None:
    """Remove tasks from the index, given by id and case-folded text. Terms and suffixes stay, because other tasks may
    be about to use them.
    """
    # Sorted, so that concurrent transactions lock rows in the same order and cannot deadlock.
    terms_to_delete = sorted((term, id) for id, text in texts for term in index_terms(text))
    tx.execute_many("delete from work_item_posting where term = ? and item = ?", terms_to_delete)
    tx.execute("delete from work_item_unindexed where item in :ids", {"ids": [id for id, _ in texts]})


def index_pending(tx: Transaction) -> bool:
    """Index a batch of queued tasks; return whether there are more."""
    # Several servers may index the same store; each takes rows that no other has locked.
    ids = tx.fetch_all(str, f"select item from work_item_unindexed limit {INDEX_BATCH_SIZE} for update skip locked")
    rows = tx.fetch_all(tuple[str, str], "select id, words from work_item where id in :ids", {"ids": ids})
    indexed = [(id, index_terms(text)) for id, text in rows]
    _add_suffixes(tx, {term for _, some in indexed for term in some if term != OVERFLOW_TERM})
    tx.execute_many(
        "insert into work_item_posting (term, item) values (?, ?) on conflict (term, item) do nothing",
        # In table order, which is the fastest order for inserts.
        sorted((term, id) for id, some in indexed for term in some),
    )
    tx.execute("delete from work_item_unindexed where item in :ids", {"ids": ids})
    return len(ids) == INDEX_BATCH_SIZE


def _add_suffixes(tx: Transaction, terms: set[str]) -> None:
    """Store the suffixes of new terms."""
    # Most terms are known, and reading them needs no lock.
    fresh = terms - set(
        tx.fetch_all(str, "select term from work_item_term where term in :terms", {"terms": list(terms)})
    )
    if not fresh:
        return
    # Serialized, because two transactions on PostgreSQL that insert the same terms in different order would deadlock.
    tx.advisory_lock(INDEX_LOCK)
    tx.execute_many(
        "insert into work_item_suffix (suffix, term) values (?, ?) on conflict (suffix, term) do nothing",
        term_suffixes(fresh),
    )
    tx.execute_many(
        "insert into work_item_term (term) values (?) on conflict (term) do nothing", [(item,) for item in fresh]
    )
