"""Writes the specification and the lock of each service here: `make specifications`, or this file with their names."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from portico.server.server import Server
from portico.services import assembly
from portico.services.contracts import asking, lock, specification
from portico.services.contracts.definitions import Contract
from portico.services.contracts.render import render
from portico.services.settings import ServeSettings

HERE = Path(__file__).parent
# Some do not list everything unless they are asked to.
_WHOLE = {"live": "live:all", "memory": "memory:all"}


def served(name: str, folder: Path) -> Server:
    """What `portico serve --services NAME` serves, with all its tools."""
    place = assembly.ServicePlace(data=folder, store=str(folder / "store.db"))
    return assembly.assemble([_WHOLE.get(name, name)], ServeSettings(), place)


async def contract_of(server: Server) -> Contract:
    found = await asking.contract_from(server)
    return replace(found, instructions=server.instructions or "", offers=await asking.offers_from(server))


def files(name: str, contract: Contract) -> dict[Path, str]:
    """What stands in the service's folder here."""
    folder = HERE / name
    return {folder / specification.FILE: render(contract), folder / lock.FILE: lock.write(contract)}


def _write(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            contract = asyncio.run(contract_of(served(name, Path(folder))))
            for path, text in files(name, contract).items():
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(sys.argv[1:] or list(assembly.HOMES))
