"""`SyncClient`: the API of Client with blocking methods."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from portico._options import validated_kwargs_of
from portico.client.client import Client
from portico.client.subscriptions import Change, ChangeListener
from portico.client.tasks import RemoteTask
from portico.protocol.errors import UsageError
from portico.protocol.meta import Implementation, ServerCapabilities
from portico.transports.event_loop import new_event_loop

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

# Handlers that are called while the caller blocks. They run in threads so that they do not block the event loop.
_ANSWERING = ("sampling_handler", "elicitation_handler")


def _make_blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking version of an async method of Client or RemoteTask."""

    @wraps(method)
    def wait(self: SyncClient | SyncTask, /, *arguments: P.args, **options: P.kwargs) -> T:
        target: Any = self._require_open
        return self._wait(method(target, *arguments, **options))

    return wait


def _wrap_result(
    method: Callable[Concatenate[Client, P], T], make: Callable[[SyncClient, T], R]
) -> Callable[Concatenate[SyncClient, P], R]:
    """Return a method that wraps the result of a Client method in a blocking object."""

    @wraps(method)
    def call(self: SyncClient, /, *arguments: P.args, **options: P.kwargs) -> R:
        return make(self, method(self._require_open, *arguments, **options))

    return call


class SyncClient:
    """Blocking client: `with SyncClient(target) as client: client.call_tool("add", {"a": 1, "b": 2})`.

    Takes the parameters of Client and may be used from several threads concurrently.
    """

    @validated_kwargs_of(Client.__init__)
    def __init__(self, target: Any, **options: Any) -> None:
        for name in _ANSWERING:
            if options.get(name) is not None:
                options[name] = _in_thread(options[name])
        self._target, self._options = target, options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    # Opening and closing

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def connect(self) -> None:
        """Start the event loop thread and open the client."""
        # A thread of its own, because the caller may run inside an event loop (a notebook), where
        # `run_until_complete` fails.
        loop = new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=_run, args=(loop,), name="portico-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(self._make_client())
            self._wait(self._client.connect())
        # Including KeyboardInterrupt: otherwise the thread and the server process would remain.
        except BaseException:
            self.close()
            raise

    async def _make_client(self) -> Client:
        # Created on the event loop, because it creates objects that are bound to a loop.
        return Client(self._target, **self._options)

    def close(self) -> None:
        """Close the client and stop its thread."""
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
            # Otherwise Python warns that the coroutine was never awaited.
            work.close()
            raise UsageError("the client is not open: use it in a `with` block")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            # Cancelling sends the server a cancellation notification.
            future.cancel()
            raise

    def run(self, function: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function with the asynchronous Client and return its result: `sync.run(lambda client: …)`."""
        return self._wait(function(self._require_open))

    @property
    def _require_open(self) -> Client:
        if self._client is None:
            raise UsageError("the client is not open: use it in a `with` block")
        return self._client

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator, fetching each when it is needed."""
        while True:
            try:
                yield self._wait(_next_item(source))
            except StopAsyncIteration:
                return

    # The methods of Client, with the same types

    @property
    def protocol_version(self) -> str:
        return self._require_open.protocol_version

    @property
    def missing_servers(self) -> dict[str, str]:
        return self._require_open.missing_servers

    @property
    def server_info(self) -> Implementation | None:
        return self._require_open.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._require_open.server_capabilities

    @property
    def instructions(self) -> str | None:
        return self._require_open.instructions

    request = _make_blocking(Client.request)
    notify = _make_blocking(Client.notify)
    ping = _make_blocking(Client.ping)
    call_tool = _make_blocking(Client.call_tool)
    list_tools = _make_blocking(Client.list_tools)
    list_resources = _make_blocking(Client.list_resources)
    list_resource_templates = _make_blocking(Client.list_resource_templates)
    list_prompts = _make_blocking(Client.list_prompts)
    iter_tools = _wrap_result(Client.iter_tools, _iterate)
    iter_resources = _wrap_result(Client.iter_resources, _iterate)
    iter_resource_templates = _wrap_result(Client.iter_resource_templates, _iterate)
    iter_prompts = _wrap_result(Client.iter_prompts, _iterate)
    read_resource = _make_blocking(Client.read_resource)
    get_prompt = _make_blocking(Client.get_prompt)
    complete = _make_blocking(Client.complete)
    set_log_level = _make_blocking(Client.set_log_level)
    subscribe = _make_blocking(Client.subscribe)
    unsubscribe = _make_blocking(Client.unsubscribe)

    start_task = _wrap_result(Client.start_task, lambda client, work: SyncTask(client, client._wait(work)))
    task = _wrap_result(Client.task, lambda client, task: SyncTask(client, task))
    listen = _wrap_result(Client.listen, lambda client, listener: SyncListener(client, listener))


class SyncTask:
    """Blocking version of RemoteTask."""

    def __init__(self, client: SyncClient, task: RemoteTask) -> None:
        self._require_open, self._wait = task, client._wait

    @property
    def id(self) -> str:
        return self._require_open.id

    @property
    def status(self) -> str:
        return self._require_open.status

    @property
    def message(self) -> str | None:
        return self._require_open.message

    refresh = _make_blocking(RemoteTask.refresh)
    cancel = _make_blocking(RemoteTask.cancel)
    result = _make_blocking(RemoteTask.result)


class SyncListener:
    """Blocking version of ChangeListener."""

    def __init__(self, client: SyncClient, listener: ChangeListener) -> None:
        self._client = client
        self._listener = listener

    def __enter__(self) -> Self:
        self._client._wait(self._listener.__aenter__())
        return self

    def __exit__(self, *failure: object) -> None:
        self._client._wait(self._listener.close())

    def __iter__(self) -> Iterator[Change]:
        return self._client._iterate(self._listener.__aiter__())


async def _next_item(source: AsyncIterator[T]) -> T:
    return await anext(source)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _in_thread(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Run a plain function in a thread, so that it may prompt the user or call this client."""
    if inspect.iscoroutinefunction(handler):
        return handler

    @wraps(handler)
    async def answer(*arguments: Any) -> Any:
        return await asyncio.to_thread(handler, *arguments)

    return answer
