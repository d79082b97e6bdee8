"""`pip install portico`, and no extra: the wheel in an empty environment. What it offers works, or says which extra it
needs; and it starts without a warning. Installed where CI is set, or with PLAIN_INSTALL=1."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment that has the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("plain")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _do([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT])
    (wheel,) = folder.glob("portico-*.whl")
    _do([sys.executable, "-m", "venv", "--without-pip", folder / "env"])
    bin = folder / "env" / "bin"
    _do([*pip, "--python", bin / "python", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel])
    return bin


def _do(command: list[str | Path]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def run(plain: Path, tmp_path: Path) -> object:
    def run(*words: str | Path, stdin: str = "", program: str = "portico", **env: str) -> tuple[int, str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        done = subprocess.run(
            [str(plain / program), *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**kept, "PATH": "/usr/bin:/bin", "PORTICO_DATA": str(tmp_path), "PYTHONWARNINGS": "error", **env},
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_services_start_without_a_word(run: object) -> None:
    status, said, err = run("serve", stdin=json.dumps(INITIALIZE) + "\n")  # type: ignore[operator]
    assert (status, err) == (0, "")
    assert json.loads(said)["result"]["serverInfo"]["name"] == "portico"


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


def test_the_banner_names_what_works_here(plain: Path, tmp_path: Path) -> None:
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
            shown = trying.read_until()
            assert trying.process.wait(60) == 0, shown
            trying.close()
            if " list " in command:
                assert "memory_recall" in shown
                assert "system_info " not in shown.replace("live_system_info", "") and "process_list" not in shown
                assert max(map(len, shown.splitlines())) <= 80
    finally:
        serving.close()


def test_every_command_can_be_loaded(run: object) -> None:
    code = (
        "from portico.cli.main import COMMANDS, HIDDEN\nfrom portico._lazy import load_module\n"
        "for entry in (COMMANDS | HIDDEN).values(): getattr(load_module(entry.module), entry.function)"
    )
    assert run("-W", "error", "-c", code, program="python") == (0, "", "")  # type: ignore[operator]


@pytest.mark.parametrize(
    "words",
    [("call", HELLO, "greet", "name=Ada"), ("inspect", HELLO), ("memory", "list"), ("tasks", "list"), ("doctor",)],
)
def test_what_needs_no_extra_works(run: object, words: tuple[str | Path, ...]) -> None:
    status, _, err = run(*words)  # type: ignore[operator]
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    "words, extra",
    [
        (("port", HELLO), "portico[port]"),
        (("tasks", "list", "--store", "postgresql://x/y"), "portico[postgres]"),
        (("serve", "--services", "contracts"), "portico[schema]"),
        (("contracts", "lint", HELLO), "portico[schema]"),
    ],
)
def test_what_needs_one_says_which(run: object, words: tuple[str | Path, ...], extra: str) -> None:
    status, said, err = run(*words)  # type: ignore[operator]
    assert status and said == "" and extra in err and "Traceback" not in err


def test_tracing_that_is_wanted_and_not_installed_is_said_once(run: object) -> None:
    _, _, err = run("serve", HELLO, OTEL_TRACES_EXPORTER="otlp")  # type: ignore[operator]
    assert err.count("portico[otel]") == 1 and "Traceback" not in err
