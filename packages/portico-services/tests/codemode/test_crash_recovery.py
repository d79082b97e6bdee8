"""A server killed during a run repeats and loses nothing.

Source: the issue on code mode: "kill -9 in the middle of a run with ten writes: none twice, none lost".
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from portico.errors import TransportError
from support.paths import PROGRAMS
from support.script_tools import TIMEOUT_SECONDS, jail_only

pytestmark = jail_only
LEDGER = PROGRAMS / "ledger.py"

CODE = """
import random, time
from tools import look, write, put, ToolError
unknown = []
for n in range(1, 11):
    await look(n)
    try:
        await (put if n == data else write)(n)
    except ToolError as failure:
        unknown.append([n, failure.kind])
return [unknown, random.random(), time.time()]
"""


class Person:
    """Says yes, and counts how often."""

    asked = 0

    async def answer(self, message: Any, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked += 1
        return {}


async def call(person: Person, revision: str, file: Path, data: int, code: str = CODE) -> Any:
    command = [sys.executable, str(LEDGER), str(file), str(file.with_suffix(".db"))]
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(command, protocol_version=revision, elicitation_handler=person.answer) as client,
    ):
        return await client.call_tool("run", {"code": code, "data": data}, raise_on_error=False)


# When it is killed; which write is one that may be repeated; what is unknown then.
DEATHS = [
    ("2026-07-28", "after 5", 0, [[5, "OutcomeUnknown"]]),
    ("2026-07-28", "look 8", 0, []),
    ("2025-11-25", "put 5", 5, []),
]


@pytest.mark.parametrize(("revision", "moment", "data", "unknown"), DEATHS, ids=lambda one: str(one).replace(" ", "-"))
async def test_no_write_is_lost_or_made_twice(
    tmp_path: Path, revision: str, moment: str, data: int, unknown: list[Any]
) -> None:
    file, person = tmp_path / "ledger", Person()
    file.with_suffix(".fate").write_text(moment)
    with pytest.raises(TransportError):
        await call(person, revision, file, data)
    assert 1 <= len(file.read_text().split()) < 10
    response = await call(person, revision, file, data)
    assert not response.is_error, response.text
    assert file.read_text().split() == [str(n) for n in range(1, 11)]
    assert response.structured["value"][0] == unknown
    assert response.structured["resumed"] is True
    assert response.structured.get("unknown", []) == ["write"] * len(unknown)
    # Agreed to once: the journal knows.
    assert person.asked == 1


async def test_interrupted_write_has_an_unknown_outcome(tmp_path: Path) -> None:
    """From outside it cannot be told from one that was made: it is not made again, and the script may decide."""
    file, person = tmp_path / "ledger", Person()
    file.with_suffix(".fate").write_text("before 5")
    with pytest.raises(TransportError):
        await call(person, "2025-06-18", file, 0)
    response = await call(person, "2025-06-18", file, 0)
    assert response.structured["value"][0] == [[5, "OutcomeUnknown"]]
    assert file.read_text().split() == [str(n) for n in range(1, 11) if n != 5]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_stopped_server_loses_no_more_than_a_killed_one(tmp_path: Path, revision: str) -> None:
    """It has the time to cut off what it runs, which must not be taken for a client that lost interest."""
    file, person = tmp_path / "ledger", Person()
    file.with_suffix(".fate").write_text("stop 2")
    code = "from tools import rest, write\nfor n in range(1, 4):\n    await rest(n)\n    await write(n)\n"
    with pytest.raises(TransportError):
        await call(person, revision, file, 0, code)
    assert file.read_text().split() == ["1"]
    response = await call(person, revision, file, 0, code)
    assert response.structured["resumed"] is True
    assert file.read_text().split() == ["1", "2", "3"]
    assert person.asked == 1
