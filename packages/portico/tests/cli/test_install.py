"""`portico install` changes one entry of a client's configuration and nothing else."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from portico import Server
from portico.cli import install, jsonc, specs, toml_edit
from portico.cli.main import main
from portico.client.client import Client
from portico.compat.fastmcp import get_http_headers
from portico.protocol.errors import TransportError, UsageError
from portico.server.http import build_application
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from support.paths import ROOT

CURSOR = Path(".cursor/mcp.json")
HELLO = ROOT / "examples" / "hello.py"
OURS = {"command": "portico", "args": ["serve"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_nothing_is_written_unless_it_is_requested(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["install", "cursor"])
    output = capsys.readouterr().out
    assert '+    "portico": {' in output and "--write" in output
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "client, path, key, says_type",
    [
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers", False),
        ("claude-code", ".claude.json", "mcpServers", True),
        ("cursor", ".cursor/mcp.json", "mcpServers", False),
        ("vscode", ".config/Code/User/mcp.json", "servers", True),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers", False),
        ("zed", ".config/zed/settings.json", "context_servers", False),
        ("gemini", ".gemini/settings.json", "mcpServers", False),
    ],
)
def test_each_client_has_its_file(home: Path, client: str, path: str, key: str, says_type: bool) -> None:
    main(["install", client, "--write"])
    data = json.loads((home / path).read_text())
    (entry,) = data[key].values()
    assert list(data[key]) == ["portico"]
    assert (entry.pop("type", None) == "stdio") is says_type
    assert os.path.isabs(entry["command"]) and entry["args"][-1] == "serve"


@pytest.mark.parametrize(
    "client, path", [("claude-code", ".mcp.json"), ("cursor", ".cursor/mcp.json"), ("vscode", ".vscode/mcp.json")]
)
def test_project_has_its_own_file_which_others_can_use_too(home: Path, client: str, path: str) -> None:
    main(["install", client, "--scope", "project", "--write"])
    assert '"command": "portico"' in Path(path).read_text()
    assert list(home.iterdir()) == []


def test_everything_else_in_the_file_stays_as_it_is_and_is_kept(home: Path) -> None:
    text = '// mine\r\n{\r\n\t"a": 1.50e1,\r\n\t"mcpServers": {\r\n\t\t"x": {"command": "y"}, // why\r\n\t},\r\n}\r\n'
    path = write(home / CURSOR, text)
    path.chmod(0o640)
    main(["install", "cursor", "--write"])
    after = path.read_bytes().decode()
    assert after.startswith(text[: text.index("\t},")]) and after.endswith("\t},\r\n}\r\n")
    assert set(jsonc.read(after).value["mcpServers"]) == {"x", "portico"}
    (kept,) = path.parent.glob("*.bak")
    assert kept.read_bytes().decode() == text
    assert {stat.S_IMODE(item.stat().st_mode) for item in (path, kept)} == {0o640}
    main(["install", "cursor", "--remove", "--write"])
    assert path.read_bytes().decode() == text
    assert len(list(path.parent.glob("*.bak"))) == 2


def test_second_time_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["install", "cursor", "--write"])
    before = (home / CURSOR).read_bytes()
    main(["install", "cursor", "--write"])
    assert "nothing to change" in capsys.readouterr().out
    assert (home / CURSOR).read_bytes() == before
    assert list((home / CURSOR).parent.glob("*.bak")) == []


@pytest.mark.parametrize(
    "text, says",
    [
        ('{"mcpServers": {', "line 1"),
        ('{"a": 1}\n{', "line 2"),
        ("[]", "expected an object"),
        ('{"mcpServers": []}', "must be an object"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ("[" * 100_000, "too deeply"),
        ("{\"a\": 'b'}", "expecting value"),
        ('{"a": 1 /* }', "expecting ',' delimiter"),
    ],
)
def test_file_that_cannot_be_read_stays_unchanged(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = write(home / CURSOR, text)
    with pytest.raises(SystemExit) as left:
        main(["install", "cursor", "--write"])
    assert left.value.code == 2
    output = capsys.readouterr().err
    assert says in output and "was not changed" in output
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_bytes_that_are_no_text_stay_unchanged(home: Path) -> None:
    path = home / CURSOR
    path.parent.mkdir()
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(SystemExit):
        main(["install", "cursor", "--write"])
    assert path.read_bytes() == b'{"a": "\xff"}'


def test_byte_order_mark_stays(home: Path) -> None:
    path = write(home / CURSOR, "\ufeff{}")
    main(["install", "cursor", "--write"])
    assert path.read_bytes().startswith(b"\xef\xbb\xbf{\n")


def test_link_to_the_file_stays_a_link(home: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "dotfiles" / "mcp.json", "{}")
    (home / ".cursor").mkdir()
    (home / CURSOR).symlink_to(real)
    main(["install", "cursor", "--write"])
    assert (home / CURSOR).is_symlink()
    assert "portico" in real.read_text()


def test_concurrently_changed_file_is_not_overwritten(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home / CURSOR, "{}")
    keep = install._back_up

    def others_write(*rest: Any) -> Path:
        path.write_text('{"theirs": 1}')
        return keep(*rest)

    monkeypatch.setattr(install, "_back_up", others_write)
    with pytest.raises(SystemExit):
        main(["install", "cursor", "--write"])
    assert path.read_text() == '{"theirs": 1}'
    assert not list(path.parent.glob("*.part"))


def test_options_for_serve_are_checked_and_paths_made_whole(home: Path) -> None:
    Path("weather.py").write_text("")
    place = install.CLIENT_CONFIGS["cursor"]["user"]
    options = ["weather.py:server", "--read-only"]
    assert install.build_entry(place, options, shared=False)["args"][-2:] == [
        os.path.abspath("weather.py") + ":server",
        "--read-only",
    ]
    assert install.build_entry(place, options, shared=True)["args"] == ["serve", *options]
    with pytest.raises(UsageError, match=r"file 'gone\.py' not found"):
        install.build_entry(place, ["gone.py"], shared=False)
    with pytest.raises(UsageError, match="stdio"):
        install.build_entry(place, ["--transport", "http"], shared=False)
    with pytest.raises(SystemExit):
        install.build_entry(place, ["--no-such-thing"], shared=False)


def test_client_without_projects_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["install", "claude-desktop", "--scope", "project"])
    assert "--scope user" in capsys.readouterr().err


def test_every_client_that_can_be_typed_is_known() -> None:
    assert (*install.CLIENT_CONFIGS, install.JSON_CLIENT) == specs.COMMAND_SPECS["install"].arguments[0].options[
        "choices"
    ]


async def test_installed_server_starts_and_answers(home: Path) -> None:
    """As the client would do it: read the file, start the command."""
    main(["install", "cursor", "--name", "hello", "--write", "--", str(HELLO)])
    async with Client(f"{home / CURSOR}:hello") as client:
        assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"


# Names


def entries(path: Path, key: str = "mcpServers") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())[key]
    return data


@pytest.mark.parametrize(
    "source, target, name",
    [
        ('mcp = Server("Weather of Oslo")', "w.py", "Weather-of-Oslo"),
        ('server = portico.Server(name="weather")', "w.py", "weather"),
        ('a = Server("one")\nb = Server("two")', "w.py:b", "two"),
        ('a = Server("one")\nb = Server("two")', "w.py", "w"),
        ("mcp = Server(NAME)", "sub/w.py", "w"),
        ("this is not Python", "w.py", "w"),
        ("", "my.package.weather:server", "weather"),
        ("", "my-gateway.toml", "my-gateway"),
        ("", "http://127.0.0.1:8080/mcp", "localhost-8080"),
        ("", "https://mcp.example.com/x", "mcp-example-com"),
    ],
)
def test_entry_is_named_after_its_server(home: Path, source: str, target: str, name: str) -> None:
    write(Path("w.py"), source)
    write(Path("sub/w.py"), source)
    assert install.default_name([target]) == name


def test_no_code_is_run_to_find_the_name(home: Path) -> None:
    write(Path("w.py"), 'open("run", "w")\nserver = Server("quiet")')
    main(["install", "cursor", "--write", "--", "w.py"])
    assert not Path("run").exists()
    assert list(entries(home / CURSOR)) == ["quiet"]


def test_two_servers_are_two_entries(home: Path) -> None:
    write(Path("w.py"), "")
    main(["install", "cursor", "--write"])
    main(["install", "cursor", "--write", "--", "w.py"])
    assert list(entries(home / CURSOR)) == ["portico", "w"]


@pytest.mark.parametrize("client", ["cursor", "codex", "goose"])
def test_another_server_of_the_same_name_is_only_replaced_on_request(
    home: Path, capsys: pytest.CaptureFixture[str], client: str
) -> None:
    write(Path("a/w.py"), "")
    write(Path("b/w.py"), "")
    main(["install", client, "--write", "--", "a/w.py"])
    path = install.CLIENT_CONFIGS[client]["user"].path()
    before = path.read_text()
    with pytest.raises(SystemExit) as left:
        main(["install", client, "--write", "--", "b/w.py"])
    assert left.value.code == 2
    output = capsys.readouterr().err
    assert "--replace" in output and "--name" in output and "a/w.py" in output
    assert path.read_text() == before
    main(["install", client, "--write", "--replace", "--", "b/w.py"])
    assert "b/w.py" in path.read_text() and "a/w.py" not in path.read_text()


def test_settings_that_the_user_added_to_the_same_server_stay(home: Path) -> None:
    main(["install", "cursor", "--write", "--env", "A=1"])
    path = home / CURSOR
    data = json.loads(path.read_text())
    data["mcpServers"]["portico"] |= {"disabled": True, "env": {"A": "1", "KEY": "mine"}}
    path.write_text(json.dumps(data))
    main(["install", "cursor", "--write", "--env", "B=2"])
    entry = entries(path)["portico"]
    assert entry["disabled"] is True and entry["env"] == {"A": "1", "KEY": "mine", "B": "2"}


@pytest.mark.parametrize("word", ["A", "=1", "A\0=1"])
def test_environment_variable_needs_a_name_and_a_value(home: Path, word: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["install", "cursor", "--env", word])
    assert left.value.code == 2


# URLs


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[str]:
    listener = Listener(build_application(server, HttpServerSettings()))
    [(host, port, *_)] = await listener.listen("127.0.0.1", 0)
    try:
        async with server.lifespan():
            yield f"http://{host}:{port}/mcp"
    finally:
        await listener.stop(0)


URL = "http://127.0.0.1:8080/mcp"


@pytest.mark.parametrize(
    "client, expected",
    [
        ("claude-code", {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}}),
        ("cursor", {"url": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}}),
        ("vscode", {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}}),
        ("windsurf", {"serverUrl": URL, "headers": {"Authorization": "Bearer ${env:TOKEN}"}}),
        ("gemini", {"httpUrl": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}}),
        ("codex", {"url": URL, "bearer_token_env_var": "TOKEN"}),
    ],
)
def test_url_is_written_as_the_client_has_it(
    home: Path, client: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "the-secret")
    main(["install", client, "--write", "--token-env", "TOKEN", "--", URL])
    place = install.CLIENT_CONFIGS[client]["user"]
    text = place.path().read_text()
    assert install.EDITORS[place.format].read(text)[place.key] == {"localhost-8080": expected}
    assert "the-secret" not in text


@pytest.mark.parametrize("client", ["claude-desktop", "zed", "goose"])
def test_client_that_cannot_write_it_starts_a_bridge(home: Path, client: str) -> None:
    main(["install", client, "--write", "--token-env", "TOKEN", "--", URL])
    place = install.CLIENT_CONFIGS[client]["user"]
    (entry,) = install.EDITORS[place.format].read(place.path().read_text())[place.key].values()
    assert entry["args"][-4:] == ["serve", URL, "--header", "Authorization: Bearer ${TOKEN}"]


@pytest.mark.parametrize("client, member", [("zed", "url"), ("goose", "uri")])
def test_url_without_a_secret_is_native_there_too(home: Path, client: str, member: str) -> None:
    main(["install", client, "--write", "--", URL])
    place = install.CLIENT_CONFIGS[client]["user"]
    (entry,) = install.EDITORS[place.format].read(place.path().read_text())[place.key].values()
    assert entry[member] == URL and "command" not in entry and "cmd" not in entry


def test_codex_has_members_for_headers(home: Path) -> None:
    main(["install", "codex", "--write", "--header", "X-Team: a", "--header", "X-Key: ${KEY}", "--", URL])
    text = (home / ".codex/config.toml").read_text()
    (entry,) = tomllib.loads(text)["mcp_servers"].values()
    assert entry == {"url": URL, "http_headers": {"X-Team": "a"}, "env_http_headers": {"X-Key": "KEY"}}


@pytest.mark.parametrize(
    "words", [["--env", "A=1", "--", URL], ["--", URL, "--read-only"], ["--header", "A: b"], ["--token-env", "T"]]
)
def test_options_that_do_not_fit_the_target_are_rejected(home: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["install", "cursor", *words])
    assert left.value.code == 2


@pytest.mark.parametrize("url", ["http://", "http://a b/mcp", "http://example.com:port/mcp"])
@pytest.mark.parametrize("words", [[], ["--name", "mine"]], ids=str)
def test_an_invalid_url_is_refused(home: Path, capsys: pytest.CaptureFixture[str], url: str, words: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["install", "cursor", *words, "--", url])
    assert left.value.code == 2 and "URL" in capsys.readouterr().err


def test_plain_json_is_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("w.py"), "")
    main(["install", "json", "--env", "A=1", "--", "w.py"])
    (entry,) = json.loads(capsys.readouterr().out)["mcpServers"].values()
    assert entry["args"][-1] == os.path.abspath("w.py") and entry["env"] == {"A": "1"}
    with pytest.raises(SystemExit):
        main(["install", "json", "--write"])


def test_fastmcp_json_is_started_on_stdio(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("w.py"), "")
    write(Path("fastmcp.json"), '{"source": {"path": "w.py"}, "deployment": {"transport": "http"}}')
    main(["install", "json", "--", "fastmcp.json"])
    (entry,) = json.loads(capsys.readouterr().out)["mcpServers"].values()
    assert entry["args"][-3:] == [os.path.abspath("fastmcp.json"), "--transport", "stdio"]


@pytest.mark.parametrize("spelling", ["localhost:8080/mcp", ":8080/mcp"])
def test_url_without_scheme_is_written_whole(home: Path, capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    main(["install", "json", "--", spelling])
    assert json.loads(capsys.readouterr().out)["mcpServers"] == {"localhost-8080": {"url": "http://localhost:8080/mcp"}}


async def test_bridge_answers_for_the_server_at_the_url(home: Path) -> None:
    seen: list[str | None] = []
    server = Server("far", instructions="Ask far away.", request_headers=["x-key"])

    @server.tool
    def greet(name: str) -> str:
        seen.append(get_http_headers().get("x-key"))
        return f"Hello, {name}!"

    async with served(server) as url:
        main(["install", "claude-desktop", "--write", "--env", "KEY=open", "--header", "X-Key: ${KEY}", "--", url])
        (entry,) = entries(home / ".config/Claude/claude_desktop_config.json").values()
        async with Client([entry["command"], *entry["args"]], env=entry["env"]) as client:
            assert client.server_info is not None and client.server_info.name == "far"
            assert client.instructions == "Ask far away."
            assert [tool.name for tool in await client.list_tools()] == ["greet"]
            assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
    assert seen == ["open"]


async def test_bridge_to_nowhere_says_so(home: Path) -> None:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{item.getsockname()[1]}/mcp"
        with pytest.raises(TransportError, match=r"cannot connect to 127\.0\.0\.1"):
            async with Client([sys.executable, "-m", "portico", "serve", url], max_retries=0):
                pass


# TOML and YAML

TOML = """# mine
model = "o"  # keep

[mcp_servers.other]  # theirs
command = "x"
args = ["[not a header]"]

# about the profile
[profiles.fast]
model = "f"
"""
YAML = """# mine
GOOSE_MODEL: gpt  # keep
extensions:
    # built in
    developer:
        enabled: true
        type: builtin

    other: {enabled: false, type: stdio, cmd: x, args: []}
# the end
last: 1
"""


@pytest.mark.parametrize("client, text", [("codex", TOML), ("goose", YAML)])
def test_comments_and_order_of_toml_and_yaml_stay(home: Path, client: str, text: str) -> None:
    path = write(install.CLIENT_CONFIGS[client]["user"].path(), text)
    main(["install", client, "--write", "--env", "A=1"])
    added = path.read_text()
    lines = iter(added.splitlines())
    assert all(line in lines for line in text.splitlines()), "every line is there, in its order"
    place = install.CLIENT_CONFIGS[client]["user"]
    assert {"other", "portico"} <= set(install.EDITORS[place.format].read(added)[place.key])
    main(["install", client, "--write", "--remove"])
    assert path.read_text() == text
    assert len(list(path.parent.glob("*.bak"))) == 2


@pytest.mark.parametrize(
    "client, text",
    [
        ("codex", "mcp_servers = {a = {command = 'x'}}\n"),
        ("codex", "x = \n"),
        ("codex", "mcp_servers = 1\n"),
        ("goose", "extensions: {a: {cmd: x}}\n"),
        ("goose", "extensions: [1]\n"),
        ("goose", "a: [\n"),
        ("goose", "- a\n"),
    ],
)
def test_toml_and_yaml_that_cannot_be_changed_safely_stay(
    home: Path, client: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(install.CLIENT_CONFIGS[client]["user"].path(), text)
    with pytest.raises(SystemExit) as left:
        main(["install", client, "--write"])
    assert left.value.code == 2 and "was not changed" in capsys.readouterr().err
    assert path.read_text() == text and list(path.parent.iterdir()) == [path]


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3), st.text(min_size=1, max_size=8))
def test_any_name_and_any_value_survive_in_toml(environment: dict[str, str], name: str) -> None:
    block = {"command": "x", "args": list(environment.values()), "env": environment}
    changed = toml_edit.put_toml(TOML, ("mcp_servers", name), block)
    assert tomllib.loads(changed)["mcp_servers"][name] == block
    if name != "other":
        assert toml_edit.drop_toml(changed, ("mcp_servers", name)) == TOML


@pytest.mark.parametrize(
    "system, client, path",
    [
        ("darwin", "vscode", "Library/Application Support/Code/User/mcp.json"),
        ("darwin", "zed", ".config/zed/settings.json"),
        ("darwin", "goose", ".config/goose/config.yaml"),
        ("win32", "zed", "AppData/Roaming/Zed/settings.json"),
        ("win32", "goose", "AppData/Roaming/Block/goose/config/config.yaml"),
        ("win32", "windsurf", ".codeium/windsurf/mcp_config.json"),
        ("win32", "codex", ".codex/config.toml"),
    ],
)
def test_files_lie_where_the_system_has_them(
    home: Path, monkeypatch: pytest.MonkeyPatch, system: str, client: str, path: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delenv("APPDATA", raising=False)
    assert install.CLIENT_CONFIGS[client]["user"].path() == home / path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DOCUMENT = st.dictionaries(
    st.text(max_size=5) | st.just("mcpServers"), st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=4
)


@given(DOCUMENT, st.sampled_from([None, 0, 1, 2, 4, "\t"]), st.text(max_size=5))
def test_of_any_document_only_the_one_value_changes(document: Any, indent: Any, name: str) -> None:
    text = json.dumps(document, indent=indent)
    changed = jsonc.set_value(text, ("mcpServers", name), OURS)
    expected = {**document, "mcpServers": {**document.get("mcpServers", {}), name: OURS}}
    assert json.loads(changed) == expected
    gone = json.loads(jsonc.delete_value(changed, ("mcpServers", name)))
    expected["mcpServers"] = {known: one for known, one in expected["mcpServers"].items() if known != name}
    assert gone == expected


@given(st.text(max_size=60))
def test_parser_accepts_arbitrary_text(text: str) -> None:
    try:
        node = jsonc.read(text)
    except jsonc.InvalidJsonc:
        return
    assert isinstance(node.value, dict)


@pytest.mark.parametrize(
    "text",
    [
        "{ // nothing yet\n}",
        '{"mcpServers": {} /* none */}',
        '{"mcpServers": {"a": 1 // one\n}}',
        '{"mcpServers": {"a": 1, /* last */}}',
        '/* head */ {"b": [1, 2,], "mcpServers": {"a": {"x": "// no comment"}}} // tail',
    ],
)
def test_comments_stay(text: str) -> None:
    changed = jsonc.set_value(text, ("mcpServers", "portico"), OURS)
    assert jsonc.read(changed).value["mcpServers"]["portico"] == OURS
    assert changed.count("//") + changed.count("/*") == text.count("//") + text.count("/*")
    again = jsonc.delete_value(changed, ("mcpServers", "portico"))
    assert "portico" not in again
    assert jsonc.set_value(jsonc.delete_value(again, ("mcpServers", "gone")), ("mcpServers", "portico"), OURS)


def test_options_of_serve_belong_after_the_dashes(portico: Any) -> None:
    done = portico("install", "claude-code", "--services", "memory")
    assert done.returncode == 2
    assert "unrecognized arguments: --services memory; options of `portico serve` follow --" in done.stderr


def test_removing_a_server_that_is_not_there_is_an_error(portico: Any, tmp_path: Path) -> None:
    done = portico("install", "cursor", "--remove", "--name", "nosuch", HOME=str(tmp_path))
    assert done.returncode == 2 and "has no server named 'nosuch'" in done.stderr
