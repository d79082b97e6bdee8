"""Strict mode: the same tools with code in WebAssembly."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico_services.livepython import LivePython
from portico_services.livepython.sandbox import wasm
from support.live_python import REVISION, WorkerDialog

HAS = "import sys, eryx; assert sys.version_info >= (3, 12)"
NEWER = ("python3.14", "python3.13", "python3.12")
ROOM = "import sys, venv; assert sys.version_info >= (3, 12)"


def _candidates() -> Iterator[str]:
    """On the path, and beside ours: tools that keep several Pythons keep them in one folder."""
    yield from filter(None, map(which, NEWER))
    for place in sorted(Path(sys.base_prefix).parent.glob("*/bin/python3"), reverse=True):
        yield str(place)


def _works(python: str, program: str) -> bool:
    try:
        return (
            subprocess.run([python, "-I", "-c", program], capture_output=True, check=False, timeout=60).returncode == 0
        )
    except OSError:
        return False


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has pyeryx: ours, the one that is named, or in CI one that is made for it."""
    named = os.environ.get("PORTICO_TEST_ERYX", sys.executable)
    if _works(named, HAS):
        return named
    if not os.environ.get("CI"):
        pytest.skip("no Python with pyeryx: install it with Python 3.12 or newer, and name it in PORTICO_TEST_ERYX")
    newer = next((candidate for candidate in _candidates() if _works(candidate, ROOM)), None)
    if newer is None:
        pytest.skip("pyeryx needs Python 3.12 or newer, and there is none on this machine")
    place = tmp_path_factory.mktemp("eryx")
    subprocess.run([newer, "-m", "venv", "--without-pip", str(place)], check=True, timeout=300)
    made = str(place / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made]
    subprocess.run([*pip, "install", "--quiet", "pyeryx"], check=True, timeout=600)
    return made


def test_guest_modules_load_in_order_without_the_package() -> None:
    """As text, where there is nothing of ours but what came before: here in a Python that has not got us."""
    texts = {name: Path(wasm.__file__).with_name(f"{name}.py").read_text() for name in wasm._GUEST_MODULES}
    loads = [f"load('portico_services.livepython.sandbox.{name}', {text!r})" for name, text in texts.items()]
    asks = [
        "guest = sys.modules['portico_services.livepython.sandbox.wasm_guest']; guest.start('{}')",
        "ask = lambda op, **given: guest.handle_request(guest.json.dumps({'op': op, 'arguments': given}))",
        "ask('evaluate', expression='class A:\\n    def f(self): return 1\\na = A()')",
        "ask('define_method', className='A', source='def f(self): return 2')",
        "print(ask('save', limit=10**6)); print(ask('evaluate', expression='a.f()'))",
    ]
    program = "\n".join([wasm._LOADER, *loads, *asks])
    done = subprocess.run([sys.executable, "-I", "-S", "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    saved, value = done.stdout.splitlines()
    assert '"names": ["A", "a"]' in saved
    assert '"text": "2"' in value


@pytest.fixture
async def strict(python: str) -> AsyncIterator[WorkerDialog]:
    server, live = Server("live", version="1"), LivePython(sandbox="wasm", python=python)
    server.add(live)
    async with Client(server, protocol_version=REVISION) as client:
        yield WorkerDialog(client, live)


async def test_code_runs_and_names_stay(strict: WorkerDialog) -> None:
    assert await strict.text("3 + 4") == "7"
    await strict.run("x = 5")
    result = await strict.run("print('hello'); {'x': x}")
    assert [block.text for block in result.content] == ["hello\n", "{'x': 5}"]
    assert result.structured["value"] == {"x": 5}
    assert (await strict.text("1/0")).startswith("Error: ZeroDivisionError: division by zero\n  line 1")
    assert "NameError" in await strict.text("x", session="other")
    assert "in WebAssembly" in (await strict.call("system_info")).text


async def test_introspection_requests_are_answered(strict: WorkerDialog) -> None:
    await strict.run("class A:\n    def hello(self): return 'hi'\na = A()")
    for name, arguments, words in [
        ("list_packages", {"pattern": "json"}, "standard"),
        ("list_classes", {"package": "__main__"}, '"A"'),
        ("class_details", {"className": "A"}, '"superclass":"object"'),
        ("method_source", {"className": "A", "selector": "hello"}, "def hello(self)"),
        ("search_methods", {"pattern": "hello"}, '"className":"A"'),
        ("inspect_object", {"expression": "a"}, '"type":"A"'),
        ("references_to", {"name": "A"}, "a = A()"),
    ]:
        result = await strict.call(name, **arguments)
        assert not result.is_error, result.text
        assert words in result.text
    [version] = await strict.client.read_resource("python://system/version")
    assert version.text.startswith("Python 3.")


ATTEMPTS = [
    "open('/etc/passwd').read(); 'ESC' + 'APED'",
    "import os; os.listdir('/'); 'ESC' + 'APED'",
    "open('file', 'w').write('x'); 'ESC' + 'APED'",
    "import os; 'ESC' + 'APED' if 'SECRET' in str(os.environ) else 'no'",
    "import socket; socket.create_connection(('127.0.0.1', 22)); 'ESC' + 'APED'",
    "import os; os.fork(); 'ESC' + 'APED'",
    "import subprocess; subprocess.run(['true']); 'ESC' + 'APED'",
    "import ctypes; ctypes.CDLL(None); 'ESC' + 'APED'",
    "import threading; threading.Thread(target=print).start(); 'ESC' + 'APED'",
    "import os; os.kill(1, 9); 'ESC' + 'APED'",
    "import eryx; 'ESC' + 'APED'",
    "import msgspec; 'ESC' + 'APED'",
]


async def test_sandbox_has_no_network(strict: WorkerDialog, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one session, which goes on after each of them: an interpreter in WebAssembly takes half a second to begin."""
    monkeypatch.setenv("PORTICO_TEST_SECRET", "SECRET")
    for code in ATTEMPTS:
        assert "ESCAPED" not in await strict.text(code), code
        assert await strict.text("3 + 4") == "7", code


ENDLESS = [
    ("while True: pass", 1, "did not stop"),
    ("9**9**9", 1, "did not stop"),
    ("import os; os._exit(3)", 30, "its interpreter crashed"),
    ("while True: print('x' * 10000)", 30, "printed more than"),
    ("import sys; sys.setrecursionlimit(10**8)\ndef f(): f()\nf()", 2, "was ended"),
]


async def test_endless_code_is_stopped_while_the_server_keeps_answering(strict: WorkerDialog) -> None:
    """The interpreter that answers after one of them is the one that the next of them runs in."""
    for code, timeout, reason in ENDLESS:
        running = asyncio.ensure_future(strict.run(code, timeout=timeout))
        await strict.client.ping()
        result = await running
        assert result.is_error, code
        assert reason in result.text, code
        assert await strict.text("3 + 4") == "7", code


async def test_memory_is_bounded(python: str) -> None:
    server = Server("live", version="1")
    server.add(LivePython(sandbox="wasm", python=python, memory_bytes=100 * 2**20))
    async with Client(server, protocol_version=REVISION) as client:
        talk = WorkerDialog(client, LivePython(sandbox="wasm"))
        text = await talk.text("x = [bytearray(b'x' * 10**7) for _ in range(100)]\nwhile True: pass", timeout=30)
        assert "more than 100 MiB of memory" in text or "MemoryError" in text
        assert await talk.text("3 + 4") == "7"


async def test_missing_wasm_package_is_reported(tmp_path: Path, monkeypatch: Any) -> None:
    if _works(sys.executable, HAS):
        pytest.skip("this Python has pyeryx")
    server = Server("live", version="1")
    server.add(LivePython(sandbox="wasm"))
    with pytest.raises(UsageError, match="needs the package pyeryx"):
        async with Client(server):
            pass
