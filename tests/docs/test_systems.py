"""docs/reference/systems.md: each feature names an existing test."""

from __future__ import annotations

import ast
import re

from support.paths import ROOT

ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| `((?:packages/[\w-]+/)?tests/[\w/]+\.py)::(\w+)` \|$")


def rows() -> list[tuple[str, str, str, str]]:
    page = (ROOT / "docs" / "reference" / "systems.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| [A-Z]\d", line)]
    results = [ROW.match(line) for line in lines]
    assert all(results), [line for line, row in zip(lines, results, strict=True) if row is None]
    return [(row[1], row[2], row[3], row[4]) for row in results if row is not None]


def test_every_row_names_a_test_that_is_present() -> None:
    tests: dict[str, set[str]] = {}
    for line, _, path, name in rows():
        if path not in tests:
            nodes = ast.walk(ast.parse((ROOT / path).read_text()))
            tests[path] = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in tests[path], f"{line}: there is no {name} in {path}"


def test_every_line_of_the_five_documents_is_listed_once() -> None:
    counts = {"C": 68, "B": 41, "P": 18, "S": 29, "Y": 34}
    expected = [f"{system}{number}" for system, count in counts.items() for number in range(1, count + 1)]
    assert len(expected) == 190
    assert sorted(line for line, *_ in rows()) == sorted(expected)
