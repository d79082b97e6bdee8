"""Strict mode: a worker that runs code in CPython compiled to WebAssembly, without access to the system.

This is the program of such a worker. It needs `pyeryx` (Python 3.12 or newer) in addition to the standard library. The
interpreter's modules are passed in as source and run inside; only JSON replies and output come out.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from importlib import import_module
from json import dumps, loads
from pathlib import Path
from typing import Any, NoReturn

from portico_services.livepython.sandbox import framing

REQUESTS_FD, REPLIES_FD = 0, 1

# Modules to load inside, in order of dependency.
_GUEST_MODULES = (
    "limits", "display", "name_resolution", "project_imports", "introspection", "source_tracking", "method_patches",
    "session_pickle", "interpreter", "wasm_guest",
)  # fmt: skip

_LOADER = """
import sys, types
def load(name, text):
    module = types.ModuleType(name)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(text, f"<{name}>", "exec"), vars(module))
for name in ("portico_services", "portico_services.livepython", "portico_services.livepython.sandbox"):
    load(name, "")
"""

_ANSWER = "import sys; __answer__ = sys.modules['portico_services.livepython.sandbox.wasm_guest'].handle_request({!r})"


class WasmInterpreter:
    """An interpreter in WebAssembly; its output is forwarded to the server."""

    def __init__(self, limits: dict[str, int]) -> None:
        eryx: Any = import_module("eryx")  # only this program needs it

        self.asked = framing.READY_ID
        self._session: Any = eryx.Session(
            result_variable="__answer__", on_stdout=self._print, on_stderr=self._print, network=None
        )
        self._failures: tuple[type[BaseException], ...] = (eryx.EryxError,)
        self._session.execute(_LOADER)
        for name in _GUEST_MODULES:
            text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
            self._session.execute(f"load('portico_services.livepython.sandbox.{name}', {text!r})")
        self._session.execute(
            f"sys.modules['portico_services.livepython.sandbox.wasm_guest'].start({dumps(limits)!r}); del load"
        )

    def _print(self, data: bytes) -> None:
        send_message(self.asked, "output", data.decode("utf-8", "replace"))

    def handle(self, request: dict[str, Any]) -> None:
        self.asked = request["id"]
        try:
            answer = self._session.execute(_ANSWER.format(dumps(request))).result
        except self._failures:
            # A trap: the instance cannot be entered again, and its names cannot be saved.
            os._exit(framing.EXIT_INTERPRETER_BROKEN)
        member, value = loads(answer)
        send_message(self.asked, member, value)


def send_message(id: int, member: str, value: Any) -> None:
    framing.write_frame(REPLIES_FD, framing.encode_json({"id": id, member: value}))


def main() -> NoReturn:
    """Read the limits, then requests, from standard input. A reader thread notices when the server has gone."""
    limits = loads(framing.read_frame(REQUESTS_FD) or b"{}")
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        while (frame := framing.read_frame(REQUESTS_FD)) is not None:
            requests.put(loads(frame))
        os._exit(0)

    # The main thread may be inside WebAssembly for as long as code runs; only a second one can see the end of the
    # input.
    threading.Thread(target=read, daemon=True).start()
    try:
        sandbox = WasmInterpreter(limits)
    except ImportError:
        send_message(
            framing.READY_ID,
            "refusal",
            "sandbox = 'wasm' needs the package pyeryx, which is not installed for Python "
            f"{sys.version_info.major}.{sys.version_info.minor}: install it for Python 3.12 or newer, and pass that "
            "interpreter as python=",
        )
        os._exit(framing.EXIT_INTERPRETER_BROKEN)
    send_message(framing.READY_ID, "result", {})
    while True:
        sandbox.handle(requests.get())
