"""Shell completion in real shells; it never starts a server or runs code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico.cli import completion_cache
from portico.cli.commands import COMMANDS, PACKAGES, all_commands
from portico.cli.completion import complete
from portico.cli.specs import COMMAND_SPECS
from support.paths import ROOT

TIMEOUT_SECONDS = 30
TARGET = "examples/orders.py"

Portico = Callable[..., Any]


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was talked to from the root of the project; also by a URL, and by a command."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)
    tools = {"place_order": {"product": [], "quantity": [], "size": ["small", "medium"]}, "place.it": {}, "find": {}}
    for target in (TARGET, "http://127.0.0.1:9/mcp", "python server.py"):
        completion_cache.store_names(target, "tools", tools)
        completion_cache.store_names(target, "prompts", {"recommend": {"author": []}})
        completion_cache.store_names(target, "resources", {"library://hours": {}, "library://books": {}})


# What is offered


@pytest.mark.parametrize(
    "line, offered",
    [
        ([""], [*all_commands(), "--help", "--version"]),
        (["c"], ["call", "completion", "console", "connect", "contracts"]),
        (["nonsense", ""], []),
        (["list", ""], ["tools", "resources", "templates", "prompts", "everything"]),
        (["list", "t"], ["tools", "templates"]),
        (["list", "tools", ""], [":files"]),
        (["list", "tools", TARGET, ""], []),
        (["call", "exam"], [":files"]),
        (["call", TARGET, ""], ["place_order", "place.it", "find"]),
        (["call", TARGET, "place_"], ["place_order"]),
        (["call", "--trace", "--timeout", "5", TARGET, "f"], ["find"]),
        (["call", "http://127.0.0.1:9/mcp", "f"], ["find"]),
        (["call", "python server.py", "f"], ["find"]),
        (["call", "examples/unknown.py", ""], []),
        (["call", TARGET, "place_order", ""], ["product=", "quantity=", "size="]),
        (["call", TARGET, "place_order", "product=x", "s"], ["size="]),
        (["call", TARGET, "place_order", "size="], ["size=small", "size=medium"]),
        (["call", TARGET, "place_order", "size=m"], ["size=medium"]),
        (["call", TARGET, "place_order", "product="], []),
        (["call", TARGET, "place_order", "product=@exa"], [":files product=@"]),
        (["call", TARGET, "--protocol-version", "2024"], ["2024-11-05"]),
        (["call", TARGET, "--cwd", ""], [":files"]),
        (["call", TARGET, "--timeout", ""], []),
        (["call", TARGET, "--tr"], ["--trace"]),
        (["call", "x", "--", ""], [":files"]),
        (["read", TARGET, "library://"], ["library://hours", "library://books"]),
        (["prompt", TARGET, ""], ["recommend"]),
        (["prompt", TARGET, "recommend", ""], ["author="]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["serve", ""], [":files"]),
        (["serve", "--transport", ""], ["stdio", "http"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("known")
def test_completion_offers_valid_words(line: list[str], offered: list[str]) -> None:
    assert complete(line) == offered


def test_every_command_can_be_completed() -> None:
    assert sorted(COMMANDS) == sorted(COMMAND_SPECS)
    others = {name for commands in PACKAGES.values() for name in commands}
    assert others == all_commands().keys() - COMMANDS.keys()


def test_servers_of_a_configuration_are_offered(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"weather": {}, "web": {}, "$(evil)": {}}}))
    assert complete(["call", f"{path}:we"]) == [f"{path}:weather", f"{path}:web"]
    path.write_text("{")
    assert complete(["call", f"{path}:we"]) == [":files"]


def test_names_with_shell_metacharacters_are_not_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    evil = [
        "$(touch x)",
        "`id`",
        "a;b",
        "a b",
        "a\nb",
        "-rf",
        "a'b",
        'a"b',
        "a|b",
        "a>b",
        "a&b",
        "!1",
        "",
        "x" * 300,
        "*",
    ]
    completion_cache.store_names(
        "t", "tools", {name: {} for name in evil} | {"good": dict.fromkeys([*evil, "fine"], evil)}
    )
    assert complete(["call", "t", ""]) == ["good"]
    assert complete(["call", "t", "good", ""]) == ["fine="]
    assert complete(["call", "t", "good", "fine="]) == []
    # Somebody else may have written the file.
    Path(completion_cache.cache_file("t")).write_text(json.dumps({"tools": {"$(id)": {}, "b": 5}, "prompts": 7}))
    assert complete(["call", "t", ""]) == ["b"]
    assert complete(["call", "t", "b", ""]) == []
    assert complete(["prompt", "t", ""]) == []
    for nonsense in ("[", "5", "[" * 100_000, ""):
        Path(completion_cache.cache_file("t")).write_text(nonsense)
        assert complete(["call", "t", ""]) == []


def test_completion_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for number in range(completion_cache.MAX_TARGETS + 5):
        completion_cache.store_names(f"target {number}", "tools", {"t": {}})
        os.utime(completion_cache.cache_file(f"target {number}"), (number, number))
    assert len(os.listdir(tmp_path / "portico" / "names")) == completion_cache.MAX_TARGETS
    assert completion_cache.load_names("target 0") == {}
    assert completion_cache.load_names(f"target {completion_cache.MAX_TARGETS + 4}") == {"tools": {"t": {}}}
    many = {f"t{number}": {f"a{other}": [] for other in range(200)} for number in range(2000)}
    completion_cache.store_names("large", "tools", many)
    assert os.path.getsize(completion_cache.cache_file("large")) < completion_cache.MAX_FILE_BYTES
    assert len(completion_cache.load_names("large")["tools"]) == completion_cache.MAX_NAMES


def test_cache_that_cannot_be_written_is_no_mistake(portico: Portico, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = portico("list", "tools", "examples/hello.py", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (0, "")


def test_caching_prompts_keeps_cached_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    completion_cache.store_names("t", "tools", {"a": {}})
    completion_cache.store_names("t", "prompts", {"b": {}})
    assert completion_cache.load_names("t") == {"tools": {"a": {}}, "prompts": {"b": {}}}


def test_path_means_another_server_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = completion_cache.cache_file("server.py"), completion_cache.cache_file("https://host/mcp")
    monkeypatch.chdir(tmp_path)
    assert completion_cache.cache_file("server.py") != here[0]
    assert completion_cache.cache_file("https://host/mcp") == here[1]


# In the shells themselves


def prepared(portico: Portico) -> None:
    """As a user would: what has been listed is known."""
    assert portico("list", "tools", TARGET).returncode == 0
    assert portico("list", "resources", "examples/library.py").returncode == 0


BASH = """
eval "$(portico completion bash)"
offer() {
    COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
    compopt() { opts+=" $*"; }
    opts=""
    _portico portico "${1##*=}"
    printf '%s\\n' "${COMPREPLY[@]}" "$opts"
}
"""


@pytest.mark.parametrize(
    "line, offered, options",
    [
        ("portico li", ["list"], ""),
        (f"portico call {TARGET} ", ["place_order", "catalogue.prices", "find_order"], ""),
        (f"portico call {TARGET} place_order q", ["quantity="], "-o nospace"),
        # bash begins a new word behind = and : and replaces only that.
        (f"portico call {TARGET} place_order size=m", ["medium"], ""),
        (f"portico call {TARGET} place_order size=", ["small", "medium", "large"], ""),
        (f"portico call {TARGET} place_order 'size=m", ["size=medium"], ""),
        (f'portico call "{TARGET}" find_', ["find_order"], ""),
        ("portico read examples/library.py library://h", ["//hours"], ""),
        ("portico call exam", [], "-o default"),
        (f"portico call {TARGET} place_order product=@READ", ["@README.md"], ""),
        (f"portico call {TARGET} place_order product=@examp", ["@examples/"], "-o nospace"),
    ],
)
def test_bash_completion_matches_the_typed_words(
    portico: Portico, surroundings: dict[str, str], shell: Any, line: str, offered: list[str], options: str
) -> None:
    prepared(portico)
    done = subprocess.run(
        [shell("bash"), "--norc", "-c", f'{BASH}\noffer "$1"', "bash", line],
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.stderr == ""
    *words, message = done.stdout.splitlines()
    assert ([word for word in words if word], message.strip()) == (offered, options)


SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(portico completion bash)"; PS1="re""ady> "\n'),
    "zsh": (["-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(portico completion zsh)"; PS1="re""ady> "\n'),
    "fish": (
        ["--no-config", "-i"],
        'portico completion fish | source; function fish_prompt; echo "re""ady> "; end; set fish_greeting; clear\n',
    ),
}


@pytest.mark.parametrize("name", list(SHELLS))
def test_line_is_completed_and_run(terminal: Any, portico: Portico, shell: Any, name: str, tmp_path: Path) -> None:
    """Tool, argument and value, each with one TAB; then it is called."""
    assert portico("list", "tools", TARGET).returncode == 0
    options, setting = SHELLS[name]
    seen = terminal(program=[shell(name), *options], HOME=str(tmp_path), TMPDIR=str(tmp_path))
    seen.type(setting)
    seen.wait_for("ready> ")
    seen.type(f"portico call {TARGET} place_\t")
    seen.wait_for("order ")
    seen.type("product=scarf quan\t")
    seen.wait_for("tity=")
    seen.type("2 siz\t")
    seen.wait_for("e=")
    seen.type("med\t")
    seen.wait_for("ium ")
    seen.type("address.street=a address.city=b --format table\r")
    seen.wait_for('"total": 25.0')
    seen.type("exit\r")
    assert seen.end() == 0


@pytest.mark.parametrize("name", list(SHELLS))
def test_files_are_completed_where_a_target_stands(
    terminal: Any, portico: Portico, shell: Any, name: str, tmp_path: Path
) -> None:
    options, setting = SHELLS[name]
    (tmp_path / "arguments.json").write_text('{"name": "Ada"}')
    seen = terminal(program=[shell(name), *options], HOME=str(tmp_path), TMPDIR=str(tmp_path))
    seen.type(setting)
    seen.wait_for("ready> ")
    seen.type("portico call examples/hel\t")
    seen.wait_for("lo.py ")
    seen.type(f"greet name=@{tmp_path}/argu\t")
    seen.wait_for("ments.json ")
    seen.type("--format table\r")
    seen.wait_for('Hello, {"name": "Ada"}!')
    seen.type("exit\r")
    assert seen.end() == 0


@pytest.mark.parametrize("name", list(SHELLS))
def test_completion_script_is_valid_in_its_shell(portico: Portico, shell: Any, name: str) -> None:
    script = portico("completion", name).stdout
    done = subprocess.run([shell(name), "-n"], input=script, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_started_and_nothing_is_waited_for(portico: Portico, tmp_path: Path) -> None:
    """A target that would leave a trace, and one that would never answer."""
    trace = tmp_path / "started"
    (tmp_path / "server.py").write_text(f"open({str(trace)!r}, 'w')\n")
    for target in (f"{sys.executable} {tmp_path}/server.py", f"{tmp_path}/server.py", "http://127.0.0.1:9/mcp"):
        assert portico("complete", "words", "call", target, "").stdout == ""
    assert not trace.exists()
