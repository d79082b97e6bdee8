"""Every requirement has a test, and every test of the specification has a requirement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from spec.requirements import REQUIREMENTS
from support.paths import find_test_files

HERE = Path(__file__).parent
FILES = find_test_files()
OURS = sorted({*HERE.glob("test_*.py")} - {Path(__file__)})


@cache
def named_in(path: Path) -> list[tuple[str, set[str]]]:
    """Every test in a file, and the requirements it names. Empty for files that name none, except those beside this."""
    text = path.read_text()
    return list(_named_in(ast.parse(text))) if path in OURS or "mark.requirement(" in text else []


def _named_in(module: ast.Module) -> Iterator[tuple[str, set[str]]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
            named = [mark.args for mark in marks if ast.unparse(mark.func) == "pytest.mark.requirement"]
            yield node.name, {ast.literal_eval(argument) for arguments in named for argument in arguments}


def test_every_requirement_has_a_test() -> None:
    named = {item for path in FILES for _, ids in named_in(path) for item in ids}
    assert not REQUIREMENTS.keys() - named


def test_requirements_named_by_tests_exist() -> None:
    unknown = {(path.name, name): ids - REQUIREMENTS.keys() for path in FILES for name, ids in named_in(path)}
    assert not {test: ids for test, ids in unknown.items() if ids}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_every_test_of_the_specification_names_a_requirement(path: Path) -> None:
    assert not [name for name, ids in named_in(path) if not ids]


@pytest.mark.parametrize("id", REQUIREMENTS)
def test_requirement_has_versions_page_section_and_sentence(id: str) -> None:
    since, until, page, section, sentence = REQUIREMENTS[id]
    assert SUPPORTED_PROTOCOL_VERSIONS.index(since) <= SUPPORTED_PROTOCOL_VERSIONS.index(until)
    assert page.partition("/")[0] in ("basic", "server", "client")
    assert section
    assert sentence[0].isupper() or sentence[0] == "`"
    assert sentence.endswith(".")
