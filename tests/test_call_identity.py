"""A Call without principal and address belongs to the local user, who has all permissions.

So whoever makes a Call for somebody else passes on both: the principal alone would turn an anonymous client of the
network into the local user.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from support import sources
from support.paths import ROOT


def calls_without_address(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines of Calls, and of functions that make one, that name a principal and no address."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        names = {keyword.arg for keyword in node.keywords}
        if function in ("Call", "HandlerTarget") and "principal" in names and "address" not in names:
            yield node.lineno


@pytest.mark.parametrize(
    "source, lines",
    [
        ("Call(method='x', principal=p)", [1]),
        ("Call(method='x', principal=p, address=a)", []),
        ("Call(method='x', **ctx.caller_fields)", []),
        ("invoker.HandlerTarget(h, principal=p)", [1]),
        ("Call(method='x')", []),
    ],
)
def test_check_finds_a_forgotten_address(source: str, lines: list[int]) -> None:
    assert list(calls_without_address(ast.walk(ast.parse(source)))) == lines


def test_calls_for_a_principal_have_its_address() -> None:
    results = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources.MODULES
        for line in calls_without_address(sources.nodes(path))
    ]
    assert len(sources.MODULES) > 400
    assert not results, f"pass the address, too, for example by `caller_fields`: {results}"
