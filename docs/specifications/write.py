"""Writes the specification and the lock of each service here: `make specifications`, or this file with their names."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from portico.server.server import Server
from portico_services import assembly
from portico_services.contracts import invoker, lockfile, spec_parser
from portico_services.contracts.definitions import Contract
from portico_services.contracts.spec_writer import render
from portico_services.settings import ServeSettings

HERE = Path(__file__).parent
# Some do not list everything unless they are asked to.
_WHOLE = {"live": "live:all", "memory": "memory:all"}


def served(name: str, folder: Path) -> Server:
    """What `portico serve --services NAME` serves, with all its tools."""
    place = assembly.ServicePlace(data=folder, store=str(folder / "store.db"))
    return assembly.assemble([_WHOLE.get(name, name)], ServeSettings(), place)


async def contract_of(server: Server) -> Contract:
    found = await invoker.contract_from(server)
    return replace(found, instructions=server.instructions or "", offers=await invoker.offers_from(server))


def files(name: str, contract: Contract) -> dict[Path, str]:
    """What stands in the service's folder here."""
    folder = HERE / name
    return {folder / spec_parser.FILE: render(contract), folder / lockfile.FILE: lockfile.write(contract)}


def _write(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            contract = asyncio.run(contract_of(served(name, Path(folder))))
            for path, text in files(name, contract).items():
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(sys.argv[1:] or list(assembly.HOMES))
