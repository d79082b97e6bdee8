"""A server's promises in a file: its tools, resources and prompts, compared as text."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico.client.client import Client
from portico.client.sync_client import SyncClient
from portico.protocol.errors import MethodNotFound

MOST_LINES = 60
_LISTS = ("tools", "resources", "resource_templates", "prompts")


class ContractSnapshot:
    """`await portico_contract.check()`, or `portico_contract.check_sync()`, fails if the server promises something else
    than in the snapshot, and shows the difference."""

    def __init__(self, server: Any, path: Path, *, update: bool) -> None:
        self._server = server
        self.path = path
        self._update = update

    async def check(self) -> None:
        async with Client(self._server) as client:
            self._compare({name: await _listed(client, name) for name in _LISTS})

    def check_sync(self) -> None:
        with SyncClient(self._server) as client:
            self._compare({name: _listed_sync(client, name) for name in _LISTS})

    def _compare(self, promised: dict[str, Any]) -> None:
        now = json.dumps(promised, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        if self._update:
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(now, encoding="utf-8")
            return
        if not self.path.exists():
            pytest.fail(f"there is no snapshot {self.path}: run pytest with --update-snapshots", pytrace=False)
        then = self.path.read_text(encoding="utf-8")
        if then == now:
            return
        lines = list(
            difflib.unified_diff(then.splitlines(), now.splitlines(), "the snapshot", "the server", "", "", 2, "")
        )
        more = [f"… and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
        pytest.fail(
            "the server does not promise what it did; if that is meant, run pytest with --update-snapshots\n"
            + "\n".join(lines[:MOST_LINES] + more),
            pytrace=False,
        )


async def _listed(client: Client, name: str) -> list[Any]:
    try:
        return _plain(await getattr(client, f"list_{name}")())
    except MethodNotFound:
        return []


def _listed_sync(client: SyncClient, name: str) -> list[Any]:
    try:
        return _plain(getattr(client, f"list_{name}")())
    except MethodNotFound:
        return []


def _plain(listed: Any) -> list[Any]:
    said = [msgspec.to_builtins(one) for one in listed]
    # In which order a server lists them is no promise.
    return sorted(said, key=lambda one: str(one.get("name")))
