"""Measure whether servers list their most used tools first, on mcp-bench, whose tasks name their tools.

    python benchmarks/tool_order.py PATH     # of a checkout of github.com/Accenture/mcp-bench

Tools are in the order in which the source of their server defines them. Of servers some of whose tools are named by a
task and some by none, the share that is named is printed for each fifth of the list. The data is theirs and is not part
of this repository.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

FEWEST = 4
PARTS = 5
# How tools are defined: by a decorator, by a call, as an object.
_DEFINED = {
    ".py": (r"@\w+(?:\.\w+)*\.tool\(?[^@]*?def (\w+)\(", r"Tool\(\s*name=[\"']([\w-]+)[\"']"),
    ".ts": (r"\.(?:tool|registerTool)\(\s*[\"'`]([\w-]+)", r"name:\s*[\"'`]([\w-]+)[\"'`],\s*description"),
}
_NO_SERVER = re.compile(r"test|dist/|build/|node_modules|\.d\.ts")


def named(path: Path) -> set[str]:
    """Return every word of a task that may be a tool name."""
    texts = (
        task["task_description"]
        for file in (path / "tasks").glob("*.json")
        for server in json.loads(file.read_text(encoding="utf-8"))["server_tasks"]
        for task in server["tasks"]
    )
    return {word for text in texts for word in re.findall(r"[A-Za-z][\w-]+", text)}


def listed(server: Path) -> list[str]:
    """Return the tool names of a server in order."""
    files = [file for file in server.rglob("*") if file.suffix in _DEFINED and file.is_file()]
    names: dict[str, None] = {}
    for file in sorted(files, key=lambda item: (len(item.parts), item)):
        if _NO_SERVER.search(str(file.relative_to(server))):
            continue
        source = file.read_text(encoding="utf-8", errors="replace")
        matches = (re.findall(pattern, source, re.DOTALL) for pattern in _DEFINED[file.suffix])
        names |= dict.fromkeys(next(filter(None, matches), []))
    return list(names)


def uses(path: Path) -> Iterator[tuple[str, list[bool]]]:
    """Return the servers and their tools named by tasks."""
    words = named(path)
    for server in sorted((path / "mcp_servers").iterdir()):
        if server.is_dir() and len(names := listed(server)) >= FEWEST:
            used = [name in words for name in names]
            if any(used) and not all(used):
                yield server.name, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("path", type=Path, help="a checkout of mcp-bench")
    parts: list[list[bool]] = [[] for _ in range(PARTS)]
    for name, used in uses(parser.parse_args().path):
        print(f"{name}: {sum(used)} of {len(used)}")
        for at, one in enumerate(used):
            parts[min(PARTS - 1, PARTS * at // (len(used) - 1))].append(one)
    print(" ".join(f"{sum(part) / len(part):.2f} of {len(part)}" for part in parts if part))


if __name__ == "__main__":
    main()
