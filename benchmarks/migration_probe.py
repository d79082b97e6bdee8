"""Import servers, list their components and call their tools: a child process of migration.py.

Each line on standard input names a file and the calls to make (null: as its own schemas want them), and is answered
with one JSON object on a line. Each file has a separate process, forked from this one, which has imported the
expensive modules.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 10.0
WHOLE_SECONDS = 60.0
_SAMPLES = {"string": "text", "integer": 3, "number": 2.5, "boolean": True, "null": None}


def load(path: Path) -> Any:
    """The module of a file; its folder is searched first, as `python FILE` would."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("moved", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["moved"] = module
    spec.loader.exec_module(module)
    return module


def server_of(module: Any) -> Any:
    """The server that the module makes: the one with a usual name, or the last one."""
    results = {name: value for name, value in vars(module).items() if type(value).__name__ in _SERVERS}
    for name in ("mcp", "server", "app", "main"):
        if name in results:
            return results[name]
    if not results:
        raise LookupError("it makes no server")
    return list(results.values())[-1]


_SERVERS = {"FastMCP", "MCPServer", "Server"}


def sample(schema: Any, root: Any, depth: int = 0) -> Any:
    """Some value that fits a schema, the same each time."""
    if not isinstance(schema, dict) or depth > 8:
        return "text"
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target.get(part, {})
        return sample(target, root, depth + 1)
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return sample(schema[key][0], root, depth + 1)
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        return {name: sample(properties.get(name, {}), root, depth + 1) for name in required}
    if kind == "array":
        return [sample(schema.get("items", {}), root, depth + 1)]
    if kind in ("integer", "number") and "minimum" in schema:
        return max(schema["minimum"], _SAMPLES[kind])
    if kind in ("integer", "number") and "maximum" in schema:
        return min(schema["maximum"], _SAMPLES[kind])
    return _SAMPLES.get(kind, "text")


def plain(value: Any) -> Any:
    """Return a result of any library as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.loads(value) if isinstance(value, bytes) else value


class Theirs:
    """Queries of the probe, for a FastMCP or SDK server."""

    def __init__(self, server: Any) -> None:
        if type(server).__module__.startswith("fastmcp"):
            from fastmcp import Client
        else:
            from mcp import Client  # type: ignore[assignment,no-redef]
        self._client: Any = Client(server)

    async def __aenter__(self) -> Theirs:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._client.__aexit__(*details)

    async def names(self, kind: str) -> list[Any]:
        listed = await getattr(self._client, f"list_{kind}")()
        return [plain(item) for item in getattr(listed, kind, listed)]

    async def call(self, name: str, arguments: Any) -> Any:
        if hasattr(self._client, "call_tool_mcp"):
            return plain(await self._client.call_tool_mcp(name, arguments))
        return plain(await self._client.call_tool(name, arguments))


class Ours:
    """The same of a server of Portico."""

    def __init__(self, server: Any) -> None:
        from portico import Client

        self._client = Client(server)

    async def __aenter__(self) -> Ours:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._client.__aexit__(*details)

    async def names(self, kind: str) -> list[Any]:
        import msgspec

        return [json.loads(msgspec.json.encode(item)) for item in await getattr(self._client, f"list_{kind}")()]

    async def call(self, name: str, arguments: Any) -> Any:
        import msgspec

        from portico.protocol.errors import ToolError

        try:
            result = await self._client.call_tool(name, arguments)
        except ToolError as refused:
            return {"isError": True, "content": [{"type": "text", "text": str(refused)}]}
        return json.loads(msgspec.json.encode(result))


async def probe(server: Any, wanted: Any) -> dict[str, Any]:
    theirs = not type(server).__module__.startswith("portico")
    message: dict[str, Any] = {"calls": {}}
    async with Theirs(server) if theirs else Ours(server) as request:
        for kind in ("tools", "resources", "prompts"):
            message[kind] = await request.names(kind)
        if wanted is None:
            wanted = {tool["name"]: sample(tool["inputSchema"], tool["inputSchema"]) for tool in message["tools"]}
        for name, arguments in wanted.items():
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    result = await request.call(name, arguments)
            except Exception as failure:
                result = {"raised": f"{type(failure).__name__}: {failure}"}
            message["calls"][name] = {"arguments": arguments, "result": result}
    return message


def look(path: Path, wanted: Any) -> dict[str, Any]:
    try:
        server = server_of(load(path))
    except BaseException as failure:
        return {"imports": False, "why": f"{type(failure).__name__}: {failure}"}
    try:
        result = asyncio.run(probe(server, wanted))
    except BaseException as failure:
        return {"imports": True, "lists": False, "why": f"{type(failure).__name__}: {_first(failure)}"}
    return {"imports": True, "lists": True, **result}


def _first(failure: BaseException) -> BaseException:
    """Return the cause in an exception group, whose own message only counts."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def forked(path: Path, wanted: Any) -> str:
    """Return the report of a child process about the file, even if it crashes."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for item in (0, 1, 2):
                os.dup2(nowhere, item)
            os.setsid()
            os.chdir(path.parent)
            sys.argv = [str(path)]
            answer.write(json.dumps(look(path, wanted), default=repr).encode())
            answer.flush()
            os._exit(0)
        value = time.monotonic() + WHOLE_SECONDS
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > value:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.02)
        answer.seek(0)
        return answer.read().decode() or json.dumps({"imports": False, "why": "it does not end, or ends too early"})


def main() -> None:
    for module in ("fastmcp", "mcp.server.mcpserver", "portico.server.server", "portico.client.client"):
        importlib.import_module(module)
    for line in sys.stdin:
        path, expected = json.loads(line)
        print(forked(Path(path), expected), flush=True)


if __name__ == "__main__":
    main()
