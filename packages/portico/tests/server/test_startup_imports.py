"""Modules that a server imports before its first response."""

from __future__ import annotations

import json
import subprocess
import sys

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "me", "version": "1"}},
}
SERVER = """
import sys
from portico import Server
server = Server("plain")
@server.tool
async def add(a: int, b: int = 1) -> int:
    return a + b
server.run()
print(*sys.modules, file=sys.stderr)
"""
# Each of our modules costs about a third of a millisecond: finding, reading and running it.
MOST_MODULES = 70
# For bodies that ask, for those that depend on something, for mounts, rules, templates, wrong arguments.
LATER = {
    "portico.rpc.client_requests",
    "portico.jsonschema.argument_issues",
    "portico.server.context.context",
    "portico.server.context.request_state",
    "portico.server.components.dependencies",
    "portico.server.components.argument_repair",
    "portico.server.policy.interfaces",
    "portico.server.policy.ownership",
    "portico.server.providers.mount",
    "portico.protocol.uri_template",
}
# Ours would be the only ones to import these.
NOT_BY_US = {"bisect", "copy", "hashlib", "hmac", "importlib.util", "tempfile"}


def loaded(program: str, said: str = "") -> set[str]:
    done = subprocess.run([sys.executable, "-c", program], input=said, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_start_imports_only_required_modules() -> None:
    modules = loaded(SERVER, json.dumps(INITIALIZE) + "\n")
    ours = {name for name in modules if name.split(".")[0] == "portico"}
    assert "portico.transports.stdio" in ours
    assert ours.isdisjoint(LATER)
    assert len(ours) <= MOST_MODULES
    assert modules.isdisjoint(NOT_BY_US)


def test_importing_the_package_imports_no_typing() -> None:
    assert "typing" not in loaded("import sys, portico; print(*sys.modules, file=sys.stderr)")


def test_dependency_in_an_annotation_is_found_though_nothing_has_made_one_yet() -> None:
    program = """
from __future__ import annotations
import asyncio, sys
from typing import Annotated
from portico import Client, Depends, Server
server = Server("plain")
def number() -> int:
    return 7
@server.tool
def told(n: Annotated[int, Depends(number)]) -> int:
    return n
async def main():
    async with Client(server) as client:
        print((await client.call_tool("told")).data, file=sys.stderr)
asyncio.run(main())
"""
    assert loaded(program) == {"7"}
