"""The two database engines of the services."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engines import both_engines

__all__ = ["both_engines"]


@pytest.fixture
def bare_url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    """Return a store without tables."""
    if engine == "sqlite":
        return f"sqlite://{tmp_path}/store.db"
    response: str = request.getfixturevalue("postgres_url")
    return response
