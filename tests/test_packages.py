"""A package imports only its declared dependencies, also by name at run time."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import sources
from support.paths import ROOT

PACKAGES = ROOT / "packages"
# By the name that is imported.
FOLDERS = {folder.name.replace("-", "_"): folder for folder in sorted(PACKAGES.iterdir()) if folder.is_dir()}
# A dotted name of a module, with or without an object in it.
_MODULE = re.compile(r"(\w+)(?:\.\w+)+(?::\w+)?|(\w+):\w+", re.ASCII)


def dependencies_of(package: str) -> set[str]:
    """Return the packages of this repository that a package depends on without an extra, and the package itself."""
    project = tomllib.loads((FOLDERS[package] / "pyproject.toml").read_text())["project"]
    names = (re.split(r"[\s\[=<>~!;]", item, maxsplit=1)[0] for item in project.get("dependencies", ()))
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


def test_four_packages_depend_on_the_sdk_only() -> None:
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
        ("x = 'portico_gateway_name_conflicts'", None),
        ("'''The text names portico_gateway.audit.'''", None),
    ],
)
def test_imports_are_found_in_statements_and_in_strings(tmp_path: Path, source: str, module: str | None) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(imported_modules(path)) == ([] if module is None else [module])


def test_console_works_without_the_gateway_and_the_services() -> None:
    program = """\
import asyncio, sys
sys.modules["portico_gateway"] = sys.modules["portico_services"] = None
from portico.client.client import Client
from portico.server.server import Server
from portico_console import Console

async def main():
    console = Console(Server("alone"), mode="console", can_open_targets=True)
    async with console.inspected_server.lifespan(), console.lifespan(), Client(console.server) as client:
        assert (await client.call_tool("list_items", {"target": "self", "kind": "tools"})).structured["items"] == []
        names = {tool.name for tool in await client.list_tools()}
        assert "call_tool" in names and not names & {"audit", "explain", "upstreams", "lint"}, names

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


_REQUIREMENT = re.compile(r"(portico[\w-]*)(?:\[([\w,-]+)\])?")


def extras_reached(package: str, extra: str) -> set[tuple[str, str]]:
    """Return the packages of this repository that an extra installs, each with its extras ("" is the package)."""
    reached: set[tuple[str, str]] = set()
    waiting = [(package, extra)]
    while waiting:
        name, expected = here = waiting.pop()
        if here in reached:
            continue
        reached.add(here)
        project = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]
        for requirement in project["optional-dependencies"][expected] if expected else project["dependencies"]:
            if match := _REQUIREMENT.match(requirement):
                waiting += [(match[1].replace("-", "_"), extra) for extra in {"", *(match[2] or "").split(",")}]
    return reached


def test_all_is_every_extra_of_every_package() -> None:
    reached = extras_reached("portico", "all")
    # `portico[gateway]` and its like are the package itself.
    reached |= {("portico", name.removeprefix("portico_")) for name, extra in reached if not extra}
    for package, folder in FOLDERS.items():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert {(package, extra) for extra in project.get("optional-dependencies", ())} <= reached


def test_make_serve_installs_no_development_dependencies() -> None:
    root = PACKAGES.parent
    # With every target out of date, as in a fresh clone.
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "serve"], cwd=root, capture_output=True, text=True, check=True
    )
    assert "requirements/serve.txt" in done.stdout and "requirements/dev.txt" not in done.stdout
    served = (root / "requirements" / "serve.txt").read_text()
    assert not re.search(r"^-r |\b(all|dev|testing|port)\b[],]", served, re.MULTILINE)
