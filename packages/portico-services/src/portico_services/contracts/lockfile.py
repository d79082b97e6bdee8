"""contracts.lock: what the tools of a server promised when a person approved of it.

A server may change a description after it was approved, and descriptions are what models obey. So everything that a
model or a program sees of a tool, a prompt, a resource or a template is pinned, and whatever is not as it was is drift.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from portico import UsageError
from portico.definitions import (
    LISTS,
    LockFileError,
    Offer,
    OfferKind,
    format_lock,
    offers_of,
    parse_lock,
    read_lock,
    write_lock,
)
from portico_services.contracts.definitions import (
    CONTRACT_VERSION,
    Contract,
    Definition,
    definition_of,
    digest,
    plain,
)
from portico_services.contracts.diff import ContractChange, Difference, diff

FILE = "contracts.lock"


class _PinnedServer(Struct, frozen=True):
    name: str = ""
    version: str = ""
    revision: str = ""
    instructions: str | None = None


class _Pinned(Struct, frozen=True):
    digest: str
    definition: dict[str, Any]


class _Lock(Struct, frozen=True):
    contract: str
    server: _PinnedServer = _PinnedServer()
    tools: dict[str, _Pinned] = field(default_factory=dict)
    # None in a lock that was written about the tools alone.
    prompts: dict[str, _Pinned] | None = None
    resources: dict[str, _Pinned] | None = None
    templates: dict[str, _Pinned] | None = None


class Drift(Struct, frozen=True):
    """What is not as it was. `unexplained`: tools that differ in nothing that is compared, and differ all the same."""

    difference: Difference
    old: Contract
    new: Contract

    @property
    def changes(self) -> list[ContractChange]:
        return self.difference.changes


def write(contract: Contract) -> str:
    """Return the text of a lock, the same for the same promises."""
    server = {
        "name": contract.server,
        "version": contract.version,
        "revision": contract.revision,
        "instructions": contract.instructions,
    }
    tools = {tool.name: _pinned(digest(tool), plain(tool)) for tool in contract.tools}
    said = {"contract": CONTRACT_VERSION, "server": server, "tools": tools}
    return format_lock("contracts", {**said, **_pinned_offers(contract)})


def _pinned_offers(contract: Contract) -> dict[str, dict[str, Any]]:
    if contract.offers is None:
        return {}
    found: dict[str, dict[str, Any]] = {f"{kind}s": {} for kind in LISTS}
    for one in contract.offers:
        found[f"{one.kind}s"][one.key] = _pinned(one.digest, one.definition)
    return found


def _pinned(digest: str, definition: dict[str, Any]) -> dict[str, Any]:
    # The keys of a lock are sorted, those of a definition are not: specifications and clients that are made from a lock
    # have the parameters in the order of the server.
    return {"digest": f"sha256:{digest}", "definition": Raw(msgspec.json.encode(definition))}


def read(text: str | bytes) -> Contract:
    """Return the contract in the text of a lock. Raises LockFileError."""
    return _contract(parse_lock(text, "contracts", _Lock))


def read_file(path: Path) -> Contract | None:
    """Return the contract in a lock, or None if there is no such file. Raises UsageError."""
    said = read_lock(path, "contracts", _Lock)
    try:
        return None if said is None else _contract(said)
    except LockFileError as failure:
        raise UsageError(f"{path}: {failure}") from None


def write_file(path: Path, contract: Contract) -> None:
    """Write the lock of a contract. Raises UsageError."""
    write_lock(path, "contracts", write(contract))


def _contract(said: _Lock) -> Contract:
    server = said.server
    return Contract(
        server=server.name,
        version=server.version,
        revision=server.revision,
        instructions=server.instructions,
        tools=tuple(_read(name, one) for name, one in said.tools.items()),
        offers=_read_offers(said),
    )


def _read_offers(said: _Lock) -> tuple[Offer, ...] | None:
    pinned: dict[OfferKind, dict[str, _Pinned] | None]
    pinned = {"prompt": said.prompts, "resource": said.resources, "template": said.templates}
    if any(listed is None for listed in pinned.values()):
        return None
    found: list[Offer] = []
    for kind, listed in pinned.items():
        for key, one in (listed or {}).items():
            offers = offers_of(kind, [one.definition])
            if not offers or offers[0].key != key or f"sha256:{offers[0].digest}" != one.digest:
                raise LockFileError(
                    f"the definition of {key!r} does not have the digest beside it: write the file again"
                )
            found += offers
    return tuple(found)


def _read(name: str, pinned: _Pinned) -> Definition:
    if pinned.definition.get("name") != name:
        raise LockFileError(f"the definition of {name!r} has another name: write the file again")
    tool = definition_of(pinned.definition)
    if f"sha256:{digest(tool)}" != pinned.digest:
        raise LockFileError(
            f"the definition of {name!r} does not have the digest beside it: the file was changed by hand"
        )
    return tool


def check(pinned: Contract, found: Contract) -> Drift:
    """What has drifted since. Nothing, if no change is in it."""
    difference = diff(pinned, found)
    explained = {one.tool for one in difference.changes}
    silent = [
        ContractChange(tool.name, "patch", "tool", "", "its definition is written otherwise", "")
        for tool in found.tools
        if tool.name not in explained and _is_other(pinned.find(tool.name), tool)
    ]
    changes = [*difference.changes, *silent]
    level = difference.level if not silent or difference.level != "none" else "patch"
    return Drift(Difference(level, changes, difference.verdicts), pinned, found)


def _is_other(old: Definition | None, new: Definition) -> bool:
    return old is not None and digest(old) != digest(new)
