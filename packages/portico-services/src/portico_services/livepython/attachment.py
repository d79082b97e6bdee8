"""The objects of a running application, served by itself, as an image serves its own."""

from __future__ import annotations

import asyncio
import platform
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any, Self

from msgspec import Raw

from portico import Server, UsageError
from portico.extend import is_loopback, serve_http
from portico_services.livepython.attach_threads import InterruptibleThread
from portico_services.livepython.sandbox.framing import encode
from portico_services.livepython.sandbox.interpreter import Interpreter
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameNotFound
from portico_services.livepython.sandbox.worker import GRACE_SECONDS, WorkerReply
from portico_services.livepython.service import CHANGING, USUAL, Live
from portico_services.livepython.session_pool import MAIN, Key, SessionInfo

WAIT_SECONDS = 10.0


class AttachedApplication:
    """The one image of a process that serves itself. It has no jail and cannot be ended: it is the application."""

    def __init__(self, namespace: dict[str, Any], *, evaluate: bool) -> None:
        self._image = Interpreter(namespace, runs=evaluate, alone=False)
        self._lock = asyncio.Lock()
        self._used = time.monotonic()
        # Also after the caller stopped waiting for what is running.
        self._running: InterruptibleThread[WorkerReply] | None = None

    @property
    def _busy(self) -> bool:
        return self._running is not None and not self._running.done.done()

    async def open(self) -> None:
        """It is there already."""

    async def ready(self) -> None:
        """And always was."""

    async def close(self) -> None:
        """And it stays, without the loop that code awaited on."""
        if not self._busy:
            await asyncio.to_thread(self._image.close)

    async def ask(self, key: Key, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        if key[1] != MAIN:
            raise InspectionError(f"There is one session here, {MAIN!r}: the application itself.")
        if op == "evaluate" and not self._image.runs:
            raise InspectionError("Evaluating is switched off in this application.")
        async with self._lock:
            if self._running is not None and not await _ends(self._running, GRACE_SECONDS):
                raise InspectionError("The application is still busy with what it was asked before.")
            self._running = InterruptibleThread(lambda: self._answer(op, arguments))
            try:
                return await self._outcome(self._running, seconds)
            except asyncio.CancelledError:
                self._running.stop(self._image.wake)
                raise
            finally:
                self._used = time.monotonic()

    async def _outcome(self, running: InterruptibleThread[WorkerReply], seconds: float) -> WorkerReply:
        late = not await _ends(running, seconds)
        if late:
            running.stop(self._image.wake)
            if not await _ends(running, GRACE_SECONDS):
                raise InspectionError(
                    f"It did not finish within {seconds:g} s. It runs on, until it can be interrupted: an application "
                    "cannot be ended from inside."
                )
        answer = running.done.result() or WorkerReply(refusal="KeyboardInterrupt")
        answer.interrupted = late and answer.refusal is not None
        return answer

    def _answer(self, op: str, arguments: Mapping[str, Any]) -> WorkerReply:
        try:
            return WorkerReply(Raw(encode(self._image.answer(op, arguments))))
        except InspectionError as refusal:
            return WorkerReply(refusal=str(refusal), missing=isinstance(refusal, NameNotFound))

    def sessions(self, owner: str | None) -> list[SessionInfo]:
        idle = round(time.monotonic() - self._used, 1)
        return [SessionInfo(MAIN, self._image.evaluations, self._busy, idle)]

    def reset(self, key: Key) -> bool:
        return False

    def info(self) -> dict[str, Any]:
        return {"python": platform.python_version(), "mostSessions": 1}


async def _ends(running: InterruptibleThread[Any], seconds: float) -> bool:
    """Whether it ends within this time. It is not cancelled with the caller who waits."""
    await asyncio.wait([running.done], timeout=seconds)
    return running.done.done()


class Attached(Live):
    """The objects of a namespace as a service, to be added to a server that this process runs.

    Looking is all there is, unless `evaluate` is switched on: then every client can do whatever the
    application can.
    """

    def __init__(
        self,
        namespace: dict[str, Any] | ModuleType,
        *,
        evaluate: bool = False,
        timeout: float = 10.0,
        longest_timeout: float = 60.0,
    ) -> None:
        names = vars(namespace) if isinstance(namespace, ModuleType) else namespace
        self._start("the application itself", AttachedApplication(names, evaluate=evaluate), timeout, longest_timeout)
        self._evaluates = evaluate

    def _listed(self) -> Sequence[str]:
        looking = [name for name in USUAL if name not in ("evaluate", "list_sessions", "reset_session")]
        return ["evaluate", *looking, *CHANGING] if self._evaluates else looking


class Attachment:
    """A server inside an application, in a thread of its own. `url` and `token` are what a client needs."""

    def __init__(self, server: Server, place: tuple[str, int], token: str) -> None:
        self.url = ""
        self.token = token
        self._server = server
        self._place = place
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="portico-attach", daemon=True)
        self._thread.start()
        self._up.wait(WAIT_SECONDS)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._up.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        host, port = self._place
        await serve_http(self._server, host=host, port=port, token=self.token, ready=self._ready, stop=self._stop)

    def _ready(self, url: str) -> None:
        self.url = url
        self._up.set()

    def close(self) -> None:
        """Stop serving. The application goes on."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def attach(
    namespace: dict[str, Any] | ModuleType,
    *,
    evaluate: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    name: str = "application",
) -> Attachment:
    """Serve the live objects of this process over HTTP, to this machine alone, while it goes on with its work.

    Every other user of the machine can reach the address, so a token is asked for; one is made if none is given.
    """
    if not is_loopback(host):
        raise UsageError(f"{host} can be reached from other machines: an application is only served to its own")
    server = Server(name, version=f"{sys.version_info.major}.{sys.version_info.minor}")
    server.add(Attached(namespace, evaluate=evaluate))
    return Attachment(server, (host, port), token or secrets.token_hex(32))
