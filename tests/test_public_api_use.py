"""Built-in services and examples use only the public API."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from support import sources
from support.paths import ROOT

SERVICES = sources.PACKAGES["portico_services"]
EXAMPLES = ROOT / "examples"
# The commands of a package are made of the parts of the SDK's own.
_SERVICES = [path for path in sorted(SERVICES.rglob("*.py")) if path.parent.name != "cli" and path.name != "plugin.py"]
FILES = [*_SERVICES, *sorted(EXAMPLES.rglob("*.py"))]

DOORS = (
    "portico",
    "portico.audit",
    "portico.client.skills",
    "portico.definitions",
    "portico.errors",
    "portico.types",
    "portico.extend",
    "portico.jsonschema",
    "portico.auth",
    "portico.screening",
    "portico.search",
    "portico.store.errors",
    "portico.server.providers",
    "portico.server.transforms",
    "portico.compat.fastmcp",
    "portico.compat.mcp_sdk",
    "portico_services.contracts.api",
)
OFFERED = ("memory", "workitems", "system", "livepython", "contracts", "codemode")

# What is no public name, and may be imported all the same.
ALLOWED = {
    "portico._lazy": "how the packages of this repository import their own modules late",
    "portico.caching": "the bounded cache",
    "portico.protocol.notifications": "the names and params of notifications",
    "portico.protocol.translation": "results for another protocol version",
    "portico.safe_open": "files below a folder, opened without following links out of it",
    "portico.text": "shortening texts",
    "portico.settings_file": "reading settings files",
    "portico.server.settings": "the tables of a portico.toml that every server has",
}


def imported(path: Path) -> Iterator[tuple[str, str, int]]:
    """Every module of ours that is imported, the name that is taken from it, and the line."""
    for node in sources.nodes(path):
        if isinstance(node, ast.Import):
            yield from ((name.name, "", node.lineno) for name in node.names if name.name.partition(".")[0] == "portico")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "portico":
            yield from ((node.module, name.name, node.lineno) for name in node.names)


def is_public(module: str, name: str) -> bool:
    return f"{module}.{name}" in DOORS or (
        module in DOORS and (not name or name in {"__version__", *import_module(module).__all__})
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_names_are_imported(path: Path) -> None:
    within = "portico_services" if path.is_relative_to(SERVICES) else None
    homes = {f"portico_services.{name}" for name in OFFERED}
    private = [
        f"{path.name}:{line} imports {name or 'all'} of {module}"
        for module, name, line in imported(path)
        if not is_public(module, name)
        and not {module, f"{module}.{name}"} & ALLOWED.keys()
        and not (within and module.startswith(within))
        and not (module in homes and name in import_module(module).__all__)
    ]
    assert not private, "not public; portico.extend is where it would be"


def test_every_allowed_import_is_used() -> None:
    used = {item for path in FILES for module, name, _ in imported(path) for item in (module, f"{module}.{name}")}
    assert used >= ALLOWED.keys()


@pytest.mark.parametrize("door", [*DOORS, *(f"portico_services.{name}" for name in OFFERED)])
def test_every_name_is_there_and_shown(door: str) -> None:
    module = import_module(door)
    assert module.__all__
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


# Modules whose names are written once, in a stub that type checkers and `attach_stub` read.
STUBBED = [door for door in DOORS if Path(str(import_module(door).__file__)).with_suffix(".pyi").exists()]


def stub_imports(door: str) -> dict[str, str]:
    """Return the names that type checkers see in a module, and where each is defined."""
    tree = ast.parse(Path(str(import_module(door).__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {str(alias.asname): str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("door", STUBBED)
def test_exported_names_match_the_stub(door: str) -> None:
    module = import_module(door)
    homes = stub_imports(door)
    # Names that need another package are left out of `import *`.
    assert list(module.__all__) == sorted(name for name, home in homes.items() if "login_providers" not in home)
    for name, home in homes.items():
        assert getattr(module, name) is getattr(import_module(home), name)


def test_small_public_modules_stay_small() -> None:
    assert {"portico", "portico.extend", "portico.types", "portico.errors", "portico.auth"} <= {*STUBBED}
    assert len(import_module("portico").__all__) <= 30
    assert len(import_module("portico.extend").__all__) <= 81


def test_portico_has_no_names_of_other_projects() -> None:
    homes = {*stub_imports("portico").values()}
    assert not [home for home in homes if "compat" in home or not home.startswith("portico.")]


def test_every_name_is_in_the_guide() -> None:
    page = (ROOT / "docs" / "reference" / "extension-api.md").read_text()
    table = "".join(line for line in page.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`(\w+)`", table)) == set(import_module("portico.extend").__all__)


def test_public_module_loads_only_the_requested_names() -> None:
    seen = (
        "import sys, portico.extend\n"
        "print(sorted(name for name in sys.modules if name.startswith('portico')))\n"
        "from portico.extend import RateLimit\n"
        "print('asyncio' in sys.modules, 'portico.rpc.rate_limit' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['portico', 'portico._lazy', 'portico.extend']", "False True"]
