"""Measure the time and memory of importing OpenAPI documents: `python benchmarks/openapi.py PATH…`.

Each document is read in a separate process. "import" is `Server.from_openapi`, "list" the first answer to
`tools/list` for all tools; both in CPU seconds. Memory is the peak of the process minus its size before
the import. No document is part of this repository.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import compiled  # noqa: F401


def measure(path: str) -> dict[str, Any]:
    logging.disable()
    from portico import Client, Server
    from portico.jsonschema import validation
    from portico.server.providers.openapi import document  # noqa: F401

    validation.compile_validator({})
    if Path(path).suffix != ".json":
        import yaml  # noqa: F401
    import portico.server.providers.openapi.tools  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    server = Server.from_openapi(path, base_url="https://api.example.com", list_page_size=100)
    imported = time.process_time() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def listed() -> list[Any]:
        async with Client(server) as client:
            return list(await client.list_tools())

    began = time.process_time()
    tools = asyncio.run(listed())
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(len(json.dumps([tool.input_schema, tool.output_schema, tool.description])) for tool in tools)
    return {
        "tools": len(tools),
        "import_s": imported,
        "import_mb": (after - before) / 1024,
        "list_s": seconds,
        "peak_mb": (peak - before) / 1024,
        "listed_mb": size / 1e6,
    }


def main(paths: list[str]) -> None:
    if not paths:
        sys.exit(__doc__)
    print(f"{'document':34} {'MB':>6} {'tools':>6} {'import s':>9} {'MB':>6} {'list s':>8} {'MB':>6} {'listed MB':>10}")
    for path in paths:
        run = subprocess.run([sys.executable, __file__, "--one", path], capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"{Path(path).name:34} failed: {run.stderr.strip().splitlines()[-1:]}")
            continue
        data = json.loads(run.stdout)
        size = Path(path).stat().st_size / 1e6
        print(
            f"{Path(path).name:34} {size:6.1f} {data['tools']:6} {data['import_s']:9.3f} {data['import_mb']:6.1f} "
            f"{data['list_s']:8.3f} {data['peak_mb']:6.1f} {data['listed_mb']:10.2f}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:])
