"""contracts.lock: what the tools of a server promised when a person approved of it.

A server may change a description after it was approved, and descriptions are what models obey. So everything that a
model or a program sees of a tool, a prompt, a resource or a template is pinned, and whatever is not as it was is drift.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from portico.definitions import LISTS, Offer, OfferKind, offers_of
from portico.extend import decode_bounded
from portico_services.contracts.definitions import (
    CONTRACT_VERSION,
    Contract,
    Definition,
    definition_of,
    digest,
    plain,
)
from portico_services.contracts.diff import ContractChange, Difference, diff
from portico_services.contracts.markdown import pretty

FILE = "contracts.lock"
# Form 1 did not pin `_meta`, icons and unknown members: where there are some, they count as changed.
FORM = 2
_OLD_FORM = 1
LONGEST = 32 * 1024 * 1024


class BadLock(ValueError):
    """A file that is no lock, or one that was changed by hand."""


class _PinnedServer(Struct, frozen=True):
    name: str = ""
    version: str = ""
    revision: str = ""
    instructions: str | None = None


class _Pinned(Struct, frozen=True):
    digest: str
    definition: dict[str, Any]


class _Lock(Struct, frozen=True):
    lock: int
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
    """The text of a lock, the same for the same promises: tools stand in the order of their names."""
    server = {
        "name": contract.server,
        "version": contract.version,
        "revision": contract.revision,
        "instructions": contract.instructions,
    }
    tools = {
        tool.name: {"digest": f"sha256:{digest(tool)}", "definition": plain(tool)}
        for tool in sorted(contract.tools, key=lambda tool: tool.name)
    }
    said = {"lock": FORM, "contract": CONTRACT_VERSION, "server": server, "tools": tools}
    return pretty({**said, **_pinned_offers(contract)}) + "\n"


def _pinned_offers(contract: Contract) -> dict[str, dict[str, Any]]:
    if contract.offers is None:
        return {}
    found: dict[str, dict[str, Any]] = {f"{kind}s": {} for kind in LISTS}
    for one in sorted(contract.offers, key=lambda offer: offer.key):
        found[f"{one.kind}s"][one.key] = {"digest": f"sha256:{one.digest}", "definition": one.definition}
    return found


def read(text: str | bytes) -> Contract:
    """What was pinned. Raises BadLock."""
    try:
        said = decode_bounded(text, type=_Lock)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise BadLock(f"this is no {FILE}: {str(failure).replace('`', chr(39))}") from None
    if said.lock not in (_OLD_FORM, FORM):
        raise BadLock(f"lock must be {FORM} or {_OLD_FORM} in {FILE}, got {said.lock}: write the file again")
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
                raise BadLock(f"the definition of {key!r} does not have the digest beside it: write the file anew")
            found += offers
    return tuple(found)


def _read(name: str, pinned: _Pinned) -> Definition:
    if pinned.definition.get("name") != name:
        raise BadLock(f"the definition of {name!r} has another name: write the file anew")
    tool = definition_of(pinned.definition)
    if f"sha256:{digest(tool)}" != pinned.digest:
        raise BadLock(f"the definition of {name!r} does not have the digest beside it: the file was changed by hand")
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
