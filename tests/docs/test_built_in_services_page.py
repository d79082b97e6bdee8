"""The sessions on the page of the built-in services are run as printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico.protocol.errors import UsageError
from portico_services.livepython import LivePython
from support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "use-the-built-in-services.md").read_text()
SESSIONS = re.findall(r"<!-- session(: \w+)? -->\n```console\n(.*?)^```", PAGE, re.S | re.M)
SAMPLE = re.compile(r"^\$ (.+)\n((?:[^$].*\n|\n)*)", re.M)


# What is another one each time.
OTHERS = {
    r"task_\w+": "TASK",
    r"\b[0-9a-f]{12,16}\b": "ID",
    r"\d{4}-\d\d-\d\d \d\d:\d\d": "WHEN",
    r"([○◐]) \w+": r"\1 ID",
}


def alike(text: str) -> str:
    """A terminal breaks long lines where it likes."""
    text = " ".join(text.split())
    for sample, name in OTHERS.items():
        text = re.sub(sample, name, text)
    return text


def pattern(printed: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in alike(printed).split("…"))


@pytest.mark.parametrize("needs, session", SESSIONS, ids=[SAMPLE.search(one)[1][:40] for _, one in SESSIONS])  # type: ignore[index]
def test_session_matches_the_printed_output(
    terminal: Callable[..., Any], tmp_path: Path, needs: str, session: str
) -> None:
    if needs:
        _can_live()
    match = ""
    for line, printed in SAMPLE.findall(session):
        # An id that was printed before is what the reader would type.
        typed = re.sub(r"task_\w+", match, line)
        seen = terminal(program=["bash", "-c", typed], PORTICO_DATA=str(tmp_path / "data"))
        seen.end()
        assert re.fullmatch(pattern(printed), alike(seen.left), re.S), seen.left
        match = match or (re.search(r"task_\w+", seen.left) or [""])[0]


def test_every_service_has_a_session() -> None:
    assert len(SESSIONS) == 5


def _can_live() -> None:
    try:
        LivePython()
    except UsageError as why:
        pytest.skip(f"live Python cannot be served here: {why}")
