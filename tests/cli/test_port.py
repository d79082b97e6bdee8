"""`portico port`: a project for FastMCP or the official SDK becomes one for Portico, and no line of it is run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from portico.porting.rewriting import rewrite
from portico.porting.words import everything

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def ported(source: str) -> str:
    return rewrite(source.encode()).source.decode()


def left(source: str) -> list[tuple[int, str]]:
    return [(one.line, one.what) for one in rewrite(source.encode()).findings]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from fastmcp import FastMCP\nmcp = FastMCP('a')\n", "from portico import Server\nmcp = Server('a')\n"),
        ("from fastmcp import FastMCP as F\nmcp = F('a')\n", "from portico import Server as F\nmcp = F('a')\n"),
        ("import fastmcp\nmcp = fastmcp.FastMCP('a')\n", "import portico\nmcp = portico.Server('a')\n"),
        ("import fastmcp as f\nmcp = f.FastMCP('a')\n", "import portico\nmcp = portico.Server('a')\n"),
        ("from fastmcp import *\nmcp = FastMCP('a')\n", "from portico import Server\nmcp = Server('a')\n"),
        (
            "from mcp.server.fastmcp import Context, FastMCP\n\n\ndef f(c: 'Context', s: 'FastMCP'): ...\n",
            "from portico import Context, Server\n\n\ndef f(c: 'Context', s: 'Server'): ...\n",
        ),
        (
            "from mcp.server.mcpserver.prompts import base\nx = base.UserMessage('hi')\n",
            "import portico\nx = portico.UserMessage('hi')\n",
        ),
        (
            "from mcp.types import TextContent\nx = TextContent(type='text', text='hi')  # one\n",
            "from portico.extend import TextContent\nx = TextContent(text='hi')  # one\n",
        ),
        (
            "from mcp import types\nx = types.ImageContent(type='image', data='', mimeType='image/png')\n",
            "import portico.extend\nx = portico.extend.ImageContent(data='', mime_type='image/png')\n",
        ),
        (
            "from mcp.types import CallToolResult\nx = CallToolResult(content=[])\n",
            "from portico.extend import CallToolResult\nx = CallToolResult(content=[], is_error=False)\n",
        ),
        (
            "def f():\n    from fastmcp.exceptions import ToolError\n    raise ToolError('x')\n",
            "def f():\n    from portico import ToolError\n    raise ToolError('x')\n",
        ),
        (
            "from fastmcp import FastMCP\n\n\nclass Server: ...\n\n\nmcp = FastMCP(\n    'a',\n    debug=True,\n)\n",
            "from portico import Server as FastMCP\n\n\nclass Server: ...\n\n\nmcp = FastMCP(\n    'a',\n)\n",
        ),
    ],
)
def test_names_are_followed_to_what_they_are_here(before: str, after: str) -> None:
    assert ported(before) == after
    assert ported(after) == after
    assert left(before) == []


def test_every_counterpart_is_there() -> None:
    for one in everything():
        assert getattr(import_module(one.module), one.name) is not None


def test_comments_spacing_and_line_ends_stay() -> None:
    head = b"# -*- coding: latin-1 -*-\r\n# \xe9t\xe9\r\n"
    before = head + b"from fastmcp import FastMCP  # the server\r\n\r\nx  =  [ FastMCP ]\r\n"
    after = rewrite(before).source
    assert after == before.replace(b"fastmcp", b"portico").replace(b"FastMCP", b"Server")


def test_a_name_of_the_file_s_own_is_left_alone() -> None:
    source = "from fastmcp import FastMCP\n\n\ndef f(FastMCP):\n    return FastMCP\n\n\nx = dict(FastMCP=1)\n"
    assert ported(source) == source.replace("from fastmcp import FastMCP", "from portico import Server")


def test_what_has_no_counterpart_stays_and_is_listed_with_its_line() -> None:
    source = "from mcp import Client, ClientSession\nfrom mcp.server.sse import SseServerTransport\n"
    rewritten = ported(source)
    assert "from mcp import ClientSession" in rewritten
    assert "from mcp.server.sse import SseServerTransport" in rewritten
    assert left(source) == [(1, "mcp.ClientSession"), (2, "mcp.server.sse.SseServerTransport")]


def test_the_low_level_server_has_a_name_of_its_own() -> None:
    source = "import mcp.server.stdio\nfrom mcp.server.lowlevel import Server\n\ns = Server('x')\n"
    used = source + "r = mcp.server.stdio.stdio_server()\n"
    assert ported(used).splitlines()[-2:] == ["s = LowLevelServer('x')", "r = portico.extend.stdio_server()"]
    assert left(used) == []


def test_a_class_without_counterpart_is_listed_once() -> None:
    source = "from fastmcp.server.providers import Provider\n\nx = [Provider.one, Provider.two]\n"
    assert ported(source) == source
    assert left(source) == [(1, "fastmcp.server.providers.Provider")]


def test_what_a_server_was_told_about_its_port_stays() -> None:
    source = "from mcp.server.fastmcp import FastMCP\n\nmcp = FastMCP('a', port=9000, debug=True)\n"
    assert "Server('a', port=9000)" in ported(source)
    assert left(source) == []


def test_other_files_are_not_touched() -> None:
    for source in ("x = 1\n", "import mcpx\n", "from .mcp import types\n", "text = 'from fastmcp import FastMCP'\n"):
        assert ported(source) == source


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "theirs.py").write_text("from fastmcp import FastMCP\n")
    (tmp_path / "server.py").write_text(
        "from fastmcp import FastMCP\n\nmcp = FastMCP('moved')\n\n\n@mcp.tool\ndef add(a: int, b: int) -> int:\n"
        "    return a + b\n\n\nopen('was-run', 'w')\n"
    )
    (tmp_path / "broken.py").write_text("import fastmcp\ndef (:\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = [\n    "fastmcp>=2",\n]\n')
    return tmp_path


def test_a_diff_comes_first_and_write_changes_the_files(project: Path, portico: Run) -> None:
    shown = portico("port", str(project))
    assert shown.returncode == 1, "something is left to do"
    assert "+from portico import Server\n" in shown.stdout
    assert "server.py" in shown.stdout
    assert f"{project}/broken.py:2: " in shown.stderr
    assert f"{project}/pyproject.toml:3: fastmcp: put portico in its place" in shown.stderr
    assert "FastMCP" in (project / "server.py").read_text(), "nothing was written"
    written = portico("port", str(project), "--write")
    assert written.returncode == 1
    assert "Server('moved')" in (project / "server.py").read_text()
    assert "fastmcp" in (project / ".venv" / "theirs.py").read_text()
    assert not (project / "was-run").exists()
    (project / "broken.py").unlink()
    (project / "pyproject.toml").unlink()
    again = portico("port", str(project), "--write")
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing here uses FastMCP" in again.stderr


def test_mistakes_on_the_line(portico: Run) -> None:
    missing = portico("port", "no-such-folder")
    assert (missing.returncode, missing.stderr) == (2, "portico: there is no no-such-folder\n")


def test_without_libcst_it_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['libcst'] = None; from portico.cli.main import main; main(['port', '.'])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "portico: `portico port` needs libcst; install portico[port]\n")
