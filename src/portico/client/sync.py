"""The Client for people without asyncio: the same names, each of which waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Raw

from portico.client.client import Client, ProgressHandler
from portico.client.listen import Change, ChangeListener
from portico.client.results import CallToolResult
from portico.client.tasks import RemoteTask
from portico.transport.loops import new_loop
from portico.wire.completion import Completion
from portico.wire.content import Contents
from portico.wire.errors import UsageError
from portico.wire.meta import Implementation, LogLevel, ServerCapabilities
from portico.wire.prompts import GetPromptResult, Prompt
from portico.wire.resources import Resource, ResourceTemplate
from portico.wire.subscriptions import Filter
from portico.wire.tools import Tool

T = TypeVar("T")

# The questions a server may ask while the caller waits. They are answered beside the loop, which must not stand still.
_ANSWERING = ("sampling_handler", "elicitation_handler")


class SyncClient:
    """`with SyncClient(target) as client: client.call_tool("add", {"a": 1, "b": 2})`.

    It takes what Client takes, and may be used from several threads at once.
    """

    def __init__(self, target: Any, **options: Any) -> None:
        for name in _ANSWERING:
            if options.get(name) is not None:
                options[name] = _aside(options[name])
        self._target, self._options = target, options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    # Opening and closing

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        loop = new_loop()
        self._loop = loop
        self._thread = threading.Thread(target=_run, args=(loop,), name="portico-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(self._make())
            self._wait(self._client.open())
        except BaseException:
            self.close()
            raise

    async def _make(self) -> Client:
        # On the loop, for it makes things that belong to one.
        return Client(self._target, **self._options)

    def close(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            if self._client is not None:
                self._wait(self._client.close())
        finally:
            self._client = self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise UsageError("the client is not open: use it inside `with`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            # The server is told that its result is no longer wanted.
            future.cancel()
            raise

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine that is given the asynchronous Client: `sync.run(lambda client: …)`."""
        return self._wait(work(self._open))

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise UsageError("the client is not open: use it inside `with`")
        return self._client

    def _each(self, source: AsyncIterator[T]) -> Iterator[T]:
        """One by one, each when it is asked for."""
        while True:
            try:
                yield self._wait(_next(source))
            except StopAsyncIteration:
                return

    # Who is there

    @property
    def revision(self) -> str:
        return self._open.revision

    @property
    def server_info(self) -> Implementation | None:
        return self._open.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._open.server_capabilities

    @property
    def instructions(self) -> str | None:
        return self._open.instructions

    # The same names

    def request(
        self, method: str, params: dict[str, Any], *, timeout: float | None = None, repeatable: bool | None = None
    ) -> Raw:
        return self._wait(self._open.request(method, params, timeout=timeout, repeatable=repeatable))

    def notify(self, method: str, params: Any = None) -> None:
        self._wait(self._open.notify(method, params))

    def ping(self) -> None:
        self._wait(self._open.ping())

    def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressHandler | None = None,
        raise_on_error: bool = True,
        returns: Any = None,
        repeatable: bool | None = None,
    ) -> CallToolResult:
        return self._wait(
            self._open.call_tool(
                name,
                arguments,
                timeout=timeout,
                on_progress=on_progress,
                raise_on_error=raise_on_error,
                returns=returns,
                repeatable=repeatable,
            )
        )

    def start_task(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> SyncTask:
        return SyncTask(self, self._wait(self._open.start_task(name, arguments, ttl=ttl, timeout=timeout)))

    def task(self, id: str, tool: str = "") -> SyncTask:
        return SyncTask(self, self._open.task(id, tool))

    def list_tools(self, *, fresh: bool = False) -> list[Tool]:
        return self._wait(self._open.list_tools(fresh=fresh))

    def list_resources(self) -> list[Resource]:
        return self._wait(self._open.list_resources())

    def list_resource_templates(self) -> list[ResourceTemplate]:
        return self._wait(self._open.list_resource_templates())

    def list_prompts(self) -> list[Prompt]:
        return self._wait(self._open.list_prompts())

    def iter_tools(self) -> Iterator[Tool]:
        return self._each(self._open.iter_tools())

    def iter_resources(self) -> Iterator[Resource]:
        return self._each(self._open.iter_resources())

    def iter_resource_templates(self) -> Iterator[ResourceTemplate]:
        return self._each(self._open.iter_resource_templates())

    def iter_prompts(self) -> Iterator[Prompt]:
        return self._each(self._open.iter_prompts())

    def read_resource(self, uri: str) -> list[Contents]:
        return self._wait(self._open.read_resource(uri))

    def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> GetPromptResult:
        return self._wait(self._open.get_prompt(name, arguments))

    def complete(
        self, ref: dict[str, str], argument: str, value: str, context: dict[str, str] | None = None
    ) -> Completion:
        return self._wait(self._open.complete(ref, argument, value, context))

    def set_log_level(self, level: LogLevel) -> None:
        self._wait(self._open.set_log_level(level))

    def subscribe(self, uri: str) -> None:
        self._wait(self._open.subscribe(uri))

    def unsubscribe(self, uri: str) -> None:
        self._wait(self._open.unsubscribe(uri))

    def listen(
        self,
        wanted: Filter | None = None,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> SyncListener:
        """`with client.listen(tools=True) as changes: for change in changes: …`."""

        async def make() -> ChangeListener:
            return self._open.listen(wanted, tools=tools, prompts=prompts, resources=resources, uris=uris)

        return SyncListener(self, self._wait(make()))


class SyncTask:
    """A Task that waits."""

    def __init__(self, client: SyncClient, task: RemoteTask) -> None:
        self._client = client
        self._task = task

    @property
    def id(self) -> str:
        return self._task.id

    @property
    def status(self) -> str:
        return self._task.status

    @property
    def message(self) -> str | None:
        return self._task.message

    def refresh(self) -> str:
        return self._client._wait(self._task.refresh())

    def cancel(self) -> None:
        self._client._wait(self._task.cancel())

    def result(
        self, *, timeout: float | None = None, returns: Any = None, raise_on_error: bool = True
    ) -> CallToolResult:
        return self._client._wait(self._task.result(timeout=timeout, returns=returns, raise_on_error=raise_on_error))


class SyncListener:
    """A ChangeListener that waits."""

    def __init__(self, client: SyncClient, listener: ChangeListener) -> None:
        self._client = client
        self._listener = listener

    def __enter__(self) -> Self:
        self._client._wait(self._listener.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client._wait(self._listener.close())

    def __iter__(self) -> Iterator[Change]:
        return self._client._each(self._listener.__aiter__())


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _aside(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function in a thread: it may ask the user, or call this very client."""
    if inspect.iscoroutinefunction(handler):
        return handler

    @wraps(handler)
    async def answer(*arguments: Any) -> Any:
        return await asyncio.to_thread(handler, *arguments)

    return answer
