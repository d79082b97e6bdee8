"""Two servers in one process: a call from one to the other keeps its caller."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
from msgspec import Raw
from portico import Context, Server
from portico.auth import Principal
from portico.extend import Call

front, back = Server("front"), Server("back")

@front.tool
async def ask(tool: str) -> str:
    # From now on another server has something that not everybody may do.
    back.tool(name="wipe", scopes=["admin"])(lambda: "wiped")
    return await said(back.call_tool(tool))

@back.tool
def whoami(ctx: Context) -> str:
    return ctx.principal.id

async def said(asked) -> str:
    try:
        return (await asked).content[0].text
    except Exception as refused:
        return type(refused).__name__

async def main() -> None:
    for tool in ("whoami", "wipe"):
        params = Raw(b'{"name": "ask", "arguments": {"tool": "%s"}}' % tool.encode())
        ann = Principal("ann", scopes=frozenset({"read"}))
        call = Call(method="tools/call", params=params, id=1, protocol_version="2026-07-28", principal=ann)
        print(await said(front(call)))
        back.remove("wipe")

asyncio.run(main())
"""


def test_call_to_another_server_uses_the_callers_principal() -> None:
    """Whatever that server has, and whatever else the program has imported: so it runs by itself."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["ann", "InsufficientScope"], done.stderr
