"""Results of up to 100 MB through processes of a server and of a gateway: what the client gets, and their memory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from portico.errors import PorticoError
from portico.protocol.content import TextContent
from portico.tokens import estimate_tokens
from support.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
SERVER = str(ROOT / "tests/support/programs/large_results_server.py")
MB = 1_000_000
# A message of an upstream has 64 MiB at most.
LARGEST_FORWARDED = 60 * MB
TIMEOUT_SECONDS = 240.0


def memory_mb(pid: int) -> tuple[int, int]:
    """Return the highest and the current resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    peak, now = (int(text.partition(f"{name}:")[2].split()[0]) // 1024 for name in ("VmHWM", "VmRSS"))
    return peak, now


def child() -> int:
    """Return the only child of this process whose command is a server of this test."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and (b"large_results_server" in words or b"gateway.toml" in words):
            found.append(int(entry))
    [pid] = found
    return pid


async def read(client: Any, tool: str, size: int, read_at: int) -> str:
    """Call a tool, check the budget, and return a piece of the complete result."""
    result = await client.call_tool(tool, {"size": size}, raise_on_error=False)
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    assert sum(map(estimate_tokens, texts)) <= 20_000
    id = re.search(r"result://([\w-]{32})", " ".join(texts))
    assert id is not None, texts[-1]
    piece = await client.call_tool("read_result", {"id": id[1], "offset": read_at, "limit": 24})
    return str(piece.content[0].text)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("tool", "read_at", "piece", "copies"),
    [
        ("text", 50 * MB, "0123456789abcde\n01234567", 2),
        ("json_text", 32 * MB + 1, '{"id":1234567,"name":"ab', 3),
        # Python objects of the tool, and their text.
        ("rows", 32 * MB + 1, '{"id":1234567,"name":"ab', 11),
        # base64 of the bytes at this position
        ("image", 30 * MB, "QUJDQUJDQUJDQUJDQUJDQUJDQUJDQUJD", 5),
        ("blob", 30 * MB, "QUJDQUJDQUJDQUJDQUJDQUJDQUJDQUJD", 5),
    ],
)
async def test_server_with_bounded_memory_stores_a_hundred_megabytes(
    version: Any, tool: str, read_at: int, piece: str, copies: int
) -> None:
    # Every kind on one version, and every version with one kind.
    if tool != "text" and version != "2025-11-25":
        pytest.skip("the version makes no difference to this kind")
    target = {"command": sys.executable, "args": [SERVER, "20000"]}
    async with Client(target, protocol_version=version, timeout=TIMEOUT_SECONDS) as client:
        _, before = memory_mb(child())
        assert await read(client, tool, 100 * MB, read_at) == piece
        peak, now = memory_mb(child())
        # The tool's own result is one of the copies; none of them stays.
        assert peak - before < copies * 105, (peak, before)
        assert now - before < 60


@pytest.mark.parametrize("version", VERSIONS)
async def test_gateway_with_bounded_memory_stores_what_an_upstream_may_send(version: Any, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[upstream.big]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\n')
    target = {"command": sys.executable, "args": ["-m", "portico", "serve", str(file)]}
    async with Client(target, protocol_version=version, timeout=TIMEOUT_SECONDS) as client:
        await client.list_tools()
        _, before = memory_mb(child())
        piece = await read(client, "big_text", LARGEST_FORWARDED, LARGEST_FORWARDED - 16)
        assert piece == "0123456789abcde\n"
        # A larger message is refused while it is received, and the upstream goes on.
        for tool in ("big_text", "big_rows", "big_image"):
            with pytest.raises(PorticoError, match="more than 67108864 bytes"):
                await client.call_tool(tool, {"size": 100 * MB})
        peak, now = memory_mb(child())
        assert peak - before < 7 * 60 and now - before < 60, (before, peak, now)
        assert (await client.call_tool("big_text", {"size": 16})).content[0].text == "0123456789abcde\n"
