"""Each tool of a built-in service, given as much as it takes: the loop goes on serving others meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Service
from portico.services import assembly
from portico.wire.errors import Error

FULL = 3_900_000
MOST_PAUSE_SECONDS = 0.1
TRIES = 3
WORDS = {"a text": "some words ", "one word": "a", "lines": "line\n", "signs": "\\\"'{[(<&%$", "slashes": "/"}


class Watch(Service):
    """The longest time that the loop's thread has worked without a turn. A busy machine makes it no longer."""

    name = "watch"
    longest = 0.0

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        yield
        watching.cancel()

    async def _watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now


def plain(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Some value that fits, mostly."""
    if "$ref" in schema:
        return plain(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for one in schema.get("anyOf", ()):
        return plain(one, root)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: plain(schema["properties"][name], root) for name in schema.get("required", ())}
    return {"string": "x", "integer": 1, "number": 1, "boolean": False, "array": [], "null": None}[kind]


def largest(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The arguments of a tool, with one of its texts or lists as large as it may be."""
    needed = plain(schema, schema)
    for name, about in schema.get("properties", {}).items():
        kinds = [about, *about.get("anyOf", ())]
        for one in kinds:
            if one.get("type") == "string" and "enum" not in one:
                most = min(FULL, one.get("maxLength", FULL))
                for what, word in WORDS.items():
                    yield f"{name}: {what}", {**needed, name: (word * (most // len(word) + 1))[:most]}
            if one.get("type") == "array":
                most = min(300_000, one.get("maxItems", 300_000))
                item = plain(one.get("items", {}), schema)
                most = min(most, 100_000) if isinstance(item, dict | list) else most
                yield f"{name}: a list", {**needed, name: [item] * most}


@pytest.mark.parametrize("name", ["tasks"])
async def test_no_tool_stops_the_loop(name: str, tmp_path: Path) -> None:
    place = assembly.ServicePlace(data=tmp_path, store=f"sqlite:///{tmp_path}/store.db")
    server = assembly.assemble([name], assembly.read_settings(None, None), place)
    watch = Watch()
    server.add(watch)
    too_long = {}
    async with server.lifespan(), Client(server, timeout=120) as client:
        for tool in await client.list_tools():
            for what, arguments in largest(tool.input_schema):
                pauses = []
                for _ in range(TRIES):
                    watch.longest = 0.0
                    with suppress(Error):
                        await client.call_tool(tool.name, arguments)
                    pauses.append(watch.longest)
                    if min(pauses) < MOST_PAUSE_SECONDS:
                        break
                else:
                    too_long[f"{tool.name} {what}"] = round(min(pauses), 3)
    assert not too_long
