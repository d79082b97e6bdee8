"""Write the specification and the lock file of each service into this directory: `make specifications`.

With arguments, `python docs/specifications/write.py memory live` writes only these services."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from portico import Client, Server
from portico_services import assembly
from portico_services.cli.contracts import list_components
from portico_services.contracts import invoker, lockfile, spec_parser
from portico_services.contracts.definitions import ServerContract
from portico_services.contracts.spec_writer import render_specification
from portico_services.settings import SettingsFile

HERE = Path(__file__).parent
# These services list all their tools only in the `all` profile.
_WHOLE = {"live": "live:all", "memory": "memory:all"}


def served(name: str, folder: Path) -> Server:
    """Return the server that `portico serve --services NAME` would run, with all tools listed."""
    place = assembly.ServiceEnvironment(data=folder, store=str(folder / "store.db"))
    return assembly.build_server([_WHOLE.get(name, name)], SettingsFile(), place)


async def contract_of(server: Server) -> ServerContract:
    contract = await invoker.fetch_contract(server)
    async with Client(server) as client:
        components = await list_components(client)
    return replace(contract, instructions=server.instructions or "", offers=components)


def files(name: str, contract: ServerContract) -> dict[Path, str]:
    """Return the text of each file in the service's directory here, by path."""
    folder = HERE / name
    return {
        folder / spec_parser.SPEC_FILE_NAME: render_specification(contract),
        folder / lockfile.LOCKFILE_NAME: lockfile.dump_lockfile(contract),
    }


def _write(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            contract = asyncio.run(contract_of(served(name, Path(folder))))
            for path, text in files(name, contract).items():
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(sys.argv[1:] or list(assembly.SERVICE_CLASSES))
