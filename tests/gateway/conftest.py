"""What the tests of gateways have in common."""

from __future__ import annotations

import pytest

from portico.gateway import routes

# Their upstreams hang, and are waited for as little as they say.
IMPATIENT = ("test_trouble", "test_chaos")


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first list waits for its upstreams for as long as a loaded machine needs to start them."""
    if request.module.__name__.rpartition(".")[2] not in IMPATIENT:
        monkeypatch.setattr(routes, "FIRST_SECONDS", 30.0)
