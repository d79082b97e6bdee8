"""Measure how long a ping waits during escape attempts: `portico_escapes.py [NUMBER]`. Prints the maximum in ms.

The code is that of the tests. The forbidden folder is one of this program.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from portico import Client, Server
from portico_services.livepython import LivePython
from portico_services.livepython.sandbox.limits import MIB
from support.escapes import ALL

REVISION = "2025-11-25"  # one that has pings
BREATH = 0.002  # seconds between two pings


def chosen(number):
    """Return a number of attempts, spread over the list."""
    return ALL[:: max(1, len(ALL) // number)]


def placed(code, folder):
    """Encode the secret, because errors quote the code."""
    code = code.replace("'ESCAPED'", "'ESC' + 'APED'").replace("SERVER", str(os.getpid()))
    return code.replace("HOST", folder).replace("SOCKET", f"{folder}/socket")


async def longest_wait(client, trying):
    worst = 0.0
    while not trying.done():
        began = time.perf_counter()
        await client.ping()
        worst = max(worst, time.perf_counter() - began)
        await asyncio.wait([trying], timeout=BREATH)
    assert "ESCAPED" not in trying.result().text
    return worst


async def main(folder):
    (Path(folder) / "canary").write_text("I am well.")
    escapes = chosen(int(sys.argv[1])) if len(sys.argv) > 1 else ALL
    server = Server("live", version="1")
    server.add(LivePython(scratch_bytes=200 * MIB))
    waits = {}
    async with Client(server, protocol_version=REVISION) as client:
        for escape in escapes:
            request = {"expression": placed(escape.code, folder), "timeout": escape.seconds, "session": "s"}
            trying = asyncio.ensure_future(client.call_tool("evaluate", request, raise_on_error=False))
            waits[escape.name] = await longest_wait(client, trying)
            await client.call_tool("reset_session", {"session": "s"})
    worst = max(waits, key=waits.get)
    print(json.dumps({"ping": 1e3 * waits[worst], "of": worst, "escapes": len(escapes)}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
