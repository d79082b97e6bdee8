"""Run the tests of the tools over stored memories on SQLite: the SQL is tested in memory/store and memory/search."""

from support.engines import sqlite_engine

__all__ = ["sqlite_engine"]
