"""Run the tests of synchronisation with a repository on SQLite: the SQL is tested in memory/store and memory/search."""

from support.engines import sqlite_engine

__all__ = ["sqlite_engine"]
