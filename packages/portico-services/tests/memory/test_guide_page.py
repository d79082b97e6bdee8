"""The sessions of the guide are executed, and its tables compared with the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portico import Client, Server
from portico_services.memory.service import TOOLS, Memory
from support.paths import ROOT

PAGES = ("memory", "memory-search-and-sync", "memory-commands")
PAGE = "\n".join((ROOT / "docs" / "reference" / f"{name}.md").read_text() for name in PAGES)
SESSIONS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# What differs from run to run.
FLEETING = (
    (re.compile(r"\b[0-9a-f]{12,16}\b"), "0"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?Z)?"), "now"),
    # With a model there are vectors too.
    (re.compile(r'"mode": "\w+"'), '"mode": "text"'),
    (re.compile(r"\s+"), " "),
)


def steady(text: str) -> str:
    for pattern, instead in FLEETING:
        text = pattern.sub(instead, text)
    return text.strip()


def steps(session: str) -> Iterator[tuple[list[str], str]]:
    """Each command that is typed, and what comes back."""
    for step in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        typed, _, message = step.partition("\n")
        yield shlex.split(typed), message


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.splitlines()[0][:40])
def test_guide_session_matches_the_printed_output(session: str, tmp_path: Path) -> None:
    surroundings = {**os.environ, "PORTICO_DATA": str(tmp_path), "COLUMNS": "160"}
    surroundings.pop("PORTICO_STORE", None)
    for words, expected in steps(session):
        # People are at a terminal; here is none.
        command = words[1:] if words[0] == "python" else ["-m", *words, "--format", "table"]
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert steady(done.stdout + done.stderr) == steady(expected), words


def under(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


async def test_every_tool_resource_and_prompt_is_in_the_guide() -> None:
    tools = set(re.findall(r"`(memory_\w+)`", under("Tools")))
    assert tools >= {f"memory_{item.name}" for item in TOOLS}
    server = Server("remembering", version="1")
    server.add(Memory(project="here/project"))
    async with server.lifespan(), Client(server) as client:
        listed = {item.uri for item in await client.list_resources()}
        listed |= {item.uri_template for item in await client.list_resource_templates()}
        prompts = {item.name for item in await client.list_prompts()}
    part = under("Resources and prompts")
    assert set(re.findall(r"`(memory://[^`]+)`", part)) == listed
    assert set(re.findall(r"`(\w+)`", part.partition("Prompts:")[2])) >= prompts
