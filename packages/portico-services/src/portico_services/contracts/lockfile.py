"""contracts.lock: the contract of a server at the time a person approved it.

A server may change a description after approval, and models follow descriptions. Everything that a model or a program
sees of a tool, prompt, resource or template is therefore pinned, and every difference is drift.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from portico import UsageError
from portico.definitions import (
    LISTS,
    ComponentKind,
    LockFileError,
    PinnedComponent,
    components_from_list,
    format_lock,
    parse_lock,
    read_lock,
    write_lock,
)
from portico_services.contracts.definitions import (
    CONTRACT_VERSION,
    ServerContract,
    ToolDefinitionSnapshot,
    definition_digest,
    definition_from_tool,
    to_tool_json,
)
from portico_services.contracts.diff import ContractChange, ContractDiff, diff_contracts

LOCKFILE_NAME = "contracts.lock"


class _PinnedServer(Struct, frozen=True):
    name: str = ""
    version: str = ""
    revision: str = ""
    instructions: str | None = None


class _PinnedTool(Struct, frozen=True):
    digest: str
    definition: dict[str, Any]


class _LockfileDocument(Struct, frozen=True):
    contract: str
    server: _PinnedServer = _PinnedServer()
    tools: dict[str, _PinnedTool] = field(default_factory=dict)
    # None in a lock file that pins only the tools.
    prompts: dict[str, _PinnedTool] | None = None
    resources: dict[str, _PinnedTool] | None = None
    templates: dict[str, _PinnedTool] | None = None


class LockfileDrift(Struct, frozen=True):
    """Drift between a lock file and a server's current contract."""

    difference: ContractDiff
    old: ServerContract
    new: ServerContract

    @property
    def changes(self) -> list[ContractChange]:
        return self.difference.changes


def dump_lockfile(contract: ServerContract) -> str:
    """Return the text of a lock file; equal contracts give equal texts."""
    server = {
        "name": contract.server,
        "version": contract.version,
        "revision": contract.revision,
        "instructions": contract.instructions,
    }
    tools = {tool.name: _pin_definition(definition_digest(tool), to_tool_json(tool)) for tool in contract.tools}
    document = {"contract": CONTRACT_VERSION, "server": server, "tools": tools}
    return format_lock("contracts", {**document, **_pinned_offers(contract)})


def _pinned_offers(contract: ServerContract) -> dict[str, dict[str, Any]]:
    if contract.offers is None:
        return {}
    result: dict[str, dict[str, Any]] = {f"{kind}s": {} for kind in LISTS}
    for offer in contract.offers:
        result[f"{offer.kind}s"][offer.key] = _pin_definition(offer.digest, offer.definition)
    return result


def _pin_definition(digest: str, definition: dict[str, Any]) -> dict[str, Any]:
    # The keys of a lock file are sorted, but those of a definition are not: specifications and clients that are
    # generated from a lock file keep the server's order of parameters.
    return {"digest": f"sha256:{digest}", "definition": Raw(msgspec.json.encode(definition))}


def load_lockfile(text: str | bytes) -> ServerContract:
    """Parse the text of a lock file and return its contract. Raises LockFileError."""
    return _contract(parse_lock(text, "contracts", _LockfileDocument))


def read_file(path: Path) -> ServerContract | None:
    """Read a lock file and return its contract, or None if the file does not exist. Raises UsageError."""
    document = read_lock(path, "contracts", _LockfileDocument)
    try:
        return None if document is None else _contract(document)
    except LockFileError as failure:
        raise UsageError(f"{path}: {failure}") from None


def write_file(path: Path, contract: ServerContract) -> None:
    """Write a contract to a lock file. Raises UsageError."""
    write_lock(path, "contracts", dump_lockfile(contract))


def _contract(document: _LockfileDocument) -> ServerContract:
    server = document.server
    return ServerContract(
        server=server.name,
        version=server.version,
        revision=server.revision,
        instructions=server.instructions,
        tools=tuple(_read(name, entry) for name, entry in document.tools.items()),
        offers=_read_offers(document),
    )


def _read_offers(document: _LockfileDocument) -> tuple[PinnedComponent, ...] | None:
    pinned: dict[ComponentKind, dict[str, _PinnedTool] | None]
    pinned = {"prompt": document.prompts, "resource": document.resources, "template": document.templates}
    # A lock file pins all kinds of components or only the tools.
    if any(listed is None for listed in pinned.values()):
        return None
    results: list[PinnedComponent] = []
    for kind, listed in pinned.items():
        for key, entry in (listed or {}).items():
            offers = components_from_list(kind, [entry.definition])
            # The digest detects manual edits and merge conflicts. It is no protection against an attacker, who could
            # compute it too; the file belongs under version control.
            if not offers or offers[0].key != key or f"sha256:{offers[0].digest}" != entry.digest:
                raise LockFileError(f"the digest of {key!r} does not match its definition: write the lock file again")
            results += offers
    return tuple(results)


def _read(name: str, pinned: _PinnedTool) -> ToolDefinitionSnapshot:
    if pinned.definition.get("name") != name:
        raise LockFileError(f"the definition of {name!r} has a different name: write the lock file again")
    tool = definition_from_tool(pinned.definition)
    if f"sha256:{definition_digest(tool)}" != pinned.digest:
        raise LockFileError(f"the digest of {name!r} does not match its definition: the lock file was edited by hand")
    return tool


def check_drift(pinned: ServerContract, current: ServerContract) -> LockfileDrift:
    """Return the drift of a contract from the pinned one; its list of changes is empty if there is none."""
    difference = diff_contracts(pinned, current)
    # A tool may differ in a member that the comparison does not know; that is drift as well.
    explained = {change.tool for change in difference.changes}
    silent = [
        ContractChange(tool.name, "patch", "tool", "", "the definition changed in a member that is not compared", "")
        for tool in current.tools
        if tool.name not in explained and _differs(pinned.find(tool.name), tool)
    ]
    changes = [*difference.changes, *silent]
    level = difference.level if not silent or difference.level != "none" else "patch"
    return LockfileDrift(ContractDiff(level, changes, difference.verdicts), pinned, current)


def _differs(old: ToolDefinitionSnapshot | None, new: ToolDefinitionSnapshot) -> bool:
    return old is not None and definition_digest(old) != definition_digest(new)
