"""Saved scripts: each is a tool of its owner as long as the tools that it uses are unchanged."""

from __future__ import annotations

import ast
import time
from typing import Any

import msgspec
from msgspec import Struct

from portico import ToolError
from portico.extend import Transaction, encode_json_column
from portico_services.codemode.journal import RunStore
from portico_services.codemode.tool_catalog import ToolCatalog

MAX_SAVED_SCRIPTS = 100
MAX_DESCRIPTION_CHARS = 400
MAX_SHOWN_CODE_CHARS = 8_000


class SavedScript(Struct):
    name: str
    description: str
    code: str
    # Digests of the tools that it uses, by tool name.
    tools: dict[str, str]
    saved_at: float

    def check_tools_unchanged(self, table: ToolCatalog) -> None:
        """Raise ToolError if a tool that the script uses has changed: the script could now behave differently."""
        changed = table.changed_tools(self.tools)
        if changed:
            raise ToolError(
                f"Since the script {self.name!r} was saved, these tools have changed: {', '.join(changed)}. "
                f"Review the script, then run it with save={self.name!r} to save it again:\n"
                f"{self.code[:MAX_SHOWN_CODE_CHARS]}",
                error_type="ToolExecutionError",
                details={"changed": changed},
            )

    def definition(self, table: ToolCatalog) -> dict[str, Any]:
        """Return the tool definition for `tools/list`."""
        # The annotation is as strict as the strictest tool that the script uses.
        reads = all(table.by_name[name].is_read_only for name in self.tools if name in table.by_name)
        return {
            "name": self.name,
            "description": f"{self.description} (a saved script)",
            "inputSchema": {
                "type": "object",
                "properties": {"data": {"description": "JSON value available as `data`"}},
                "required": [],
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": reads},
        }


class _ScriptRow(Struct):
    """A row as stored. The tools are decoded after the signature was checked."""

    name: str
    description: str
    code: str
    tools: str
    saved_at: float
    signature: str | None = None

    def signed_fields(self, owner: str) -> tuple[str, ...]:
        return owner, self.name, self.description, self.code, self.tools

    def to_script(self) -> SavedScript:
        tools = msgspec.json.decode(self.tools, type=dict[str, str])
        return SavedScript(self.name, self.description, self.code, tools, self.saved_at)


def script_description(code: str) -> str:
    """Return the description of a script: its docstring, or its leading comment."""
    try:
        text = ast.get_docstring(ast.parse(code)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = ""  # a top-level `await` is still a valid script
    if not text and code.lstrip().startswith("#"):
        text = code.lstrip().partition("\n")[0].lstrip("# ")
    # The text is shown in tool lists, so control characters are removed.
    plain = "".join(item if item.isprintable() else " " for item in text)
    return " ".join(plain.split())[:MAX_DESCRIPTION_CHARS] or "A script"


class SavedScriptStore:
    """Store of saved scripts, by owner."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def save(self, owner: str, script: SavedScript) -> None:
        tools = encode_json_column(script.tools)
        row = _ScriptRow(script.name, script.description, script.code, tools, time.time())
        row.signature = (await self._store.signing()).sign_row(_PURPOSE, *row.signed_fields(owner))
        if not await self._store.write(_save, owner, row):
            raise ToolError(
                f"The limit of {MAX_SAVED_SCRIPTS} saved scripts is reached: delete one with forget_saved.",
                error_type="ApiLimitExceeded",
            )

    async def find(self, owner: str, name: str) -> SavedScript:
        """Return a saved script. Raises ToolError if it does not exist."""
        result = await self._store.read(_find, owner, name)
        # A forged row is reported like a missing one.
        if result is None or not await self._is_authentic(owner, result):
            raise ToolError(f"Unknown saved script {name[:80]!r}.", error_type="ResourceNotFound")
        assert isinstance(result, _ScriptRow)
        return result.to_script()

    async def list(self, owner: str) -> list[SavedScript]:
        result: list[_ScriptRow] = await self._store.read(_fetch_all, owner)
        return [row.to_script() for row in result if await self._is_authentic(owner, row)]

    async def _is_authentic(self, owner: str, row: _ScriptRow) -> bool:
        """Return whether the owner saved the script: a database role that can write rows must not inject code into its
        tools.
        """
        return (await self._store.signing()).is_row_signed(_PURPOSE, row.signature, *row.signed_fields(owner))

    async def delete(self, owner: str, name: str) -> bool:
        return bool(await self._store.write(_delete, owner, name))


_COLUMNS = "name, description, code, tools, saved_at, signature"
_PURPOSE = b"saved scripts"


def _save(tx: Transaction, owner: str, row: _ScriptRow) -> bool:
    count = tx.fetch_one(
        int, "select count(*) from portico_saved_script where owner = ? and name <> ?", (owner, row.name)
    )
    if count >= MAX_SAVED_SCRIPTS:
        return False
    tx.execute(
        f"insert into portico_saved_script (owner, {_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?) on conflict (owner, name) "
        "do update set description = excluded.description, code = excluded.code, tools = excluded.tools, "
        "saved_at = excluded.saved_at, signature = excluded.signature",
        (owner, row.name, row.description, row.code, row.tools, row.saved_at, row.signature),
    )
    return True


def _find(tx: Transaction, owner: str, name: str) -> _ScriptRow | None:
    return tx.fetch_optional(
        _ScriptRow, f"select {_COLUMNS} from portico_saved_script where owner = ? and name = ?", (owner, name)
    )


def _fetch_all(tx: Transaction, owner: str) -> list[_ScriptRow]:
    return tx.fetch_all(
        _ScriptRow, f"select {_COLUMNS} from portico_saved_script where owner = ? order by name", (owner,)
    )


def _delete(tx: Transaction, owner: str, name: str) -> int:
    return tx.execute("delete from portico_saved_script where owner = ? and name = ?", (owner, name))
