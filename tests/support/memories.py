"""Helpers for tests of the memory: texts, and shortcuts for long calls."""

from __future__ import annotations

import json
from typing import Any

from portico import Client
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.records import MemoryRecord

HOSTILE = [
    'content:* OR "x" AND NOT (y) NEAR/3 z^2 -col:',
    "'; drop table memory; --",
    "100% _under_ \\ back\\slash !! $1 :name ? %s {0}",
    "\u202eevil\u202c \u200bzero width \u2066bidi\u2069",
    "quotes \" ' ` “ ” «»",
    "emoji 👩‍👩‍👧‍👦 and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 and 漢字かな交じり文",
    "<script>alert(1)</script> {{template}} ${env} \x1b[31mred",
]


async def capture_memory(
    memories: MemoryStore, content: str, namespace: str = "decisions", **more: object
) -> MemoryRecord:
    return (await memories.capture(MemoryDraft(content=content, namespace=namespace, **more))).record  # type: ignore[arg-type]


async def search_contents(memories: MemoryStore, query: str = "", filter: str = "", **more: int) -> list[str]:
    """Return the matches, without the recent memories that are returned when nothing matches."""
    page = await memories.recall(query, memories.filter(filter), **more)
    return [hit.record.content for hit in page.hits if hit.score or not hit.weak]


CAPTURE = {"content": "Use PostgreSQL for storage", "namespace": "decisions"}


def template(uri: str) -> dict[str, str]:
    return {"type": "ref/resource", "uri": uri}


async def call_tool(client: Client, tool: str, /, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    assert not result.is_error, result.content
    # Results are text only before 2025-06-18.
    return json.loads(result.content[0].text) if result.structured is None else result.structured


async def call_failing_tool(client: Client, tool: str, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    assert result.is_error, result.content
    return result.content[0].text, (result.meta or {})["portico/error"]


KEY = "AKIA" + "Q3EGRZ7XLMN5PWVT"
