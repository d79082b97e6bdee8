"""The pytest plugin, in a separate project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS

SERVER = '''
from portico import Context, Server

server = Server("shop", version="1.0")


@server.tool
async def sell(what: str, ctx: Context) -> str:
    """Sell something, if they are sure."""
    answer = await ctx.elicit(f"Sell {what}?", bool)
    return f"{what}: {answer.action}"


@server.tool
def price(what: str) -> int:
    """What it costs."""
    return len(what)
'''
TESTS = """
import pytest

QUESTIONS = ["2025-06-18", "2025-11-25", "2026-07-28"]


@pytest.fixture
def portico_client_options():
    return {"elicitation_handler": lambda question: {"value": True}}


@pytest.mark.asyncio
@pytest.mark.protocol_version
async def test_price(portico_client, portico_protocol_version):
    assert portico_client.protocol_version == portico_protocol_version
    assert (await portico_client.call_tool("price", {"what": "tea"})).text == "3"


@pytest.mark.asyncio
@pytest.mark.protocol_version(*QUESTIONS)
async def test_sell(portico_client, portico_transcript):
    assert (await portico_client.call_tool("sell", {"what": "tea"})).text == "tea: accept"
    assert "tools/call" in portico_transcript.methods
    assert portico_transcript.params_of("tools/call")[0]["arguments"] == {"what": "tea"}


def test_sync(portico_sync_client, portico_transcript, tmp_path):
    assert portico_sync_client.call_tool("price", {"what": "tea"}).data == 3
    portico_transcript.save(str(tmp_path / "tape.jsonl"))
    assert (tmp_path / "tape.jsonl").read_text().count("tools/call") == 1


@pytest.mark.recording("price.jsonl")
def test_recorded(portico_sync_client, portico_server):
    assert portico_sync_client.call_tool("price", {"what": "coffee"}).data == 6
    assert not portico_server.unmatched_requests


def test_contract(portico_contract):
    portico_contract.check_sync()


@pytest.mark.asyncio
async def test_contract_on_a_loop(portico_contract):
    await portico_contract.check()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "shop.py").write_text(SERVER)
    (folder / "pytest.ini").write_text(
        "[pytest]\nportico_server = shop.py:server\naddopts = --strict-markers -p no:cacheprovider\n"
        "filterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    (folder / "tests").mkdir()
    (folder / "tests" / "test_shop.py").write_text(TESTS)
    portico = [sys.executable, "-m", "portico"]
    record = [*portico, "record", "shop.py", "-o", "tests/price.jsonl"]
    subprocess.run(
        [*portico, "call", "price", "what=coffee", "--", *record], cwd=folder, check=True, capture_output=True
    )
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words], cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_project_uses_everything(project: Path) -> None:
    missing = run(project)
    assert len(re.findall("snapshot .* not found: run pytest with --update-snapshots", missing.stdout)) >= 2
    written = run(project, "--update-snapshots")
    assert written.returncode == 0, written.stdout
    assert f"{len(SUPPORTED_PROTOCOL_VERSIONS) + 3 + 4} passed" in written.stdout
    (project / "shop.py").write_text(SERVER.replace("What it costs.", "What it may cost."))
    changed = run(project, "-k", "contract")
    assert "2 failed" in changed.stdout
    assert '+      "description": "What it may cost.",' in changed.stdout


def test_mistakes_are_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n@pytest.mark.protocol_version('2020-01-01')\ndef test_one(portico_sync_client): ...\n"
    )
    assert "unknown protocol version '2020-01-01' (expected one of 2024-11-05" in run(tmp_path).stdout
    (tmp_path / "test_one.py").write_text("def test_one(portico_sync_client): ...\n")
    output = run(tmp_path).stdout
    assert "no server is configured: set portico_server" in output
    assert "Traceback" not in output


def test_plugin_is_not_imported_by_unrelated_projects(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import sys\n\nimport pytest\n\n\n@pytest.fixture\ndef client():\n    return 'mine'\n\n\n"
        "def test_two(client):\n"
        "    assert client == 'mine'\n"
        "    loaded = {name for name in sys.modules if name.startswith('portico')}\n"
        "    assert loaded == {'portico', 'portico._lazy', 'portico.testing', 'portico.testing.pytest_plugin'}\n"
        "    assert 'msgspec' not in sys.modules\n"
    )
    ran = run(tmp_path)
    assert "1 passed" in ran.stdout, ran.stdout
