"""Helpers for tests of live Python: sandbox availability, and a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client
from portico_services.livepython import LivePython
from portico_services.livepython.sandbox.landlock import unavailable_reason
from portico_services.livepython.sandbox.limits import SandboxLimits

# A protocol version with pings.
REVISION = "2025-11-25"
TIMEOUT_SECONDS = 30.0


def why_not() -> str | None:
    """Return why the sandbox does not work on this machine, or None."""
    return unavailable_reason(SandboxLimits())


jail_only = pytest.mark.skipif(why_not() is not None, reason=f"the sandbox does not work here: {why_not()}")


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition that has no event."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class WorkerDialog:
    """A client with shortcuts for the tools of live Python."""

    def __init__(self, client: Client, live: LivePython) -> None:
        self.client = client
        self.live = live

    async def call(self, name: str, /, **arguments: Any) -> Any:
        return await self.client.call_tool(name, arguments, raise_on_error=False)

    async def run(self, expression: str, **more: Any) -> Any:
        return await self.call("evaluate", expression=expression, **more)

    async def text(self, expression: str, **more: Any) -> str:
        return str((await self.run(expression, **more)).text)
