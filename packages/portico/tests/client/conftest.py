"""Fixtures of the client tests: scripted servers, and empty caches for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from portico.transports import version_discovery
from support.scripted import Endpoint


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Clear the cache of server generations: ports are reused."""
    version_discovery._modern_by_target.clear()
    yield
    version_discovery._modern_by_target.clear()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """`await serve(Endpoint(…))` listens on a free port of this machine."""
    started: list[Endpoint] = []

    async def start(endpoint: Endpoint | None = None, **options: Any) -> Endpoint:
        endpoint = endpoint or Endpoint()
        await endpoint.site.start(**options)
        started.append(endpoint)
        return endpoint

    yield start
    for endpoint in started:
        await endpoint.site.stop()
        assert not endpoint.site.failures, endpoint.site.failures
