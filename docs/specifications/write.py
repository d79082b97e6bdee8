"""Writes the specification and the lock of each service here: `make specifications`, or this file with their names."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from portico import __version__
from portico.server.registry.service import Service
from portico.server.server import Server
from portico.services import assembly
from portico.services.contracts import asking, lock, specification
from portico.services.contracts.definitions import Contract
from portico.services.contracts.render import render

HERE = Path(__file__).parent
# Some do not list everything unless they are asked to.
_WHOLE = {"memory": "memory:all"}


def made(name: str, place: assembly.ServicePlace) -> Service:
    """A service with all its tools."""
    return assembly.make(_WHOLE.get(name, name), {}, place)


async def contract_of(service: Service) -> Contract:
    """What a service promises when it is the only one of a server that is called like it."""
    server = Server(service.name, version=__version__)
    server.add(service)
    return await asking.contract_from(server)


def files(contract: Contract) -> dict[Path, str]:
    """What stands in the service's folder here."""
    folder = HERE / contract.server
    return {folder / specification.FILE: render(contract), folder / lock.FILE: lock.write(contract)}


def _write(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = assembly.ServicePlace(data=Path(folder), store=str(Path(folder) / "store.db"))
        for name in names:
            contract = asyncio.run(contract_of(made(name, place)))
            for path, text in files(contract).items():
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(sys.argv[1:] or list(assembly.HOMES))
