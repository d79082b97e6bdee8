"""The Client for people without asyncio: the same names, each of which waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from portico._options import explained_like
from portico.client.client import Client
from portico.client.subscriptions import Change, ChangeListener
from portico.client.tasks import RemoteTask
from portico.protocol.errors import UsageError
from portico.protocol.meta import Implementation, ServerCapabilities
from portico.transports.event_loop import new_loop

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

# The questions a server may ask while the caller waits. They are answered beside the loop, which must not stand still.
_ANSWERING = ("sampling_handler", "elicitation_handler")


def _waiting(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """A method of Client or of RemoteTask that waits for its result instead of being awaited."""

    @wraps(method)
    def wait(self: SyncClient | SyncTask, /, *arguments: P.args, **options: P.kwargs) -> T:
        open_one: Any = self._open
        return self._wait(method(open_one, *arguments, **options))

    return wait


def _made(
    method: Callable[Concatenate[Client, P], T], make: Callable[[SyncClient, T], R]
) -> Callable[Concatenate[SyncClient, P], R]:
    """A method of Client whose result is made into something that waits."""

    @wraps(method)
    def call(self: SyncClient, /, *arguments: P.args, **options: P.kwargs) -> R:
        return make(self, method(self._open, *arguments, **options))

    return call


class SyncClient:
    """`with SyncClient(target) as client: client.call_tool("add", {"a": 1, "b": 2})`.

    It takes what Client takes, and may be used from several threads at once.
    """

    @explained_like(Client.__init__)
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

    def __exit__(self, *failure: object) -> None:
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

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """One by one, each when it is asked for."""
        while True:
            try:
                yield self._wait(_next(source))
            except StopAsyncIteration:
                return

    # The same names, typed like those of Client

    @property
    def revision(self) -> str:
        return self._open.revision

    @property
    def missing_servers(self) -> dict[str, str]:
        return self._open.missing_servers

    @property
    def server_info(self) -> Implementation | None:
        return self._open.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        return self._open.server_capabilities

    @property
    def instructions(self) -> str | None:
        return self._open.instructions

    request = _waiting(Client.request)
    notify = _waiting(Client.notify)
    ping = _waiting(Client.ping)
    call_tool = _waiting(Client.call_tool)
    list_tools = _waiting(Client.list_tools)
    list_resources = _waiting(Client.list_resources)
    list_resource_templates = _waiting(Client.list_resource_templates)
    list_prompts = _waiting(Client.list_prompts)
    iter_tools = _made(Client.iter_tools, _iterate)
    iter_resources = _made(Client.iter_resources, _iterate)
    iter_resource_templates = _made(Client.iter_resource_templates, _iterate)
    iter_prompts = _made(Client.iter_prompts, _iterate)
    read_resource = _waiting(Client.read_resource)
    get_prompt = _waiting(Client.get_prompt)
    complete = _waiting(Client.complete)
    set_log_level = _waiting(Client.set_log_level)
    subscribe = _waiting(Client.subscribe)
    unsubscribe = _waiting(Client.unsubscribe)

    start_task = _made(Client.start_task, lambda client, work: SyncTask(client, client._wait(work)))
    task = _made(Client.task, lambda client, task: SyncTask(client, task))
    listen = _made(Client.listen, lambda client, listener: SyncListener(client, listener))


class SyncTask:
    """A RemoteTask that waits."""

    def __init__(self, client: SyncClient, task: RemoteTask) -> None:
        self._open, self._wait = task, client._wait

    @property
    def id(self) -> str:
        return self._open.id

    @property
    def status(self) -> str:
        return self._open.status

    @property
    def message(self) -> str | None:
        return self._open.message

    refresh = _waiting(RemoteTask.refresh)
    cancel = _waiting(RemoteTask.cancel)
    result = _waiting(RemoteTask.result)


class SyncListener:
    """A ChangeListener that waits."""

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
