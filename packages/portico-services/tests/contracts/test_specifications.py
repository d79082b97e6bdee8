"""The specifications in docs/ match the tools of each service, without lint errors, and are locked.

`make specifications` writes both files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from portico import Client
from portico.protocol.errors import UsageError
from portico_services import assembly
from portico_services.contracts import definitions, lockfile, spec_parser
from portico_services.contracts.definitions import ServerContract
from portico_services.contracts.invocation_names import INVOCATION_META_KEY
from portico_services.contracts.lint import lint_document, lint_tools
from portico_services.settings import SettingsFile
from support.paths import ROOT
from support.scripts import load_script

shipped = load_script(ROOT / "docs" / "specifications" / "write.py")


class Shipped(NamedTuple):
    name: str
    contract: ServerContract


@pytest.fixture(params=list(assembly.SERVICE_CLASSES))
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> Shipped:
    try:
        server = shipped.served(request.param, tmp_path)
    except UsageError as reason:
        pytest.skip(f"the service {request.param!r} cannot be had on this machine: {reason}")
    return Shipped(request.param, await shipped.contract_of(server))


def test_shipped_files_are_up_to_date(service: Shipped) -> None:
    for path, text in shipped.files(*service).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: make specifications"


def test_specification_has_no_findings(service: Shipped) -> None:
    """As `portico contracts lint --strict` has it: no warning either."""
    text = (shipped.HERE / service.name / spec_parser.SPEC_FILE_NAME).read_text(encoding="utf-8")
    results = [*lint_document(text), *lint_tools(service.contract, service.contract.tools)]
    assert [item for item in results if item.severity != "recommendation"] == []


def test_every_input_object_declares_its_required_members(service: Shipped) -> None:
    def silent(schema: Any) -> bool:
        parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        is_object = isinstance(schema, dict) and isinstance(schema.get("properties"), dict) and "type" in schema
        return (is_object and "required" not in schema) or any(map(silent, parts))

    assert [tool.name for tool in service.contract.tools if silent(tool.input_schema)] == []


def test_nothing_has_drifted_from_the_lock(service: Shipped) -> None:
    pinned = lockfile.load_lockfile((shipped.HERE / service.name / lockfile.LOCKFILE_NAME).read_bytes())
    assert lockfile.check_drift(pinned, service.contract).changes == []


def test_lock_file_matches_the_served_tools(service: Shipped, tmp_path: Path) -> None:
    portico = [sys.executable, "-m", "portico"]
    extent = shipped._WHOLE.get(service.name, service.name)
    serve = [*portico, "serve", "--services", extent, "--data", str(tmp_path)]
    pinned = str(shipped.HERE / service.name / lockfile.LOCKFILE_NAME)
    check = subprocess.run(
        [*portico, "contracts", "check", "--lock-file", pinned, "--", *serve],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert check.returncode == 0, check.stdout + check.stderr


async def test_tool_has_one_dotted_name_everywhere(service: Shipped, tmp_path: Path) -> None:
    """What is declared in the specification is what tools/call takes and what spec_get knows; each has a version."""
    with_contracts = list(dict.fromkeys([shipped._WHOLE.get(service.name, service.name), "contracts"]))
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "other.db"))
    server = assembly.build_server(with_contracts, SettingsFile(), place)
    for tool in service.contract.tools:
        assert definitions.parse_version(tool.version), tool.name
        result = server.registry.tool(tool.invocation)
        assert result is not None and result.definition.meta is not None, tool.invocation
        assert result.definition.meta[INVOCATION_META_KEY] == tool.invocation
    async with Client(server) as client:
        first = service.contract.tools[0]
        said = await client.call_tool("spec_get", {"tool": first.invocation, "format": "json"})
        assert said.structured["tool"] == first.invocation
