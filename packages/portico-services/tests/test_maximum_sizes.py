"""Every built-in tool with its largest input keeps the event loop responsive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Service
from portico.protocol.errors import PorticoError
from portico_services import assembly
from support.pauses import is_short

FULL = 3_900_000
TRIES = 3
LONG = 20_000
WORDS = {"signs": "\\\"'{[(<&%$", "one word": "a", "lines": "line\n"}
DEEP = 400
# What a tool needs to get as far as its work. Else it has one of each value that it may not go without.
NEEDED: dict[str, dict[str, Any]] = {
    "eventlog_follow": {"logName": "large", "waitSeconds": 0},
    "eventlog_query": {"logName": "large"},
    "eventlog_stats": {"logName": "large"},
    "memory_graph": {"operation": "path", "entity": "x", "to_entity": "y"},
    "memory_prompts": {"action": "save", "name": "x", "content": "x"},
    "reg_read": {"path": "HKEY_CURRENT_USER\\Software"},
    "reg_write": {"path": "HKEY_CURRENT_USER\\Software\\Large"},
}
# How a service is given something that its tools find, and what they call its id.
MADE: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "memory": ("memory_capture", {"content": "x", "namespace": "decisions"}, {"memory_id"}),
    "tasks": ("create_task", {"description": "x"}, {"id", "task_id"}),
}
# Where the schema does not say how long a text may be, and the tool does.
LONGEST = {
    "memory_capture content": 200_000,
    "memory_prompts content": 50_000,
    "memory_recall query": 10_000,
    "reg_write value": 500_000,
}
# Items that are looked into further than the schema says.
ITEMS: dict[str, Any] = {"spec_diff": {"name": "x", "inputSchema": {"type": "object"}}}


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
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now


def plain(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Some value that fits, mostly."""
    if "$ref" in schema:
        return plain(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for item in schema.get("anyOf", ()):
        return plain(item, root)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: plain(schema["properties"][name], root) for name in schema.get("required", ())}
    return {"string": "x", "integer": 1, "number": 1, "boolean": False, "array": [], "null": None}[kind]


def texts(most: int) -> Iterator[tuple[str, str]]:
    """Texts of that length. A short one makes little work, whatever it says."""
    for what, word in WORDS.items():
        yield what, (word * (most // len(word) + 1))[:most]
        if most < LONG:
            return


def lists(most: int, item: Any) -> Iterator[tuple[str, list[Any]]]:
    """A list of equal items, and if they can be told apart one of different ones."""
    yield "a list", [item] * most
    if isinstance(item, str):
        yield "different ones", [f"{item}{number}" for number in range(most)]
    if isinstance(item, dict) and "name" in item:
        yield "different ones", [{**item, "name": f"{item['name']}{number}"} for number in range(most)]


def deep() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for _ in range(DEEP):
        results = {"x": results}
    return results


async def made(client: Client, service: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments by which a tool finds what there is."""
    if service not in MADE:
        return {}
    maker, arguments, names = MADE[service]
    result = (await client.call_tool(maker, arguments)).structured
    return dict.fromkeys(names & set(schema.get("required", ())), result["id"])


def largest(tool: str, schema: dict[str, Any], known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The arguments of a tool, with one of its texts, lists or objects as large as it may be."""
    needed = {**plain(schema, schema), **known, **NEEDED.get(tool, {})}
    for name, about in schema.get("properties", {}).items():
        for one in [about, *about.get("anyOf", ())]:
            kind = one.get("type")
            kinds = kind if isinstance(kind, list) else [kind]
            if "string" in kinds and "enum" not in one:
                most = min(FULL, one.get("maxLength", FULL))
                for what, text in chain.from_iterable(map(texts, {most, LONGEST.get(f"{tool} {name}", most)})):
                    yield f"{name}: {what}", {**needed, name: text}
            if "array" in kinds:
                item = ITEMS.get(tool, plain(one.get("items", {}), schema))
                most = 30_000 if isinstance(item, dict | list) else 300_000
                for what, found in lists(min(most, one.get("maxItems", most)), item):
                    yield f"{name}: {what}", {**needed, name: found}
            if "object" in kinds:
                about_values = one.get("additionalProperties")
                values = plain(about_values if isinstance(about_values, dict) else {}, schema)
                yield f"{name}: an object", {**needed, name: {f"x{number}": values for number in range(50_000)}}
                yield f"{name}: a deep one", {**needed, name: deep()}


def settings(folder: Path) -> str:
    """A file of settings in which the system service has a folder, a log and a registry to write to."""
    root, log = folder / "root", folder / "large.log"
    root.mkdir()
    (root / "x").write_text("line\n" * 100)
    log.write_text("2026-01-31T12:00:00Z a line\n" * 100)
    file = folder / "portico.toml"
    file.write_text(
        f"[services.system]\nallowed_paths = ['{root}']\nlogs = {{large = '{log}'}}\n"
        "access_levels = {registry = 'read-write'}\n"
    )
    return str(file)


@pytest.mark.parametrize("name", ["contracts", "live", "memory", "system", "tasks"])
async def test_no_tool_stops_the_loop(name: str, tmp_path: Path) -> None:
    place = assembly.ServiceEnvironment(data=tmp_path, store=f"sqlite:///{tmp_path}/store.db")
    result = assembly.read_settings(None, settings(tmp_path) if name == "system" else None)
    server = assembly.build_server([name], result, place)
    watch = Watch()
    server.add(watch)
    too_long = {}
    async with server.lifespan(), Client(server, timeout=120) as client:
        for tool in await client.list_tools():
            for what, arguments in largest(tool.name, tool.input_schema, await made(client, name, tool.input_schema)):
                pauses = []
                for _ in range(TRIES):
                    watch.longest = 0.0
                    with suppress(PorticoError):
                        await client.call_tool(tool.name, arguments)
                    pauses.append(watch.longest)
                    if is_short(min(pauses)):
                        break
                else:
                    too_long[f"{tool.name} {what}"] = round(min(pauses), 3)
    assert not too_long
