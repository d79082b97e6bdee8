"""Synchronous read-only access to the SQLite store, for short-lived hook processes."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from portico.extend import BadStatement, SqliteTransaction, Transaction, explain_sqlite

T = TypeVar("T")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|:memory:")
_PLAIN = re.compile(r"sqlite:///+([^:%]+)")


class CannotPeek(Exception):
    """It cannot be read like this: it is on a server, or its tables are of yesterday. Opening it properly helps."""


def path_of(url: str) -> str:
    """Of the file. Raises CannotPeek for what is none, and for whatever needs a closer look to tell."""
    if not _URL.match(url):
        return url
    found = _PLAIN.fullmatch(url)
    if found is None:
        raise CannotPeek
    return f"/{found[1]}"


def peek(url: str, fn: Callable[[Transaction], T], *, patience: float) -> T | None:
    """What a function that only reads finds; None where there is no file, which is not made either."""
    path = path_of(url)
    if not os.path.exists(path):
        return None
    try:
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
        try:
            connection.execute("pragma query_only = on")
            # All of it sees the database as it was at one moment.
            connection.execute("begin")
            return SqliteTransaction(connection, path, writes=False).perform(fn)
        finally:
            connection.close()
    except BadStatement as failure:
        raise CannotPeek from failure
    except sqlite3.Error as failure:
        raise explain_sqlite(failure, path) from failure
