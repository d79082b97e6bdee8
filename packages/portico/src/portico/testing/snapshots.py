"""Contract snapshots: a server's tools, resources and prompts stored in a file and compared as text."""

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

# Enough to see the kind of change; the complete difference is in version control after an update.
MAX_DIFF_LINES = 60
_LISTS = ("tools", "resources", "resource_templates", "prompts")


class ContractSnapshot:
    """Snapshot of a server's contract.

    `await portico_contract.check()` or `portico_contract.check_sync()` fails and shows the difference if the server's
    contract differs from the snapshot.
    """

    def __init__(self, server: Any, path: Path, *, update: bool) -> None:
        self._server = server
        self.path = path
        self._update = update

    async def check(self) -> None:
        """Compare the server with the snapshot, or write the snapshot with --update-snapshots."""
        async with Client(self._server) as client:
            self._compare({name: await _list_items(client, name) for name in _LISTS})

    def check_sync(self) -> None:
        """Do the same as `check` without an event loop."""
        with SyncClient(self._server) as client:
            self._compare({name: _list_items_sync(client, name) for name in _LISTS})

    def _compare(self, contract: dict[str, Any]) -> None:
        # Sorted and indented, so that a snapshot is stable and reviews show single members.
        current = json.dumps(contract, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        if self._update:
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(current, encoding="utf-8")
            return
        if not self.path.exists():
            pytest.fail(
                f"snapshot {self.path} not found: run pytest with --update-snapshots to create it", pytrace=False
            )
        stored = self.path.read_text(encoding="utf-8")
        if stored == current:
            return
        lines = list(
            difflib.unified_diff(stored.splitlines(), current.splitlines(), "the snapshot", "the server", "", "", 2, "")
        )
        rest = [f"… and {len(lines) - MAX_DIFF_LINES} more lines"] if len(lines) > MAX_DIFF_LINES else []
        pytest.fail(
            "the server's contract differs from the snapshot; if that is intended, run pytest with --update-snapshots\n"
            + "\n".join(lines[:MAX_DIFF_LINES] + rest),
            pytrace=False,
        )


async def _list_items(client: Client, name: str) -> list[Any]:
    try:
        return _to_builtins(await getattr(client, f"list_{name}")())
    # A server without this kind of component need not implement its list.
    except MethodNotFound:
        return []


def _list_items_sync(client: SyncClient, name: str) -> list[Any]:
    try:
        return _to_builtins(getattr(client, f"list_{name}")())
    except MethodNotFound:
        return []


def _to_builtins(items: Any) -> list[Any]:
    entries = [msgspec.to_builtins(item) for item in items]
    # The order in which a server lists its entries is not part of its contract.
    return sorted(entries, key=lambda entry: str(entry.get("name")))
