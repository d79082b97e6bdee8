"""Scripts that callers have saved: each is a tool of its owner's, as long as the tools that it uses stay the same."""

from __future__ import annotations

import ast
import time
from typing import Any

from msgspec import Struct

from portico import ToolError
from portico.extend import Transaction, json_column
from portico_services.codemode.journal import RunStore
from portico_services.codemode.tool_catalog import ToolTable

MOST_SAVED = 100
LONGEST_DESCRIPTION = 400
LONGEST_SHOWN = 8_000


class SavedScript(Struct):
    name: str
    description: str
    code: str
    # What the tools were that it uses, by their names.
    tools: dict[str, str]
    saved_at: float
    signature: str | None = None

    def signed(self, owner: str) -> tuple[str, ...]:
        return owner, self.name, self.description, self.code, json_column(self.tools)

    def check(self, table: ToolTable) -> None:
        """Raises ToolError if a tool is not what it was: the script may do something else now than it did."""
        changed = table.changed(self.tools)
        if changed:
            raise ToolError(
                f"The script {self.name!r} was saved when {', '.join(changed)} was another tool than now. "
                f"Look at it, run it with save={self.name!r} and it is saved anew:\n{self.code[:LONGEST_SHOWN]}",
                kind="ToolExecutionError",
                details={"changed": changed},
            )

    def definition(self, table: ToolTable) -> dict[str, Any]:
        """As a list has it."""
        reads = all(table.by_name[name].reads for name in self.tools if name in table.by_name)
        return {
            "name": self.name,
            "description": f"{self.description} (a script that you have saved)",
            "inputSchema": {
                "type": "object",
                "properties": {"data": {"description": "JSON that the script finds in `data`"}},
                "required": [],
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": reads},
        }


def description_of(code: str) -> str:
    """What a script says of itself: its docstring, or the comment that it begins with."""
    try:
        said = ast.get_docstring(ast.parse(code)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        said = ""  # with an `await` at its top it is still a script
    if not said and code.lstrip().startswith("#"):
        said = code.lstrip().partition("\n")[0].lstrip("# ")
    plain = "".join(one if one.isprintable() else " " for one in said)
    return " ".join(plain.split())[:LONGEST_DESCRIPTION] or "A script"


class SavedScripts:
    """In the store, by owner."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def save(self, owner: str, script: SavedScript) -> None:
        script.signature = (await self._store.signing()).sign_row(_PURPOSE, *script.signed(owner))
        if not await self._store.write(_save, owner, script):
            raise ToolError(f"There are {MOST_SAVED} saved scripts already: forget one.", kind="ApiLimitExceeded")

    async def find(self, owner: str, name: str) -> SavedScript:
        """Raises ToolError if there is none."""
        found = await self._store.read(_find, owner, name)
        if found is None or not await self._is_authentic(owner, found):
            raise ToolError(f"There is no saved script {name[:80]!r}.", kind="ResourceNotFound")
        assert isinstance(found, SavedScript)
        return found

    async def all(self, owner: str) -> list[SavedScript]:
        found: list[SavedScript] = await self._store.read(_all, owner)
        return [one for one in found if await self._is_authentic(owner, one)]

    async def _is_authentic(self, owner: str, script: SavedScript) -> bool:
        """Return whether its owner has saved it: a role that can write rows must not put code into their tools."""
        return (await self._store.signing()).is_row_signed(_PURPOSE, script.signature, *script.signed(owner))

    async def forget(self, owner: str, name: str) -> bool:
        return bool(await self._store.write(_forget, owner, name))


_COLUMNS = "name, description, code, tools, saved_at, signature"
_PURPOSE = b"saved scripts"


def _save(tx: Transaction, owner: str, script: SavedScript) -> bool:
    count = tx.one(int, "select count(*) from portico_saved_script where owner = ? and name <> ?", (owner, script.name))
    if count >= MOST_SAVED:
        return False
    tx.run(
        f"insert into portico_saved_script (owner, {_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?) on conflict (owner, name) "
        "do update set description = excluded.description, code = excluded.code, tools = excluded.tools, "
        "saved_at = excluded.saved_at, signature = excluded.signature",
        (
            owner,
            script.name,
            script.description,
            script.code,
            json_column(script.tools),
            time.time(),
            script.signature,
        ),
    )
    return True


def _find(tx: Transaction, owner: str, name: str) -> SavedScript | None:
    return tx.maybe(
        SavedScript, f"select {_COLUMNS} from portico_saved_script where owner = ? and name = ?", (owner, name)
    )


def _all(tx: Transaction, owner: str) -> list[SavedScript]:
    return tx.all(SavedScript, f"select {_COLUMNS} from portico_saved_script where owner = ? order by name", (owner,))


def _forget(tx: Transaction, owner: str, name: str) -> int:
    return tx.run("delete from portico_saved_script where owner = ? and name = ?", (owner, name))
