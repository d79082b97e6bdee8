"""Every requirement has a test, and every test of the specification has a requirement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from spec.requirements import REQUIREMENTS
from support.paths import ROOT, find_test_files

HERE = Path(__file__).parent
FILES = find_test_files()
OURS = sorted({*HERE.glob("test_*.py")} - {Path(__file__)})


def named_in(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Every test in a file, and the requirements it names."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = [one for one in node.decorator_list if isinstance(one, ast.Call)]
            named = [one.args for one in marks if ast.unparse(one.func) == "pytest.mark.requirement"]
            yield node.name, {ast.literal_eval(argument) for arguments in named for argument in arguments}


def test_every_requirement_has_a_test() -> None:
    named = {one for path in FILES for _, ids in named_in(path) for one in ids}
    assert not REQUIREMENTS.keys() - named


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_requirements_named_by_tests_exist(path: Path) -> None:
    for name, ids in named_in(path):
        assert not ids - REQUIREMENTS.keys(), name


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
