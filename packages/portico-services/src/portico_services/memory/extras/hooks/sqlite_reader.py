"""Synchronous read-only access to the SQLite store, for short-lived hook processes."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from portico.extend import SqliteTransaction, Transaction, translate_sqlite_error
from portico.store.errors import InvalidStatement

T = TypeVar("T")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|:memory:")
_SQLITE_URL = re.compile(r"sqlite:///+([^:%]+)")


class DirectReadUnavailable(Exception):
    """The store cannot be read directly: it is on a server, or its schema is outdated. Opening it through `Database`
    works.
    """


def sqlite_path(url: str) -> str:
    """Return the path of a SQLite URL. Raises `DirectReadUnavailable` for other databases and for unusual URLs."""
    if not _URL.match(url):
        return url
    match = _SQLITE_URL.fullmatch(url)
    if match is None:
        raise DirectReadUnavailable
    return f"/{match[1]}"


def read_sqlite(url: str, fn: Callable[[Transaction], T], *, busy_timeout: float) -> T | None:
    """Run a read-only function on the database and return its result; None if the file does not exist. It is not
    created.
    """
    path = sqlite_path(url)
    if not os.path.exists(path):
        return None
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
        try:
            connection.execute("pragma query_only = on")
            # One transaction, so that all statements see the same snapshot.
            connection.execute("begin")
            return SqliteTransaction(connection, path, is_write=False).run_function(fn)
        finally:
            connection.close()
    except InvalidStatement as failure:
        raise DirectReadUnavailable from failure
    except sqlite3.Error as failure:
        raise translate_sqlite_error(failure, path) from failure
