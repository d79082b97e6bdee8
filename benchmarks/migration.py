"""How many example servers of FastMCP and of the official SDK work with Portico, after renaming or `portico port`.

    python benchmarks/migration.py --fastmcp CHECKOUT --sdk CHECKOUT [--peers PYTHON] [--port] [--kept FILE] [--details]
    python benchmarks/migration.py --fastmcp CHECKOUT --sdk CHECKOUT --docs FOLDER …

The first tries their examples, the second the blocks of code in their documentation, which are put into FOLDER.
An example counts if it runs unchanged in an environment with both projects. Then only the path of the imports is
renamed, and each is imported, listed and called with the same arguments. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import compiled  # noqa: F401

HERE = Path(__file__).parent
PROBES = 2
_MAKES = re.compile(r"\b(FastMCP|MCPServer)\(")
_DECORATES = re.compile(r"^@mcp\.(tool|resource|prompt)\b", re.M)
_FENCE = re.compile(r"^([ \t]*)```(?:python|py)\b[^\n]*\n(.*?)^\1```", re.M | re.S)
_IMPORT = re.compile(r"^(\s*)from (fastmcp|mcp\.server)(\.[\w.]+)? import ", re.M)
_COMPAT = {"fastmcp": "portico.compat.fastmcp", "mcp.server": "portico.compat.mcp_sdk"}


def renamed(source: str) -> str:
    """Return the source with the import path renamed to `portico.compat`, and nothing else changed."""
    source = _IMPORT.sub(lambda result: f"{result[1]}from {_COMPAT[result[2]]} import ", source)
    return re.sub(r"^import fastmcp$", "import portico.compat.fastmcp as fastmcp", source, flags=re.M)


def examples(checkouts: list[Path]) -> list[Path]:
    return [
        path
        for checkout in checkouts
        for folder in ("examples", "docs_src")
        for path in sorted((checkout / folder).rglob("*.py"))
        if not path.name.startswith("_moved_") and _MAKES.search(path.read_text())
    ]


def blocks(checkouts: list[Path], folder: Path) -> list[Path]:
    """Each block of Python that makes a server, or decorates functions of one, which then gets a server before it.
    Pages about older versions are left out."""
    made: dict[str, Path] = {}
    for checkout in checkouts:
        pages = [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md*"))]
        for page in (page for page in pages if not {"v2", "v3", "python-sdk"} & set(page.relative_to(checkout).parts)):
            name = "_".join(page.relative_to(checkout).with_suffix("").parts).replace("-", "_")
            for number, block in enumerate(_FENCE.finditer(page.read_text())):
                source = _whole(textwrap.dedent(block[2]), checkout)
                if source is not None and source not in made:
                    made[source] = folder / checkout.name / f"{name}_{number}.py"
    for source, path in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return list(made.values())


def _whole(block: str, checkout: Path) -> str | None:
    if _MAKES.search(block):
        return block
    if not _DECORATES.search(block):
        return None
    module = "fastmcp" if "fastmcp" in checkout.name else "mcp.server.mcpserver"
    name = "FastMCP" if module == "fastmcp" else "MCPServer"
    return f"from {module} import {name}, Context\n\nmcp = {name}('docs')\n\n{block}"


class Probe:
    """A process with both projects, which loads a file and reports its components."""

    def __init__(self, python: str) -> None:
        command = [python, str(HERE / "migration_probe.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, path: Path, calls: Any = None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(path), calls]) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def alike(theirs: Any, ours: Any) -> bool:
    """Whether two results say the same: the spacing of JSON, the words of an error and the wrapping of a value do not
    count."""
    if _failed(theirs) or _failed(ours):
        return _failed(theirs) and _failed(ours)
    if theirs.get("structuredContent") is not None and ours.get("structured") is not None:
        return _unwrapped(theirs["structuredContent"]) == _unwrapped(ours["structured"])
    return [_block(item) for item in theirs.get("content", ())] == [_block(item) for item in ours.get("content", ())]


def _failed(result: Any) -> bool:
    return "raised" in result or bool(result.get("isError"))


def _unwrapped(value: Any) -> Any:
    return value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value


def _block(block: Any) -> Any:
    if block.get("type") != "text":
        return {key: value for key, value in block.items() if value is not None}
    try:
        return json.loads(block["text"])
    except ValueError:
        return block["text"].strip()


def try_one(probe: Probe, path: Path, port: Any, kept: dict[str, Any]) -> dict[str, Any]:
    before = kept.get(str(path)) or kept.setdefault(str(path), probe.run(path))
    if not before.get("lists"):
        return {"stands": False, "why": before.get("why")}
    calls = {name: item["arguments"] for name, item in before["calls"].items()}
    source = port(path) if port is not None else renamed(path.read_text())
    copy = path.with_name(f"_moved_{path.name}")
    copy.write_text(source)
    try:
        after = probe.run(copy, calls)
    finally:
        copy.unlink()
    message = {"stands": True, "imports": after.get("imports"), "lists": after.get("lists"), "why": after.get("why")}
    if after.get("lists"):
        names = {
            kind: {item["name"] for item in before[kind]} == {item["name"] for item in after[kind]}
            for kind in ("tools", "prompts")
        }
        different = [
            (name, item["result"], after["calls"][name]["result"])
            for name, item in before["calls"].items()
            if not alike(item["result"], after["calls"][name]["result"])
        ]
        message |= {
            "called": bool(calls),
            "alike": not different and all(names.values()),
            "different": different,
            "names": names,
        }
        message["internal"] = [
            name for name, theirs, ours in different if not _failed(theirs) and "Internal error" in json.dumps(ours)
        ]
    return message


def try_all(files: list[Path], python: str, port: Any, kept: dict[str, Any]) -> dict[Path, dict[str, Any]]:
    probes = [Probe(python) for _ in range(PROBES)]
    idle: SimpleQueue[Probe] = SimpleQueue()
    for probe in probes:
        idle.put(probe)

    def one(path: Path) -> dict[str, Any]:
        probe = idle.get()
        try:
            return try_one(probe, path, port, kept)
        finally:
            idle.put(probe)

    with ThreadPoolExecutor(PROBES) as pool:
        result = dict(zip(files, pool.map(one, files), strict=True))
    for probe in probes:
        probe.close()
    return result


def ported(path: Path) -> str:
    """The same by `portico port --write`, with the Python that runs this."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(path.read_bytes())
        subprocess.run([sys.executable, "-m", "portico", "port", "--write", str(copy)], capture_output=True)
        return copy.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastmcp", type=Path)
    parser.add_argument("--sdk", type=Path)
    parser.add_argument("--docs", type=Path, help="try the blocks of their documentation, put into this folder")
    parser.add_argument("--peers", default=str(HERE.parent / ".venv/peers/bin/python"))
    parser.add_argument("--port", action="store_true", help="rewrite with `portico port`, not by renaming")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--kept", type=Path, help="a file for what theirs say, which is then asked for only once")
    parser.add_argument("--only", default="", help="only files whose path has this in it")
    result = parser.parse_args()
    checkouts = [item for item in (result.fastmcp, result.sdk) if item is not None]
    found_files = examples(checkouts) if result.docs is None else blocks(checkouts, result.docs)
    files = [path for path in found_files if result.only in str(path)]
    if not files:
        sys.exit("there is no example server: give --fastmcp and --sdk, the folders of checkouts")
    port = ported if result.port else None
    kept = json.loads(result.kept.read_text()) if result.kept is not None and result.kept.exists() else {}
    found = try_all(files, result.peers, port, kept)
    if result.kept is not None:
        result.kept.write_text(json.dumps(kept))
    report(found, result.details)


def report(found: dict[Path, dict[str, Any]], details: bool) -> None:
    standing = {path: item for path, item in found.items() if item["stands"]}
    count = Counter(
        key for item in standing.values() for key in ("imports", "lists", "called", "alike") if item.get(key)
    )
    both = sum(1 for item in standing.values() if item.get("called") and item.get("alike"))
    print(f"files                      {len(found)}")
    print(f"run unchanged          {len(standing)}")
    print(f"import                     {count['imports']}")
    print(f"list                       {count['lists']}")
    print(f"behave alike when called   {both} of {count['called']}")
    print(f"tools: Internal error      {sum(len(item.get('internal') or ()) for item in standing.values())}")
    if details:
        for path, item in standing.items():
            if not item.get("lists"):
                print(f"\n{path}\n  {item['why']}")
            elif not item["alike"]:
                print(f"\n{path} {item['names']}")
                for name, theirs, ours in item["different"]:
                    print(f"  {name}\n    theirs {json.dumps(theirs)[:300]}\n    ours   {json.dumps(ours)[:300]}")


if __name__ == "__main__":
    main()
