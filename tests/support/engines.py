"""Choose the engines of a store that a test runs on.

Tests of tables and queries run on SQLite and PostgreSQL. A folder or file whose SQL is tested elsewhere imports
`sqlite_engine`, which replaces the fixture `engine`: its tests run on SQLite, and with STORM=1 on both.
"""

from __future__ import annotations

import os

import pytest

ENGINES = ["sqlite", "postgresql"]


@pytest.fixture(name="engine", params=ENGINES)
def both_engines(request: pytest.FixtureRequest) -> str:
    """Return the name of each engine in turn."""
    name: str = request.param
    return name


@pytest.fixture(name="engine", params=ENGINES if os.environ.get("STORM") == "1" else ENGINES[:1])
def sqlite_engine(request: pytest.FixtureRequest) -> str:
    """Return "sqlite", and with STORM=1 both names."""
    name: str = request.param
    return name
