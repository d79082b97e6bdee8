"""`portico list`, `call`, `read` and `prompt` without a terminal: JSON lines, and answers from options."""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from portico import Client
from portico.cli import local_token
from portico.cli.connect import time_limit
from portico.transports.deadlines import closing_deadline
from portico.types import SUPPORTED_PROTOCOL_VERSIONS
from support.paths import ROOT

Portico = Callable[..., Any]

HELLO = ["--", sys.executable, "examples/hello.py"]


def lines(done: Any) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# Targets


@pytest.mark.parametrize(
    "words",
    [
        ["examples/hello.py", "greet", "name=Ada"],
        ["examples/hello.py:server", "greet", "name=Ada"],
        ["examples.hello:server", "greet", "name=Ada"],
        [shlex.join([sys.executable, "examples/hello.py"]), "greet", "name=Ada"],
        ["greet", "name=Ada", "--", sys.executable, "examples/hello.py"],
        ["greet", "name=Ada", "--verbose", "--", sys.executable, "-m", "portico", "serve", "examples/hello.py"],
        [
            "--timeout",
            "20",
            "examples/hello.py",
            "--format",
            "jsonl",
            "greet",
            "--protocol-version",
            "2025-06-18",
            "name=Ada",
        ],
    ],
)
def test_server_is_reached_by_all_that_can_name_it(portico: Portico, words: list[str]) -> None:
    [result] = lines(portico("call", *words))
    assert result["content"] == [{"type": "text", "text": "Hello, Ada!"}]
    assert result["isError"] is False


def test_entry_of_a_configuration_is_a_target(portico: Portico, tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["examples/hello.py"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"hello": entry, "other": {"command": "no"}}}))
    [result] = lines(portico("call", f"{tmp_path}/mcp.json:hello", "greet", "name=Ada"))
    assert result["content"][0]["text"] == "Hello, Ada!"


def test_server_over_http_is_a_target(portico: Portico, url: str) -> None:
    [result] = lines(portico("call", url, "greet", "name=Ada"))
    assert result["content"][0]["text"] == "Hello, Ada!"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
def test_revision_can_be_chosen(portico: Portico, revision: str) -> None:
    [result] = lines(
        portico("call", "about_me", "--protocol-version", revision, "--", sys.executable, "examples/travel.py")
    )
    assert json.loads(result["content"][0]["text"])["revision"] == revision


def test_command_is_given_an_environment_and_a_folder(portico: Portico, server: Any, tmp_path: Path) -> None:
    path = server(
        "import os\n@server.tool\ndef where() -> list[str]:\n    return [os.environ['WORD'], os.getcwd()]\n"
        "if __name__ == '__main__':\n    server.run()"
    )
    (tmp_path / "folder").mkdir()
    words = ["--env", "WORD=a=b", "--cwd", tmp_path / "folder", "--", sys.executable, path]
    [result] = lines(portico("call", "where", *words))
    assert result["structuredContent"] == {"result": ["a=b", str(tmp_path / "folder")]}


def test_prints_of_an_in_process_server_go_to_stderr(portico: Portico, server: Any) -> None:
    path = server("@server.tool\ndef loud() -> str:\n    print('aside')\n    return 'result'")
    done = portico("call", path, "loud", "--format", "table")
    assert (done.stdout, done.stderr) == ("result\n", "aside\n")


# Lists


@pytest.mark.parametrize(
    "kind, target, member, expected",
    [
        ("tools", "examples/hello.py", "name", ["greet"]),
        ("resources", "examples/library.py", "uri", ["library://hours", "library://books/latest"]),
        ("templates", "examples/library.py", "name", ["book", "by_author", "file"]),
        ("prompts", "examples/library.py", "name", ["recommend", "discuss"]),
        ("prompts", "examples/hello.py", "name", []),
        ("templates", "examples/hello.py", "name", []),
    ],
)
def test_list_is_one_line_of_json_for_each(
    portico: Portico, kind: str, target: str, member: str, expected: list[str]
) -> None:
    assert [line[member] for line in lines(portico("list", kind, target))] == expected


def test_list_can_be_a_plain_table(portico: Portico) -> None:
    done = portico("list", "tools", "examples/orders.py", "--format", "table", COLUMNS="100")
    head, first, *_ = done.stdout.splitlines()
    assert head.split() == ["NAME", "ARGUMENTS", "DESCRIPTION"]
    assert first.split("  ")[0] == "place_order"
    assert "product quantity address [size] [delivery] [by]" in first


def test_server_without_prompts_has_an_empty_list_of_them(portico: Portico, liar: Any) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "liar", "version": "1"}}
    done = portico("list", "prompts", "--", *liar({"initialize": hello}))
    assert (done.returncode, done.stdout) == (0, "")
    assert portico("list", "prompts", "--", *liar({})).returncode == 1


# Calls


def test_arguments_are_typed_by_the_schema(portico: Portico) -> None:
    words = ["product=scarf", "quantity=2", "address.street=Karl Johan 1", "address.city=Oslo", "by=2026-01-31"]
    [result] = lines(portico("call", "examples/orders.py", "place_order", *words))
    assert result["structuredContent"] == {"number": 1, "total": 25.0}


def test_arguments_can_come_from_standard_input(portico: Portico, tmp_path: Path) -> None:
    def said(*words: str, stdin: str = "") -> str:
        return str(lines(portico("call", "examples/hello.py", "greet", *words, stdin=stdin))[0]["content"][0]["text"])

    (tmp_path / "arguments.json").write_text('{"name": "Grace"}')
    assert said("name=-", stdin="Ada") == "Hello, Ada!"
    assert said("--arguments", "-", stdin='{"name": "Ada"}') == "Hello, Ada!"
    assert said("--arguments", '{"name": "Ada"}') == "Hello, Ada!"
    assert said("--arguments", f"@{tmp_path}/arguments.json") == "Hello, Grace!"
    assert said(f"name=@{tmp_path}/arguments.json") == 'Hello, {"name": "Grace"}!'


def test_standard_input_can_be_read_once(portico: Portico) -> None:
    done = portico("call", "examples/progress.py", "add", "a=-", "b=-", stdin="1")
    assert done.returncode == 2
    assert done.stderr == "portico: standard input can be read only once: only one value can be -\n"


def test_name_that_is_not_listed_can_be_called_with_json(portico: Portico) -> None:
    """`buy` is another name of place_order."""
    order = {"product": "scarf", "quantity": 1, "address": {"street": "a", "city": "b"}}
    [result] = lines(portico("call", "examples/orders.py", "buy", "--arguments", json.dumps(order)))
    assert result["structuredContent"]["total"] == 12.5
    assert portico("call", "examples/orders.py", "buy", "product=scarf").returncode == 2


@pytest.mark.parametrize(
    "tool, printed",
    [
        ("word", "a word\n"),
        ("point", '{\n  "x": 1,\n  "y": 2\n}\n'),
        ("nothing", ""),
        ("where", "(The figures of May: results://may)\n"),
        ("measured", 'It took 12 ms.\n{\n  "milliseconds": 12\n}\n'),
    ],
)
@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
def test_users_get_texts_and_data_once(portico: Portico, tool: str, printed: str, revision: str) -> None:
    done = portico("call", "examples/results.py", tool, "--format", "table", "--protocol-version", revision)
    assert (done.returncode, done.stdout) == (0, printed)


def test_wrapped_value_is_taken_out_of_its_wrapping(portico: Portico) -> None:
    done = portico("call", "examples/results.py", "primes", "--format", "table", "--protocol-version", "2025-06-18")
    assert json.loads(done.stdout) == [2, 3, 5, 7]


def test_binary_content_is_described_or_saved(portico: Portico, tmp_path: Path) -> None:
    call = ["call", "examples/everything.py", "test_image_content"]
    assert portico(*call, "--format", "table").stdout == "(image, image/png, 70 bytes; use --save-dir DIR to save it)\n"
    for number in ("", "-2"):
        path = tmp_path / "made" / f"test_image_content{number}.png"
        done = portico(*call, "--format", "table", "--save-dir", tmp_path / "made")
        assert done.stdout == f"(image, image/png, 70 bytes: {path})\n"
        assert path.read_bytes().startswith(b"\x89PNG")
    done = portico(*call, "--save-dir", tmp_path / "made")
    assert json.loads(done.stdout)["content"][0]["type"] == "image"
    assert done.stderr == f"(image/png, 70 bytes: {tmp_path}/made/test_image_content-3.png)\n"


def test_folder_that_cannot_be_written_to_is_named(portico: Portico, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = portico("call", "examples/everything.py", "test_image_content", "--save-dir", tmp_path / "file")
    assert done.returncode == 2
    assert f"portico: cannot write to {tmp_path}/file: " in done.stderr


def test_several_blocks_are_shown_in_their_order(portico: Portico) -> None:
    done = portico("call", "examples/everything.py", "test_multiple_content_types", "--format", "table")
    first, second, third = done.stdout.splitlines()
    assert first == "Multiple content types test:"
    assert second.startswith("(image, image/png, 70 bytes")
    assert json.loads(third) == {"test": "data", "value": 123}


# Resources and prompts


def test_resource_is_read(portico: Portico) -> None:
    [contents] = lines(portico("read", "examples/library.py", "library://hours"))
    assert contents == {"uri": "library://hours", "mimeType": "text/plain", "text": "Monday to Friday, 9 to 17."}
    text = portico("read", "library://hours", "--format", "table", "--", sys.executable, "examples/library.py")
    assert text.stdout == "Monday to Friday, 9 to 17."


def test_bytes_of_a_resource_are_saved_under_a_name_of_ours(portico: Portico, server: Any, tmp_path: Path) -> None:
    path = server(
        "@server.resource('odd://a/{+path}', security=None)\ndef data(path: str) -> bytes:\n    return b'\\x00\\xff'"
    )
    folder = tmp_path / "saved"
    for uri, name in [
        ("odd://a/b.dat", "b.dat"),
        ("odd://a/../../../.evil", "data.evil"),
        ("odd://a/%2e%2e%2f;", "2e-2e-2f.bin"),
    ]:
        done = portico("read", path, uri, "--format", "table", "--save-dir", folder)
        assert done.returncode == 0, done.stderr
        assert (folder / name).read_bytes() == b"\x00\xff"
    assert {item.name for item in tmp_path.iterdir()} <= {"saved", "odd.py", "cache", "__pycache__"}


def test_prompt_is_one_line_of_json_for_each_message(portico: Portico) -> None:
    messages = lines(portico("prompt", "examples/library.py", "discuss", "number=1"))
    assert [message["role"] for message in messages] == ["user", "assistant"]
    done = portico("prompt", "examples/library.py", "recommend", "author=Ibsen", "--format", "table")
    assert done.stdout == "user:\nRecommend 3 books to a reader who likes Ibsen. Be plain.\n"


# What is said aside


def test_wire_can_be_watched(portico: Portico) -> None:
    done = portico("call", "examples/hello.py", "greet", "name=Ada", "--trace")
    [result] = lines(done)
    sent = [json.loads(line[2:]) for line in done.stderr.splitlines() if line.startswith("→ ")]
    received = [json.loads(line[2:]) for line in done.stderr.splitlines() if line.startswith("← ")]
    assert [message["method"] for message in sent] == ["server/discover", "tools/list", "tools/call"]
    assert received[-1]["result"]["content"] == result["content"]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_log_messages_are_shown_on_request(portico: Portico, revision: str) -> None:
    call = ["call", "examples/everything.py", "test_logging_tool", "--protocol-version", revision]
    assert portico(*call).stderr == ""
    output = portico(*call, "--verbose").stderr.splitlines()
    assert [line.partition(":")[0].split()[0] for line in output] == ["debug", "info", "warning", "error"]


def test_server_that_logs_nothing_can_be_called_verbosely(portico: Portico, liar: Any) -> None:
    command = liar({"tools/list": {"tools": []}})
    assert portico("list", "tools", "--verbose", "--", *command).returncode == 0


@pytest.mark.parametrize(
    "words, env, sent",
    [
        ([], {}, None),
        (["--token", "typed"], {}, "Bearer typed"),
        ([], {"PORTICO_TOKEN": "kept"}, "Bearer kept"),
        ([], {"PORTICO_TOKEN": "kept", "PORTICO_CLIENT_TOKEN": "mine"}, "Bearer mine"),
        (["--token", "typed"], {"PORTICO_TOKEN": "kept"}, "Bearer typed"),
        (["--header", "Authorization: Basic eA=="], {}, "Basic eA=="),
    ],
)
def test_headers_and_tokens_go_along(
    portico: Portico, gate: Any, words: list[str], env: dict[str, str], sent: str | None
) -> None:
    url = f"http://127.0.0.1:{gate.server_address[1]}/mcp"
    done = portico("list", "tools", url, "--header", "X-Word: a b", *words, **env)
    assert done.returncode == 3
    expected = "rejected the token" if sent else "Pass --token, set PORTICO_CLIENT_TOKEN, or run `portico login`."
    assert expected in done.stderr
    assert gate.headers[0]["x-word"] == "a b"
    assert gate.headers[0].get("authorization") == sent


def test_call_caches_tool_names_for_completion(portico: Portico, tmp_path: Path) -> None:
    lines(portico("call", "examples/orders.py", "catalogue.prices"))
    [file] = (tmp_path / "cache" / "portico" / "names").iterdir()
    assert os.stat(file).st_mode & 0o777 == 0o600
    data = json.loads(file.read_text())
    assert data["tools"]["place_order"]["size"] == ["small", "medium", "large"]
    assert "orders" not in file.name
    assert "orders.py" not in file.read_text()


# Looking at a server as a whole


def test_everything_is_listed_where_no_kind_is_named(portico: Portico) -> None:
    listed = lines(portico("list", "examples/library.py"))
    assert {"uri", "uriTemplate", "inputSchema"} <= {name for item in listed for name in item}


def test_server_is_inspected(portico: Portico) -> None:
    (message,) = lines(portico("inspect", "examples/library.py"))
    assert (message["name"], message["counts"]["tools"]) == ("library", 1)
    assert message["protocol_version"] == SUPPORTED_PROTOCOL_VERSIONS[-1]
    assert message["protocol_versions"] == list(SUPPORTED_PROTOCOL_VERSIONS)
    assert message["token_cost"]["tokens"] > 0
    assert message["token_cost"]["largest_tools"][0]["name"] == "give_back"
    assert any(finding["rule"] == "vocabulary" for finding in message["findings"])


@pytest.mark.parametrize("words", [["list"], ["inspect"], ["call", "a_tool"]], ids=str)
def test_time_limit_is_of_the_whole_command(portico: Portico, words: list[str]) -> None:
    """Also where a child neither answers nor ends when it is asked to."""
    begun = time.monotonic()
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    done = portico(*words, "--timeout", "1", "--", *stubborn)
    assert done.returncode == 3
    assert "within 1 s" in done.stderr
    # Steps of closing it would take two seconds each.
    assert time.monotonic() - begun < 6


async def test_the_time_limit_includes_the_end_of_a_child_that_has_answered() -> None:
    """Without it, closing waits two seconds for the end of the input, and two more for the signal."""
    serve = shlex.join([sys.executable, "-m", "portico", "serve", str(ROOT / "examples" / "hello.py")])
    client = Client(["sh", "-c", f"trap '' TERM; {serve}; while :; do sleep 1; done"])
    async with time_limit(argparse.Namespace(oauth=None, timeout=60.0)):
        await client.connect()
        await client.list_tools()
    assert closing_deadline.get() == pytest.approx(asyncio.get_running_loop().time() + 60.0, abs=30)
    closing_deadline.set(asyncio.get_running_loop().time() + 0.2)
    begun = time.monotonic()
    await client.close()
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("spelling", ["{host}:{port}/mcp", "localhost:{port}/mcp", ":{port}/mcp", ":{port}"])
def test_url_may_be_typed_without_its_scheme(portico: Portico, url: str, spelling: str) -> None:
    place = urlsplit(url)
    target = spelling.format(host=place.hostname, port=place.port)
    assert json.loads(portico("list", "tools", target).stdout)["name"] == "greet"


@pytest.mark.parametrize(
    "target, words",
    [
        ("localhost:{closed}/mcp", "connection refused; is the server running"),
        ("https://127.0.0.1:{open}/mcp", "does not use TLS at this port; try http://"),
        ("http://127.0.0.1:{open}/mcpp", "404: Not found: the MCP endpoint is /mcp"),
    ],
)
def test_server_that_cannot_be_reached_is_explained(portico: Portico, url: str, target: str, words: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        response = target.format(open=urlsplit(url).port, closed=unused.getsockname()[1])
        done = portico("list", response)
    assert done.returncode == 3 and done.stdout == ""
    assert words in done.stderr and "Connect call" not in done.stderr


def test_web_page_is_not_taken_for_a_server(portico: Portico, gate: Any, tmp_path: Path) -> None:
    """Its title is shown, and not its source."""
    page = "<!doctype html><html><head><title>Welcome to nginx!</title></head><body>" + "<p>x</p>" * 500
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _page_handler(page))
    threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
    try:
        done = portico("list", f"http://127.0.0.1:{served.server_port}/")
    finally:
        served.shutdown()
        served.server_close()
    assert done.returncode == 3 and "Welcome to nginx!" in done.stderr and "<p>" not in done.stderr


def _page_handler(page: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(405)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page.encode())

        do_GET = do_POST

        def log_message(self, *words: object) -> None:
            pass

    return Page


def test_rejected_token_is_reported_with_the_options_of_the_command(portico: Portico, gate: Any) -> None:
    url = f"http://127.0.0.1:{gate.server_port}/mcp"
    assert "Pass --token, set PORTICO_CLIENT_TOKEN, or run `portico login`." in portico("list", url).stderr
    typed = portico("list", url, "--token", "x").stderr
    assert "rejected the token" in typed
    assert "The token is from" not in typed
    found = portico("list", url, PORTICO_TOKEN="x").stderr
    assert "rejected the token (HTTP status 401, server/discover)" in found
    assert "The token is from PORTICO_TOKEN. Pass --token" in found


def test_a_refused_token_of_an_earlier_server_on_the_port_is_named(portico: Portico, gate: Any, tmp_path: Path) -> None:
    path = local_token.save_token("old", gate.server_port, str(tmp_path))
    url = f"http://127.0.0.1:{gate.server_port}/mcp"
    assert f"The token is from {path}. Pass --token" in portico("list", url, PORTICO_DATA=str(tmp_path)).stderr
