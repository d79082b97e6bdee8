"""Count the library files and Python calls that one tools/call passes through.

Counts do not flicker as timings do. The server runs its real stdio path in a child with a profile hook; two runs that
differ only in the number of requests are subtracted, so that start, handshake and shutdown cancel out and what is
left is the cost of one request, in every thread. Resuming a coroutine counts as a call: the hook reports it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import Driver, DriverError
from peers import Peer

FEW, MANY = 20, 120


@dataclass(frozen=True)
class Count:
    """Files by package, in the order of the peer's packages, and Python calls, for one request."""

    files: dict[str, int]
    calls: float


def count(peer: Peer, body: str = "async") -> Count:
    few, many = profiled(peer, body, FEW), profiled(peer, body, MANY)
    extra = {key: number - few["calls"].get(key, 0) for key, number in many["calls"].items()}
    # Once per request at least: what ran fewer times belongs to something else, such as a timer.
    passed = {json.loads(key)[0] for key, number in extra.items() if number >= MANY - FEW}
    files = {name: sum(path.startswith(root) for path in passed) for name, root in many["roots"].items()}
    return Count(files, sum(extra.values()) / (MANY - FEW))


def profiled(peer: Peer, body: str, requests: int) -> dict[str, Any]:
    server = peer.command()[-1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts.json"
        command = [peer.python, __file__, server, str(out), *peer.modules]
        with Driver(command, peer.env) as driver:
            driver.open()
            calls = [{"name": f"add_{body}", "arguments": {"a": n, "b": 1}} for n in range(requests)]
            driver.sequential("tools/call", calls)
            driver.close()
        if not out.exists():
            raise DriverError("the server ended without a word of its counts")
        return json.loads(out.read_text(encoding="utf-8"))


def serve_profiled(server_file: str, out: str, modules: list[str]) -> None:
    """In the child: serve with a profiling hook in every thread, and write the counts at the end of input."""
    module = load(server_file)
    server = module.build()
    seen: list[Any] = []
    # Appending is atomic where adding to a counter is not, and several threads come through here.
    append = seen.append

    def hook(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            append(frame.f_code)

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        module.serve(server)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        Path(out).write_text(json.dumps({"calls": tally(seen), "roots": roots(modules)}), encoding="utf-8")


def tally(codes: list[Any]) -> dict[str, int]:
    """Count calls by location. Not by code object: two of those can be equal and lie in different files, or differ and
    share a location, as generated ones do.
    """
    places = Counter((code.co_filename, code.co_firstlineno, code.co_qualname) for code in codes)
    return {json.dumps(place): number for place, number in places.items()}


def roots(modules: list[str]) -> dict[str, str]:
    """Return each package's folder with the separator, so that `mcp` does not match `mcp_types`."""
    results = {}
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            results[name] = str(Path(spec.submodule_search_locations[0])) + "/"
    return results


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("bench_server", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve_profiled(sys.argv[1], sys.argv[2], sys.argv[3:])
