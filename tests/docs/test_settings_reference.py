"""The reference of settings files covers every table and key, and its examples are accepted by the programs."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico.auth.verifiers.token_file import TokenFile
from portico.secret_references import SecretResolver
from portico.server.policy.settings import ACCESS_SECTIONS, read_file
from portico.settings_file import convert
from portico_gateway.gateway.settings import load_settings
from portico_gateway.hub import settings as hub_settings
from portico_services import assembly
from portico_services.settings import load_settings_file
from support import sources
from support.paths import ROOT
from support.scripts import load_script

generator = load_script(ROOT / "docs" / "generate_settings.py")
SECTIONS = [section for page in generator.PAGES.values() for section in page.sections]
# Functions that check a table against the class in one of their arguments.
READERS = {"convert", "check_table", "parse_settings_file", "merge_tables", "_parse_table"}
# Classes whose keys belong to a section of another class.
PARTS = {
    "ServerSettings": "SettingsFile without portico-services",
    "TokenFile": "the list of [[token]]",
    "_OpenApiLocation": "the keys of [upstream.NAME] for an API",
}
LISTED = {source.partition(":")[2] for section in SECTIONS for source in section.sources}


@pytest.mark.parametrize("name", generator.PAGES)
def test_page_is_current(name: str) -> None:
    written = (generator.REFERENCE / name).read_text(encoding="utf-8")
    assert written == generator.render(name), "run: python docs/generate_settings.py"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.table)
def test_every_key_has_a_description_and_a_type(section: Any) -> None:
    assert generator.keys(section)
    for key in generator.keys(section):
        assert key.description, f"{section.table} {key.name}: write a comment above the field"
        assert "value" not in generator.type_cell(section, key), f"{section.table} {key.name}: {key.hint}"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.table)
def test_exceptions_of_a_section_name_its_keys(section: Any) -> None:
    names = {key.name for key in generator.keys(section)}
    assert {*section.defaults, *section.types, *section.links} <= names


def table_classes() -> Iterator[tuple[str, str]]:
    """Yield the classes that tables of settings files are checked against, with the file."""
    for package in sources.PACKAGES.values():
        for path in package.rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if ast.unparse(call.func).removeprefix("settings_file.") in READERS:
                    for argument in call.args:
                        if isinstance(argument, ast.Name) and argument.id.lstrip("_")[:1].isupper():
                            yield argument.id, path.name


def test_every_table_is_in_the_reference() -> None:
    missing = {(name, file) for name, file in table_classes() if name not in LISTED | PARTS.keys()}
    assert not missing, "add a Section to docs/generate_settings.py"


def test_every_struct_of_a_key_is_in_the_reference() -> None:
    for section in SECTIONS:
        for key in generator.keys(section):
            for name in re.findall(r"\b[A-Z]\w+", str(key.hint) if key.hint is not None else ""):
                if name.endswith(("Settings", "Section", "Options")):
                    assert name in LISTED, f"{section.table} {key.name}: add a Section for {name}"


def test_every_service_and_section_is_in_the_reference() -> None:
    tables = {section.table.strip("[]") for section in SECTIONS}
    assert {f"services.{name}" for name in assembly.SERVICE_CLASSES} <= tables
    assert set(ACCESS_SECTIONS) <= tables


EXAMPLES = [
    (name, at, text)
    for name in generator.PAGES
    for at, text in enumerate(
        re.findall(r"^```toml\n(.*?)^```", (generator.REFERENCE / name).read_text(), re.DOTALL | re.MULTILINE), 1
    )
]


@pytest.mark.parametrize(("name", "at", "text"), EXAMPLES, ids=[f"{name} {at}" for name, at, _ in EXAMPLES])
def test_example_is_accepted(name: str, at: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in re.findall(r"\$\{env:(\w+)\}", text):
        monkeypatch.setenv(variable, "secret")
    file = tmp_path / "settings.toml"
    file.write_text(text)
    tables = tomllib.loads(text)
    if "token" in tables:
        assert convert(tables, TokenFile).token
    elif {"gateway", "upstream", "view"} & tables.keys():
        load_settings(file, SecretResolver())
    elif name == "settings-gateway.md":
        file.rename(tmp_path / hub_settings.SETTINGS_NAME)
        assert hub_settings.load_settings(str(tmp_path))
    else:
        load_settings_file(file, assembly.SERVICE_CLASSES)
        read_file_if_needed(file, tables)
        for service, options in tables.get("services", {}).items():
            check_service(service, options)
        if "proxy" in tables.get("auth", {}):
            from portico_gateway.authserver.settings import parse_proxy_settings

            parse_proxy_settings(tables["auth"]["proxy"])


def read_file_if_needed(file: Path, tables: dict[str, Any]) -> None:
    """Read the tables about access, if the file has any."""
    if set(ACCESS_SECTIONS) & tables.keys():
        assert read_file(file)


def check_service(service: str, options: dict[str, Any]) -> None:
    """Create the service, or check its keys where its sandbox is not available."""
    kind = generator.load(next(s.sources[0] for s in SECTIONS if s.table == f"[services.{service}]"))
    if service == "live":
        inspect.signature(kind).bind(**options)
    else:
        kind(**options)


def test_a_key_without_a_comment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example_settings.py").write_text(
        "from msgspec import Struct\n\nclass ExampleSettings(Struct):\n"
        "    # Seconds between two attempts;\n    # 0: none.\n    interval: float = 1.0\n    other: int = 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = {key.name: key for key in generator.keys_of(generator.load("example_settings:ExampleSettings"))}
    assert keys["interval"].description == "Seconds between two attempts; 0: none."
    assert keys["other"].description == ""


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (str | tuple[str, ...] | None, "string or list of strings"),
        (float | str, "duration"),
        (dict[str, str | list[str]], "table of strings or lists of strings"),
        (tuple[msgspec.Struct, ...], "list of tables"),
        (bool, "boolean"),
    ],
)
def test_types_are_those_of_toml(hint: Any, text: str) -> None:
    assert generator.toml_type(hint) == text
