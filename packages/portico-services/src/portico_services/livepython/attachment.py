"""Live Python for a running application: the process serves its own objects."""

from __future__ import annotations

import asyncio
import ctypes
import platform
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any, Generic, Self, TypeVar

from msgspec import Raw

from portico import Server, UsageError
from portico.extend import is_loopback, serve_http
from portico_services.livepython.sandbox.framing import encode_json
from portico_services.livepython.sandbox.interpreter import Interpreter
from portico_services.livepython.sandbox.name_resolution import InspectionError, NameNotFound
from portico_services.livepython.sandbox.worker import INTERRUPT_GRACE_SECONDS, INTERRUPT_INTERVAL_SECONDS, WorkerReply
from portico_services.livepython.service import DEFAULT_TOOLS, METHOD_PATCH_TOOLS, LivePython
from portico_services.livepython.session_pool import DEFAULT_SESSION, SessionInfo, SessionKey

WAIT_SECONDS = 10.0

T = TypeVar("T")


class InterruptibleThread(Generic[T]):
    """Thread whose work can be interrupted. `done` resolves to the result, or to None if the work was interrupted.

    Python raises KeyboardInterrupt in the thread when it next executes bytecode: a loop is stopped, but a blocking C
    call only after it returns. The thread runs nothing else that the exception could hit.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[T | None] = self._loop.create_future()
        self._outcome: T | None = None
        # Held while the thread is interrupted: if the thread ended in between, its identifier could be reused by
        # another.
        self._fence = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="portico-attached", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            try:
                self._outcome = self._work()
            finally:
                self._mark_ended()
        except KeyboardInterrupt:
            self._mark_ended()

    def _mark_ended(self) -> None:
        with self._fence:
            self._is_closed = True
        try:
            self._loop.call_soon_threadsafe(self._publish_outcome)
        except RuntimeError:
            pass  # the event loop is closed, so no caller is waiting

    def _publish_outcome(self) -> None:
        if not self.done.done():
            self.done.set_result(self._outcome)

    def interrupt(self, wake: Callable[[], None], waited: float = 0.0) -> None:
        """Raise KeyboardInterrupt in the thread, repeatedly for a grace period since the code may catch the first one.

        `wake` ends a sleep that the thread is blocked in.
        """
        # After the grace period the thread is left alone: an exception at an arbitrary later point could hit code
        # that has recovered.
        if self.done.done() or waited >= INTERRUPT_GRACE_SECONDS:
            return
        self._raise_in_thread()
        wake()
        self._loop.call_later(INTERRUPT_INTERVAL_SECONDS, self.interrupt, wake, waited + INTERRUPT_INTERVAL_SECONDS)

    def _raise_in_thread(self) -> None:
        with self._fence:
            if not self._is_closed and self._thread.ident is not None:
                number = ctypes.c_ulong(self._thread.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(KeyboardInterrupt))


class AttachedInterpreter:
    """The single session of a process that serves itself. It cannot be ended: it is the application."""

    def __init__(self, namespace: dict[str, Any], *, evaluate: bool) -> None:
        self._image = Interpreter(namespace, runs=evaluate, alone=False)
        self._lock = asyncio.Lock()
        self._used_at = time.monotonic()
        # Stays set after the caller stops waiting, since the thread may still be running.
        self._running: InterruptibleThread[WorkerReply] | None = None

    @property
    def _busy(self) -> bool:
        return self._running is not None and not self._running.done.done()

    async def open(self) -> None:
        """Do nothing: the application is already running."""

    async def ready(self) -> None:
        """Return immediately: the application is always ready."""

    async def close(self) -> None:
        """Close the event loop that awaited code ran on. The application itself continues."""
        if not self._busy:
            await asyncio.to_thread(self._image.close)

    async def request(self, key: SessionKey, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        if key[1] != DEFAULT_SESSION:
            raise InspectionError(f"The only session is {DEFAULT_SESSION!r}: the application itself.")
        if op == "evaluate" and not self._image.runs:
            raise InspectionError("Evaluation is disabled in this application.")
        # One operation at a time: code and introspection share the application's namespace.
        async with self._lock:
            if self._running is not None and not await _finishes_within(self._running, INTERRUPT_GRACE_SECONDS):
                raise InspectionError("The application is still busy with an earlier request.")
            self._running = InterruptibleThread(lambda: self._handle(op, arguments))
            try:
                return await self._outcome(self._running, seconds)
            except asyncio.CancelledError:
                self._running.interrupt(self._image.interrupt_sleep)
                raise
            finally:
                self._used_at = time.monotonic()

    async def _outcome(self, running: InterruptibleThread[WorkerReply], seconds: float) -> WorkerReply:
        late = not await _finishes_within(running, seconds)
        if late:
            running.interrupt(self._image.interrupt_sleep)
            if not await _finishes_within(running, INTERRUPT_GRACE_SECONDS):
                raise InspectionError(
                    f"It did not finish within {seconds:g} s. It keeps running until it can be interrupted: an "
                    "application cannot be ended from inside."
                )
        # The result is None if KeyboardInterrupt ended the work before it produced a reply.
        answer = running.done.result() or WorkerReply(refusal="KeyboardInterrupt")
        answer.interrupted = late and answer.refusal is not None
        return answer

    def _handle(self, op: str, arguments: Mapping[str, Any]) -> WorkerReply:
        try:
            return WorkerReply(Raw(encode_json(self._image.handle(op, arguments))))
        except InspectionError as refusal:
            return WorkerReply(refusal=str(refusal), missing=isinstance(refusal, NameNotFound))

    def sessions(self, owner: str | None) -> list[SessionInfo]:
        idle = round(time.monotonic() - self._used_at, 1)
        return [SessionInfo(DEFAULT_SESSION, self._image.evaluations, self._busy, idle)]

    def reset(self, key: SessionKey) -> bool:
        return False

    def info(self) -> dict[str, Any]:
        return {"python": platform.python_version(), "mostSessions": 1}


async def _finishes_within(running: InterruptibleThread[Any], seconds: float) -> bool:
    """Return whether the work ends within `seconds`. Cancelling the caller does not cancel the work."""
    await asyncio.wait([running.done], timeout=seconds)
    return running.done.done()


class AttachedPython(LivePython):
    """Service that exposes the objects of a namespace, added to a server that this process runs.

    Access is read-only unless `evaluate` is set. With `evaluate`, every client can do whatever the application can.
    """

    def __init__(
        self,
        namespace: dict[str, Any] | ModuleType,
        *,
        evaluate: bool = False,
        timeout: float = 10.0,
        max_timeout: float = 60.0,
    ) -> None:
        # The dictionary itself and not a copy: clients see the names as they change.
        names = vars(namespace) if isinstance(namespace, ModuleType) else namespace
        self._start("the application itself", AttachedInterpreter(names, evaluate=evaluate), timeout, max_timeout)
        self._evaluates = evaluate

    def _tool_names(self) -> Sequence[str]:
        # The application is the only session, so tools that manage sessions are left out.
        looking = [name for name in DEFAULT_TOOLS if name not in ("evaluate", "list_sessions", "reset_session")]
        return ["evaluate", *looking, *METHOD_PATCH_TOOLS] if self._evaluates else looking


class AttachServer:
    """Server inside an application, in a dedicated thread. Clients connect with `url` and `token`."""

    def __init__(self, server: Server, address: tuple[str, int], token: str) -> None:
        self.url = ""
        self.token = token
        self._server = server
        self._address = address
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="portico-attach", daemon=True)
        self._thread.start()
        # Wait until the port is bound, so that `url` is set and a failure to bind is raised in the caller.
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
        host, port = self._address
        await serve_http(self._server, host=host, port=port, token=self.token, on_ready=self._ready, stop=self._stop)

    def _ready(self, url: str) -> None:
        self.url = url
        self._up.set()

    def close(self) -> None:
        """Stop serving. The application continues."""
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
) -> AttachServer:
    """Serve the live objects of this process over HTTP on a loopback address, from a background thread.

    `evaluate` allows clients to run code. Every user of the machine can reach the address, so a token is required;
    without `token` a random one is generated. Raises UsageError if `host` is not a loopback address.
    """
    # The token travels in clear text, and with `evaluate` it gives full control over the application.
    if not is_loopback(host):
        raise UsageError(
            f"host must be a loopback address, got {host}: an application is only served to its own machine"
        )
    server = Server(name, version=f"{sys.version_info.major}.{sys.version_info.minor}")
    server.add(AttachedPython(namespace, evaluate=evaluate))
    # 32 random bytes: other users of the machine can reach the port and could try tokens.
    return AttachServer(server, (host, port), token or secrets.token_hex(32))
