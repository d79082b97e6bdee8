"""Messages pass a gateway unchanged, byte for byte."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico.rpc.call import Call
from portico.transports.targets import CommandTarget
from portico.transports.upstream import Upstream
from portico_gateway import Gateway
from support.paths import PROGRAMS

SERVER = str(PROGRAMS / "verbatim_server.py")
RESULTS = 60
SCALARS = [
    "0", "-0", "1.0", "1e5", "1.5E-7", "12345678901234567890", "3.141592653589793238462643", "true", "false", "null",
    '""', '"a"', '"\\u00e9"', '"é"', '"\\ud83d\\ude00"', '"\\/"', '"a\\nb"', '"\\u0000"',
]  # fmt: skip
TOOLS = (
    '[{"name":"say","inputSchema":{"type":"object","x-number":1.0},"annotations":{"x-hint":null},"x-unknown":[1.50],'
    '"_meta":{"deep":{"deeper":[{"n":1e2}]}}}]'
)


def made_up(chance: random.Random, depth: int) -> str:
    """Some JSON, written in some way."""
    kind = chance.randrange(4) if depth else 0
    if kind < 2:
        return chance.choice(SCALARS)
    inside = [made_up(chance, depth - 1) for _ in range(chance.randrange(4))]
    gap = chance.choice(["", " "])
    if kind == 2:
        return "[" + f",{gap}".join(inside) + "]"
    return "{" + f",{gap}".join(f'"k{number}":{gap}{one}' for number, one in enumerate(inside)) + "}"


def a_result(chance: random.Random, *, old: bool) -> str:
    structured = made_up(chance, 4)
    if old:
        structured = "{" + f'"result":{structured}' + "}"
    strange = made_up(chance, 2)
    parts = [
        f'"content":[{{"type":"text","text":"x","x-more":{made_up(chance, 2)}}},{{"type":"hologram","of":{strange}}}]',
        f'"structuredContent":{structured}',
        '"isError":{}'.format(chance.choice(["true", "false"])),
        f'"_meta":{{"deep":{made_up(chance, 5)}}}',
        f'"x-unknown":{made_up(chance, 3)}',
    ]
    if not old:
        parts.append('"resultType":"complete"')
    chance.shuffle(parts)
    return "{" + ",".join(parts) + "}"


def called(file: str, name: str, revision: Any) -> Call:
    params = Raw(json.dumps({"name": name, "arguments": {"file": file}}).encode())
    return Call(method="tools/call", params=params, id=1, protocol_version=revision)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools").write_text(TOOLS)
    return tmp_path


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_results_are_the_same_bytes(folder: Path, revision: Any) -> None:
    chance = random.Random(7)
    old = revision < "2026-07-28"
    results = [a_result(chance, old=old) for _ in range(RESULTS)]
    results.append(a_result(chance, old=old).replace('"x"', '"%s"' % ("b" * 1_000_000), 1))
    command = [sys.executable, SERVER, str(folder), *(["old"] if old else [])]
    gateway = Gateway({"one": command}, max_result_tokens=0)
    direct = Upstream(CommandTarget(tuple(command)))
    async with gateway.lifespan(), direct.lifespan():
        for number, text in enumerate(results):
            (folder / f"{number}").write_text(text)
            through = await gateway(called(f"{number}", "one_say", revision))
            assert bytes(through) == bytes(await direct(called(f"{number}", "say", revision))) == text.encode()


async def test_result_of_an_older_server_lacks_only_new_fields(folder: Path) -> None:
    text = a_result(random.Random(3), old=True)
    (folder / "x").write_text(text)
    gateway = Gateway({"one": [sys.executable, SERVER, str(folder), "old"]}, max_result_tokens=0)
    async with gateway.lifespan():
        through = bytes(await gateway(called("x", "one_say", "2026-07-28")))
    assert through == text[:-1].encode() + b',"resultType":"complete"}'


async def test_unknown_members_of_newer_results_are_preserved(folder: Path) -> None:
    (folder / "x").write_text(
        '{"content":[],"structuredContent":1.50,"isError":false,"x-unknown":1.0,"resultType":"complete"}'
    )
    gateway = Gateway({"one": [sys.executable, SERVER, str(folder)]}, max_result_tokens=0)
    async with gateway.lifespan():
        through = bytes(await gateway(called("x", "one_say", "2025-11-25")))
    assert through == b'{"content":[],"structuredContent":{"result":1.50},"isError":false,"x-unknown":1.0}'


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_listed_tool_is_the_same_but_for_its_name(folder: Path, revision: Any, old: bool) -> None:
    gateway = Gateway({"one": [sys.executable, SERVER, str(folder), *(["old"] if old else [])]}, max_result_tokens=0)
    async with gateway.lifespan():
        page = await gateway(Call(method="tools/list", params=Raw(b"{}"), id=1, protocol_version=revision))
    (tool,) = msgspec.json.decode(page, type=dict[str, Any])["tools"]
    assert tool["name"] == "one_say"
    assert b'"x-unknown":[1.50]' in bytes(page) and b'"x-number":1.0' in bytes(page)
    assert (b'"n":1e2' in bytes(page)) == (revision > "2025-03-26"), "`_meta` came with 2025-06-18"
