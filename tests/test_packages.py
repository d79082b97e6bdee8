"""A package imports only the packages that its pyproject.toml depends on, not even late by the name of a module."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sources

PACKAGES = Path(__file__).parent.parent / "packages"
# By the name that is imported.
FOLDERS = {folder.name.replace("-", "_"): folder for folder in sorted(PACKAGES.iterdir()) if folder.is_dir()}
# A dotted name of a module, with or without an object in it.
_MODULE = re.compile(r"(\w+)(?:\.\w+)+(?::\w+)?|(\w+):\w+", re.ASCII)


def dependencies_of(package: str) -> set[str]:
    """Return the packages of this repository that a package depends on without an extra, and the package itself."""
    project = tomllib.loads((FOLDERS[package] / "pyproject.toml").read_text())["project"]
    names = (re.split(r"[\s\[=<>~!;]", one, maxsplit=1)[0] for one in project.get("dependencies", ()))
    return {package, *(name.replace("-", "_") for name in names)} & {*FOLDERS}


def imported_modules(path: Path) -> Iterator[str]:
    """Return the modules that a file imports, or names in a string so that they can be imported later."""
    for node in sources.nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            yield node.value


def violations_of(package: str) -> Iterator[tuple[str, str]]:
    """Return the files of a package with forbidden imports, and the packages that they import."""
    forbidden = FOLDERS.keys() - dependencies_of(package)
    source = FOLDERS[package] / "src"
    for path in sorted(source.rglob("*.py")):
        for module in imported_modules(path):
            name = re.split(r"[.:]", module, maxsplit=1)[0]
            if name in forbidden:
                yield path.relative_to(source).as_posix(), name


def test_packages_import_only_their_dependencies() -> None:
    violations = {violation for package in FOLDERS for violation in violations_of(package)}
    assert not violations, "imports of packages that pyproject.toml does not depend on"


def test_the_four_packages_depend_on_the_sdk_only() -> None:
    assert dependencies_of("portico") == {"portico"}
    others = {"portico_gateway", "portico_services", "portico_console"}
    assert FOLDERS.keys() == {"portico", *others}
    assert all(dependencies_of(name) == {name, "portico"} for name in others)


@pytest.mark.parametrize(
    "source, module",
    [
        ("import portico_gateway", "portico_gateway"),
        ("def f():\n    from portico_gateway.audit import hook", "portico_gateway.audit"),
        ("x = LazyModule('portico_gateway.audit.hook')", "portico_gateway.audit.hook"),
        ("x = 'portico_gateway.cli:COMMANDS'", "portico_gateway.cli:COMMANDS"),
        ("x = 'portico_gateway_clashes'", None),
        ("'''The text names portico_gateway.audit.'''", None),
    ],
)
def test_imports_are_found_in_statements_and_in_strings(tmp_path: Path, source: str, module: str | None) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(imported_modules(path)) == ([] if module is None else [module])


def test_the_console_works_without_the_gateway_and_the_services() -> None:
    program = """\
import asyncio, sys
sys.modules["portico_gateway"] = sys.modules["portico_services"] = None
from portico.client.client import Client
from portico.server.server import Server
from portico_console import Console

async def main():
    console = Console(Server("alone"), mode="console", opens=True)
    async with console.subject.lifespan(), console.lifespan(), Client(console.server) as client:
        assert (await client.call_tool("list_items", {"target": "self", "kind": "tools"})).structured["items"] == []
        names = {tool.name for tool in await client.list_tools()}
        assert "call_tool" in names and not names & {"audit", "explain", "upstreams", "lint"}, names

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
