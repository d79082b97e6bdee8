"""`portico port` rewrites FastMCP and MCP SDK projects without running them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst")

from portico import Server
from portico.compat.port import mappings
from portico.compat.port.codemod import rewrite
from portico.compat.port.mappings import all_replacements

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def ported(source: str) -> str:
    return rewrite(source.encode()).source.decode()


def left(source: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.what) for finding in rewrite(source.encode()).findings]


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
            "import portico.compat.mcp_sdk\nx = portico.compat.mcp_sdk.UserMessage('hi')\n",
        ),
        (
            "from mcp.types import TextContent\nx = TextContent(type='text', text='hi')  # one\n",
            "from portico.types import TextContent\nx = TextContent(text='hi')  # one\n",
        ),
        (
            "from mcp import types\nx = types.ImageContent(type='image', data='', mimeType='image/png')\n",
            "import portico.types\nx = portico.types.ImageContent(data='', mime_type='image/png')\n",
        ),
        (
            "from mcp.types import CallToolResult\nx = CallToolResult(content=[])\n",
            "from portico.types import CallToolResult\nx = CallToolResult(content=[], is_error=False)\n",
        ),
        (
            "def f():\n    from fastmcp.exceptions import ToolError\n    raise ToolError('x')\n",
            "def f():\n    from portico import ToolError\n    raise ToolError('x')\n",
        ),
        (
            "from fastmcp import FastMCP\n\n\nclass Server: ...\n\n\nmcp = FastMCP(\n    'a',\n    debug=False,\n)\n",
            "from portico import Server as FastMCP\n\n\nclass Server: ...\n\n\nmcp = FastMCP(\n    'a',\n)\n",
        ),
    ],
)
def test_names_are_resolved_in_the_session(before: str, after: str) -> None:
    assert ported(before) == after
    assert ported(after) == after
    assert left(before) == []


def test_every_counterpart_is_present() -> None:
    for all_replacement in all_replacements():
        assert getattr(import_module(all_replacement.module), all_replacement.name) is not None


def test_comments_spacing_and_line_ends_stay() -> None:
    head = b"# -*- coding: latin-1 -*-\r\n# \xe9t\xe9\r\n"
    before = head + b"from fastmcp import FastMCP  # the server\r\n\r\nx  =  [ FastMCP ]\r\n"
    after = rewrite(before).source
    assert after == before.replace(b"fastmcp", b"portico").replace(b"FastMCP", b"Server")


def test_name_of_the_file_s_own_is_left_alone() -> None:
    source = "from fastmcp import FastMCP\n\n\ndef f(FastMCP):\n    return FastMCP\n\n\nx = dict(FastMCP=1)\n"
    assert ported(source) == source.replace("from fastmcp import FastMCP", "from portico import Server")


def test_unsupported_imports_are_left_and_listed_with_line_numbers() -> None:
    source = "from mcp import Client, ClientSession\nfrom mcp.server.sse import SseServerTransport\n"
    rewritten = ported(source)
    assert "from mcp import ClientSession" in rewritten
    assert "from mcp.server.sse import SseServerTransport" in rewritten
    assert left(source) == [(1, "mcp.ClientSession"), (2, "mcp.server.sse.SseServerTransport")]


def test_lowlevel_server_is_renamed_to_low_level_server() -> None:
    source = "import mcp.server.stdio\nfrom mcp.server.lowlevel import Server\n\ns = Server('x')\n"
    used = source + "r = mcp.server.stdio.stdio_server()\n"
    assert ported(used).splitlines()[-2:] == ["s = LowLevelServer('x')", "r = portico.compat.mcp_sdk.stdio_server()"]
    assert left(used) == []


def test_class_without_counterpart_is_listed_once() -> None:
    source = "from fastmcp.server.providers import Provider\n\nx = [Provider.one, Provider.two]\n"
    assert ported(source) == source
    assert left(source) == [(1, "fastmcp.server.providers.Provider")]


def test_port_argument_is_preserved() -> None:
    source = "from mcp.server.fastmcp import FastMCP\n\nmcp = FastMCP('a', port=9000, debug=True)\n"
    assert ported(source) == "from portico.compat.mcp_sdk import FastMCP\n\nmcp = FastMCP('a', port=9000)\n"
    assert left(source) == [(3, "FastMCP(debug=…)")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mcp.run(transport='streamable-http', port=9000)", "mcp.run(transport='http', port=9000)"),
        ('mcp.run("streamable-http", stateless_http=True)', 'mcp.run("http", stateless=True)'),
        ("mcp.run(transport='http', json_response=True)", "mcp.run(transport='http')"),
        ("mcp.run()", "mcp.run()"),
        ("asyncio.run(mcp.run_async())", "asyncio.run(mcp.run_async())"),
    ],
)
def test_server_is_run_with_the_names_of_portico(before: str, after: str) -> None:
    head = "from fastmcp import FastMCP\n\nmcp = FastMCP('a', on_duplicate_tools='warn')\n"
    native = "from portico import Server\n\nmcp = Server('a', on_duplicate='warn')\n"
    assert ported(f"{head}{before}\n") == f"{native}{after}\n"
    assert left(f"{head}{before}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "app = mcp.http_app()",
        "mcp.run(transport='sse')",
        "mcp.run(transport=chosen)",
        "def f(ctx): return ctx.session",
        "other = FastMCP('b', auth=login)",
        "other = FastMCP('b', **options)",
        "other = FastMCP('b', strict_input_validation=True)",
    ],
)
def test_file_that_needs_more_keeps_the_classes_of_compat(line: str) -> None:
    source = f"from fastmcp import Context, FastMCP\n\nmcp = FastMCP('a')\nx: Context\n{line}\n"
    assert ported(source) == source.replace("from fastmcp", "from portico.compat.fastmcp")
    assert left(source) == []


def test_options_that_portico_does_not_have_are_reported() -> None:
    source = "from fastmcp import FastMCP\n\nmcp = FastMCP('a', tasks=True, mask_error_details=True)\n"
    assert ported(source) == "from portico import Server\n\nmcp = Server('a')\n"
    assert left(source) == [(3, "FastMCP(tasks=…)")]


def test_prefix_of_a_mount_is_its_namespace() -> None:
    source = "from fastmcp import FastMCP\n\nmain = FastMCP('a')\nmain.mount(server=FastMCP('b'), prefix='b')\n"
    assert "main.mount(server=Server('b'), namespace='b')" in ported(source)


def test_elicit_has_one_name_for_the_type() -> None:
    source = (
        "from mcp.server.fastmcp import Context\n\n\nasync def f(ctx: Context):\n    await ctx.elicit('?', schema=A)\n"
    )
    assert "from portico import Context" in ported(source)
    assert "ctx.elicit('?', response_type=A)" in ported(source)


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


def test_diff_comes_first_and_write_changes_the_files(project: Path, portico: Run) -> None:
    result = portico("port", str(project))
    assert result.returncode == 1, "something is left to do"
    assert "+from portico import Server\n" in result.stdout
    assert "server.py" in result.stdout
    assert f"{project}/broken.py:2: " in result.stderr
    assert f"{project}/pyproject.toml:3: fastmcp: replace it with portico" in result.stderr
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
    assert "no code uses FastMCP" in again.stderr


def test_mistakes_on_the_line(portico: Run) -> None:
    missing = portico("port", "no-such-folder")
    assert (missing.returncode, missing.stderr) == (2, "portico: no-such-folder not found\n")


def test_missing_libcst_error_names_the_install_command(tmp_path: Path) -> None:
    program = "import sys; sys.modules['libcst'] = None; from portico.cli.main import main; main(['port', '.'])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        "portico: `portico port` requires libcst: pip install 'portico[port]'\n",
    )


# The client's side

HEAD = "from fastmcp import Client, FastMCP\n"


def ported_body(body: str) -> str:
    source = f"{HEAD}\n\nasync def test(mcp):\n    async with Client(mcp) as client:\n        {body}\n"
    return ported(source).partition("as client:\n")[2].strip().replace("\n        ", "; ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("r = await client.call_tool('x'); r.data.name", "r = await client.call_tool('x'); r.data[\"name\"]"),
        (
            "r = await client.call_tool('x'); r.data.a.b[0].c",
            'r = await client.call_tool(\'x\'); r.data["a"]["b"][0]["c"]',
        ),
        ("(await client.call_tool('x')).data.name", "(await client.call_tool('x')).data[\"name\"]"),
        (
            "r = await client.call_tool('x'); print(f\"{r.data.name}\")",
            "r = await client.call_tool('x'); print(f\"{r.data['name']}\")",
        ),
        (
            "r = await client.call_tool('x'); v = r.data; v.name",
            "r = await client.call_tool('x'); v = r.data; v[\"name\"]",
        ),
        (
            "r = await client.call_tool('x'); [one.id for one in r.data]",
            "r = await client.call_tool('x'); [one[\"id\"] for one in r.data]",
        ),
        (
            "r = await client.call_tool_mcp('x', {}); r.isError, r.structuredContent",
            "r = await client.call_tool('x', {}, raise_on_error=False); r.is_error, r.structured_content",
        ),
    ],
)
def test_results_of_a_client_are_rewritten(before: str, after: str) -> None:
    assert ported_body(before) == after


def test_fields_of_listed_components_are_rewritten_where_a_client_is() -> None:
    body = "[t.inputSchema['required'] for t in await client.list_tools() if t.annotations.readOnlyHint]"
    assert ported_body(body) == body.replace("inputSchema", "input_schema").replace("readOnlyHint", "read_only_hint")
    assert ported_body("r = await client.call_tool('x'); r.data.mimeType").endswith('r.data["mimeType"]')
    alone = "from fastmcp import FastMCP\n\n\ndef f(x):\n    return x.inputSchema\n"
    assert "x.inputSchema" in ported(alone)


def test_names_in_advice_exist() -> None:
    for name, advice in mappings._ADVICE.items():
        for dotted in re.findall(r"portico(?:\.\w+)+", advice):
            module, _, attribute = dotted.rpartition(".")
            assert hasattr(import_module(module), attribute), f"{name}: {dotted}"


@pytest.mark.parametrize("package", ["portico.compat.fastmcp", "portico.compat.mcp_sdk"])
def test_missing_compat_names_suggest_a_replacement(package: str) -> None:
    with pytest.raises(ImportError, match=r"FastMCPTransport.*: pass the server itself to portico.Client"):
        exec(f"from {package} import FastMCPTransport")
    with pytest.raises(ImportError, match=r"import ElicitResult from portico\.types"):
        exec(f"from {package} import ElicitResult")
    assert not hasattr(import_module(package), "NoSuchName")


@pytest.mark.parametrize(
    "body",
    [
        "r = await client.call_tool('x'); r.data.upper()",
        "r = await client.call_tool('x'); r.data.year",
        "r = await client.call_tool('x'); r.structured_content['a']",
        "r = other(); r.data.name",
        "r = await client.call_tool('x'); r = other(); r.data.name",
    ],
)
def test_other_values_stay(body: str) -> None:
    assert ported_body(body) == body


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FastMCPTransport(mcp)", "mcp"),
        ("FastMCPTransport(mcp, raise_exceptions=True)", "mcp"),
        ("StdioTransport('python', ['a.py'])", "{\"command\": 'python', \"args\": ['a.py']}"),
        ("StdioTransport(command=c, args=a, env=e, keep_alive=False)", '{"command": c, "args": a, "env": e}'),
        ("StreamableHttpTransport(url)", "url"),
        ("StreamableHttpTransport(url=u, headers=h)", '{"url": u, "headers": h}'),
        ("SSETransport(u)", '{"url": u, "type": "sse"}'),
    ],
)
def test_transport_becomes_a_target(before: str, after: str) -> None:
    name = before.partition("(")[0]
    source = f"from fastmcp import Client\nfrom fastmcp.client.transports import {name}\nc = Client({before})\n"
    assert ported(source) == f"from portico import Client\nc = Client({after})\n"
    assert left(source) == []


def test_transport_that_cannot_be_rewritten_is_reported() -> None:
    source = "from fastmcp.client.transports import StdioTransport\nt = StdioTransport('a', [], log_file=f)\n"
    assert ported(source) == source
    assert left(source) == [(1, "fastmcp.client.transports.StdioTransport")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from fastmcp.utilities.logging import get_logger\nx = get_logger('a')\n", "getLogger('a')"),
        ("from fastmcp.client.elicitation import ElicitResult\nx = ElicitResult(action='accept')\n", "ElicitResult("),
        ("from fastmcp.exceptions import ResourceError\nx = ResourceError('a')\n", "ToolError('a')"),
        ("from fastmcp.client.logging import LogMessage\nx: LogMessage\n", "x: LogMessage"),
    ],
)
def test_names_with_an_exact_replacement(before: str, after: str) -> None:
    changed = ported(before)
    assert after in changed and "fastmcp" not in changed
    assert left(before) == []
    compile(changed, "x.py", "exec")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@mcp.tool(task=True)", '@mcp.tool(task="optional")'),
        ("@mcp.tool(name='a', task=False)", "@mcp.tool(name='a', task=\"never\")"),
        ("@mcp.tool(task='required')", "@mcp.tool(task='required')"),
    ],
)
def test_tasks_have_a_mode(before: str, after: str) -> None:
    source = f"from fastmcp import FastMCP\nmcp = FastMCP('a')\n\n\n{before}\ndef f(): ...\n"
    assert after in ported(source)


@pytest.mark.parametrize("task, known", [(True, True), (False, False), ("optional", True)])
def test_tool_accepts_a_task_as_true_or_false(task: Any, known: bool) -> None:
    server = Server("a")

    @server.tool(task=task)
    async def slow() -> str:
        return ""

    assert (server.tasks is not None) is known


def test_client_code_that_is_left_is_reported_with_its_line() -> None:
    source = (
        f"{HEAD}from fastmcp.server.dependencies import get_http_request\n"
        "async def ask(message, response_type, params, context): ...\n"
        "async def text(messages, params, context): ...\n"
        "async def main(mcp, given: Client):\n"
        "    async with Client(mcp, elicitation_handler=ask, sampling_handler=text) as client:\n"
        "        await client.session.send_ping()\n"
        "        await client.list_tools_mcp()\n"
        "        given.session\n"
    )
    assert left(source) == [
        (2, "fastmcp.server.dependencies.get_http_request"),
        (3, "elicitation_handler"),
        (4, "sampling_handler"),
        (7, "client.session"),
        (8, "client.list_tools_mcp"),
        (9, "client.session"),
    ]
    for finding in rewrite(source.encode()).findings:
        assert "no equivalent" in finding.advice or "portico." in finding.advice or "use client." in finding.advice


def test_handlers_that_fit_are_not_reported() -> None:
    source = f"{HEAD}async def ask(params): ...\nc = Client(x, elicitation_handler=ask, log_handler=lambda m: None)\n"
    assert left(source) == []


def test_test_that_gets_its_client_from_a_fixture_is_reported() -> None:
    source = "async def test_a(client):\n    r = await client.call_tool('x')\n    assert r.data.name\n"
    assert ported(source) == source
    assert left(source) == [(3, ".name")]
    assert left(source.replace(".name", '["name"]')) == []
    assert left(source.replace("'x'", "'x', result_type=Book")) == []


def test_no_import_is_added_that_nothing_uses() -> None:
    source = (
        "import mcp\nfrom mcp import McpError\n\n\ndef f():\n    raise McpError(1, 'x')\n\n\nraise mcp.McpError(2)\n"
    )
    changed = ported(source)
    assert changed.startswith("import portico.compat.mcp_sdk\n\n\ndef f()")
    assert "import portico\n" not in changed and "ProtocolError" not in changed


def test_fastmcp_json_names_the_file_to_port(tmp_path: Path, portico: Run) -> None:
    (tmp_path / "s.py").write_text("from fastmcp import FastMCP\nmcp = FastMCP('a')\n")
    config = tmp_path / "fastmcp.json"
    config.write_text(
        '{"source": {"path": "s.py", "entrypoint": "mcp"},\n "environment": {"dependencies": ["fastmcp"]}}'
    )
    done = portico("port", str(config))
    assert done.returncode == 1 and "+from portico import Server" in done.stdout
    assert "fastmcp.json:2: fastmcp:" in done.stderr


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_fastmcp_json_does_not_choose_a_file_elsewhere(tmp_path: Path, portico: Run, kind: str) -> None:
    other, folder = tmp_path / "other.py", tmp_path / "project"
    other.write_text(source := "from fastmcp import FastMCP\nmcp = FastMCP('a')\n")
    folder.mkdir()
    path = {"parent": "../other.py", "absolute": str(other), "link": "link.py"}[kind]
    (folder / "link.py").symlink_to(other)
    (folder / "fastmcp.json").write_text(json.dumps({"source": {"path": path}}))
    done = portico("port", str(folder / "fastmcp.json"), "--write")
    assert done.returncode == 2 and "`source` must be in" in done.stderr
    assert other.read_text() == source and (folder / "link.py").is_symlink()
