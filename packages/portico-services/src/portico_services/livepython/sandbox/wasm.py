"""The strict way: a worker that runs code in CPython compiled to WebAssembly, where there is nothing to reach.

This is the program of such a worker. It needs `pyeryx` (Python 3.12 or newer) beside the standard library. The code of
the image is handed in as text and runs inside, with whatever it is given; out come words and output.
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

REQUESTS, REPLIES = 0, 1

# What goes in, in the order in which they need each other.
_INSIDE = (
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

_ANSWER = "import sys; __answer__ = sys.modules['portico_services.livepython.sandbox.wasm_guest'].answer({!r})"


class Sandbox:
    """An interpreter in WebAssembly, and who hears what it prints."""

    def __init__(self, limits: dict[str, int]) -> None:
        eryx: Any = import_module("eryx")  # only this program needs it

        self.asked = framing.READY
        self._session: Any = eryx.Session(
            result_variable="__answer__", on_stdout=self._print, on_stderr=self._print, network=None
        )
        self._failures: tuple[type[BaseException], ...] = (eryx.EryxError,)
        self._session.execute(_LOADER)
        for name in _INSIDE:
            text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
            self._session.execute(f"load('portico_services.livepython.sandbox.{name}', {text!r})")
        self._session.execute(
            f"sys.modules['portico_services.livepython.sandbox.wasm_guest'].begin({dumps(limits)!r}); del load"
        )

    def _print(self, data: bytes) -> None:
        say(self.asked, "output", data.decode("utf-8", "replace"))

    def answer(self, request: dict[str, Any]) -> None:
        self.asked = request["id"]
        try:
            said = self._session.execute(_ANSWER.format(dumps(request))).result
        except self._failures:
            # A trap: the instance cannot be entered any more, and its names cannot be saved.
            os._exit(framing.BROKEN)
        member, value = loads(said)
        say(self.asked, member, value)


def say(id: int, member: str, value: Any) -> None:
    framing.write(REPLIES, framing.encode({"id": id, member: value}))


def main() -> NoReturn:
    """Limits first, then requests, on standard input. A thread reads them, to see that the server has gone."""
    limits = loads(framing.read(REQUESTS) or b"{}")
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        while (asked := framing.read(REQUESTS)) is not None:
            requests.put(loads(asked))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    try:
        sandbox = Sandbox(limits)
    except ImportError:
        say(
            framing.READY,
            "refusal",
            f"strict mode needs the package pyeryx, and Python {sys.version_info.major}.{sys.version_info.minor} has "
            "none: install it with Python 3.12 or newer, and say which with python=",
        )
        os._exit(framing.BROKEN)
    say(framing.READY, "result", {})
    while True:
        sandbox.answer(requests.get())
