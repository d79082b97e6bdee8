"""The wheels of the four packages in empty environments, without extras.

`portico` alone is an SDK with three dependencies; each of the others works beside it. What is not installed is named in
an error. Installed where CI is set, or with PLAIN_INSTALL=1.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support import sdk_alone
from support.paths import ROOT

HELLO = ROOT / "examples" / "hello.py"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "me", "version": "1"}},
}
pytestmark = pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("PLAIN_INSTALL")), reason="packages are installed where CI is set"
)


PACKAGES = ("portico", "portico-gateway", "portico-services", "portico-console")
# An environment that uv made has no pip.
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"] if find_spec("pip") else []


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of the four packages."""
    folder = tmp_path_factory.mktemp("wheels")
    projects = [ROOT / "packages" / name for name in PACKAGES]
    if _PIP:
        _do([*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, *projects])
    else:
        for project in projects:
            _do(["uv", "build", "--quiet", "--wheel", "--out-dir", folder, project])
    return folder


@pytest.fixture(scope="module")
def environment(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes an empty environment with some of the wheels, and returns its folder of commands."""

    @cache
    def make(*names: str, tools: tuple[str, ...] = ()) -> Path:
        folder = tmp_path_factory.mktemp("env")
        _do([sys.executable, "-m", "venv", "--without-pip", folder])
        files = [next(wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl")) for name in names]
        constraints = ["--constraint", ROOT / "constraints.txt"]
        python = ["--python", folder / "bin" / "python"]
        install = [*_PIP, *python, "install"] if _PIP else ["uv", "pip", "install", *python]
        _do([*install, "--quiet", *constraints, *files, *tools])
        return folder / "bin"

    return make


@pytest.fixture(scope="module")
def plain(environment: Callable[..., Path]) -> Path:
    """Return the folder of commands of an environment with the four packages."""
    return environment(*PACKAGES)


@pytest.fixture
def alone(environment: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command where `portico` is installed, and `beside` it one more package."""

    def run(*words: str | Path, stdin: str = "", beside: str = "") -> tuple[int, str, str]:
        bin = environment("portico", *([beside] if beside else []))
        return _run(bin / "portico", *words, folder=tmp_path, stdin=stdin)

    return run


def _do(command: list[str | Path]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr


def _run(program: Path, *words: str | Path, folder: Path, stdin: str = "", **env: str) -> tuple[int, str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    clean = {**kept, "PATH": "/usr/bin:/bin", "PORTICO_DATA": str(folder), "PYTHONWARNINGS": "error", **env}
    command = [str(program), *map(str, words)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, cwd=folder, env=clean)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run(plain: Path, tmp_path: Path) -> object:
    def run(*words: str | Path, stdin: str = "", program: str = "portico", **env: str) -> tuple[int, str, str]:
        return _run(plain / program, *words, folder=tmp_path, stdin=stdin, **env)

    return run


def test_sdk_has_three_dependencies(environment: Callable[..., Path]) -> None:
    (site,) = (environment("portico").parent / "lib").glob("python*/site-packages")
    installed = {path.name.partition("-")[0].lower() for path in site.glob("*.dist-info")}
    assert installed == {"portico", "msgspec", "httptools", "uvloop"}


def test_sdk_tests_pass_without_other_packages(environment: Callable[..., Path]) -> None:
    """Tests of transports and of the command line need other packages' tools, and run in the full environment only."""
    bin = environment("portico", tools=("pytest", "pytest-asyncio", "hypothesis"))
    files = sdk_alone.find_test_files()
    assert len(files) > 20
    selected = ["-m", "not integration", "-k", sdk_alone.WITHOUT_EXTRAS, "-p", "no:cacheprovider"]
    command = [bin / "python", "-m", "pytest", "--color=no", *selected, *files]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_sdk_alone_serves_and_calls(alone: Callable[..., Any]) -> None:
    status, message, err = alone("serve", HELLO, stdin=json.dumps(INITIALIZE) + "\n")
    assert (status, err) == (0, "") and json.loads(message)["result"]["serverInfo"]
    status, message, err = alone("call", HELLO, "greet", "name=Ada")
    assert (status, err) == (0, "") and "Ada" in message
    assert alone("doctor")[0] == 0
    assert alone("inspect", HELLO)[0] == 0


def test_sdk_alone_serves_over_http(environment: Callable[..., Path], tmp_path: Path) -> None:
    bin = environment("portico")
    serving = Terminal80(bin, ("portico", "serve", str(HELLO), "--port", "0"), tmp_path)
    try:
        match = re.search(r"http://\S+", serving.read_until("/mcp\n"))
        assert match is not None
        status, message, err = _run(bin / "portico", "call", match[0], "greet", "name=Ada", folder=tmp_path)
        assert (status, err) == (0, "") and "Ada" in message
    finally:
        serving.close()


@pytest.mark.parametrize(
    "words, package",
    [
        (("serve",), "services"),
        (("serve", HELLO, "--services", "memory"), "services"),
        (("serve", "gateway.toml"), "gateway"),
        (("memory", "list"), "services"),
        (("contracts", "lint", HELLO), "services"),
        (("gateway", "status"), "gateway"),
        (("console", HELLO), "console"),
    ],
)
def test_missing_package_is_named(
    alone: Callable[..., Any], tmp_path: Path, words: tuple[str | Path, ...], package: str
) -> None:
    (tmp_path / "gateway.toml").write_text(f'[upstream.hello]\ntarget = "{HELLO}"\n')
    status, message, err = alone(*words)
    assert (status, message) == (2, "") and f"pip install 'portico[{package}]'" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "package, words",
    [
        ("portico-gateway", ("gateway", "check", "gateway.toml")),
        ("portico-services", ("memory", "stats")),
        ("portico-console", ("console", "--help")),
    ],
)
def test_each_package_works_alone_with_the_sdk(
    alone: Callable[..., Any], tmp_path: Path, package: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "gateway.toml").write_text(f'[upstream.hello]\ntarget = "{HELLO}"\n')
    status, message, err = alone(*words, beside=package)
    assert (status, err) == (0, "") and message


def test_services_start_without_a_word(run: object) -> None:
    status, message, err = run("serve", stdin=json.dumps(INITIALIZE) + "\n")  # type: ignore[operator]
    assert (status, err) == (0, "")
    assert json.loads(message)["result"]["serverInfo"]["name"] == "portico"


class Terminal80:
    """A command at a terminal of 80 columns; `shown` is what it has printed."""

    def __init__(self, plain: Path, words: tuple[str, ...], folder: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        env = {**kept, "PATH": f"{plain}:/usr/bin:/bin", "PORTICO_DATA": str(folder), "TERM": "xterm"}
        self.process = subprocess.Popen(
            [str(plain / words[0]), *words[1:]], stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env
        )
        os.close(slave)
        self.shown = ""

    def read_until(self, text: str = "") -> str:
        """Read until a text is shown, or to the end."""
        deadline = time.monotonic() + 60
        while not (text and text in self.shown):
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            try:
                data = os.read(self._master, 65536) if ready else b""
            except OSError:
                data = b""  # Linux: the other side was closed
            if not data:
                break
            self.shown += data.decode().replace("\r\n", "\n")
        return self.shown

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self._master)


def test_banner_lists_available_services_and_working_commands(plain: Path, tmp_path: Path) -> None:
    """Its commands succeed, it names what needs an extra, and what they print fits the terminal."""
    serving = Terminal80(plain, ("portico", "serve", "--port", "0"), tmp_path)
    try:
        banner = serving.read_until("Console: ")
        assert "contracts: needs portico[schema]" in banner
        assert "system_info, process_list: need portico-services[system]" in banner
        commands = [line.strip() for line in banner.splitlines() if line.startswith("    portico ")]
        assert len(commands) == 2 and commands[1].endswith(" memory_status")
        for command in commands:
            trying = Terminal80(plain, tuple(command.split()), tmp_path)
            result = trying.read_until()
            assert trying.process.wait(60) == 0, result
            trying.close()
            if " list " in command:
                assert "memory_recall" in result
                assert "system_info " not in result.replace("live_system_info", "") and "process_list" not in result
                assert max(map(len, result.splitlines())) <= 80
    finally:
        serving.close()


def test_every_command_can_be_loaded(run: object) -> None:
    code = (
        "from portico.cli.commands import COMMANDS, HIDDEN_COMMANDS, plugin_commands\n"
        "from portico._lazy import load_module\n"
        "for entry in (COMMANDS | HIDDEN_COMMANDS | plugin_commands()).values():\n"
        "    getattr(load_module(entry.module), entry.function)"
    )
    assert run("-W", "error", "-c", code, program="python") == (0, "", "")  # type: ignore[operator]


@pytest.mark.parametrize(
    "words",
    [("call", HELLO, "greet", "name=Ada"), ("inspect", HELLO), ("memory", "list"), ("items", "list"), ("doctor",)],
)
def test_commands_without_extras_work(run: object, words: tuple[str | Path, ...]) -> None:
    status, _, err = run(*words)  # type: ignore[operator]
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    "words, extra",
    [
        (("port", HELLO), "portico[port]"),
        (("items", "list", "--store", "postgresql://x/y"), "portico[postgres]"),
        (("serve", "--services", "contracts"), "portico[schema]"),
        (("contracts", "lint", HELLO), "portico[schema]"),
    ],
)
def test_commands_that_need_an_extra_name_it(run: object, words: tuple[str | Path, ...], extra: str) -> None:
    status, message, err = run(*words)  # type: ignore[operator]
    assert status and message == "" and extra in err and "Traceback" not in err


def test_tracing_that_is_wanted_and_not_installed_is_reported_once(run: object) -> None:
    _, _, err = run("serve", HELLO, OTEL_TRACES_EXPORTER="otlp")  # type: ignore[operator]
    assert err.count("portico[otel]") == 1 and "Traceback" not in err
