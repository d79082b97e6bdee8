"""docs/reference/command-line.md: its samples are run, and its tables are complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from portico.cli import completion_cache, specs
from portico.cli.call import INTERACTIVE_TIMEOUT_SECONDS
from portico.cli.commands import all_commands
from support.paths import ROOT

PAGES = ("reference/command-line.md", "how-to/add-a-server-to-a-client.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text() for name in PAGES)
SAMPLES = [
    sample
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for sample in re.findall(r"^\$ (.+)\n((?:[^$].*\n|\n)*)", block, re.MULTILINE)
]


def flowing(text: str) -> str:
    """A terminal breaks long lines where it likes."""
    return " ".join(text.split())


@pytest.mark.parametrize("line, printed", SAMPLES, ids=[line[:60] for line, _ in SAMPLES])
def test_sample_matches_the_printed_output(terminal: Callable[..., Any], line: str, printed: str) -> None:
    seen = terminal(program=["bash", "-c", line])
    seen.end()
    shown_items = [row.rstrip() for row in seen.left.splitlines()]
    assert shown_items == printed.splitlines() or flowing(seen.left) == flowing(printed)


def test_samples_exist() -> None:
    assert len(SAMPLES) >= 9


def test_every_option_is_explained() -> None:
    asking = [specs.parser_for(name) for name in ("list", "call", "read", "prompt")]
    for name in {name for form in asking for flag in form.flags for name in flag.option_strings}:
        assert re.search(rf"`{name}\b", PAGE), name


def test_every_command_is_explained() -> None:
    for name in all_commands():
        assert f"`portico {name}" in PAGE


def test_documented_numbers_match_the_code() -> None:
    assert f"{completion_cache.MAX_TARGETS} targets at most" in PAGE
    assert "a call may take an hour" in PAGE
    assert INTERACTIVE_TIMEOUT_SECONDS
