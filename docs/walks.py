"""Write the walks in docs/explanation/architecture.md: the functions that one call enters, from a profile.

`python docs/walks.py` rewrites them; a test compares the page with a fresh profile.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import portico
import portico_gateway
from portico import Client, Server
from portico.protocol import jsonrpc
from portico.rpc.call import Reply
from portico.rpc.dispatcher import Dispatcher
from portico.server.http import build_application
from portico.transports import stdio
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from portico_gateway import Gateway

SOURCE = str(Path(portico.__file__).parent) + os.sep
GATEWAY_SOURCE = str(Path(portico_gateway.__file__).parent.parent) + os.sep
PAGE = Path(__file__).parent / "explanation" / "architecture.md"
# Enough for the ids of requests to have as many digits as in the last one.
WARM_UP = 12
PATIENCE_SECONDS = 10.0


def server() -> Server:
    made = Server("walk", version="1.0.0")

    @made.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return made


def message(id: int, tool: str = "add") -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": {"a": 1, "b": 2}, "_meta": meta}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


class Profile:
    """The functions of ours that were entered or resumed in this thread, in their order."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []

    @contextmanager
    def on(self) -> Iterator[None]:
        def hook(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith((SOURCE, GATEWAY_SOURCE)):
                self.codes.append(frame.f_code)

        sys.setprofile(hook)
        try:
            yield
        finally:
            sys.setprofile(None)

    def lines(self) -> list[str]:
        """One line for each stay in a file: the file, and the functions in it."""
        stays: list[tuple[str, list[str]]] = []
        for code in self.codes:
            file, name = (
                code.co_filename.removeprefix(SOURCE).removeprefix(GATEWAY_SOURCE).replace(os.sep, "/"),
                code.co_name,
            )
            if name.startswith("<"):
                continue
            if stays and stays[-1][0] == file:
                stays[-1][1].append(name)
            else:
                stays.append((file, [name]))
        width = max(len(file) for file, _ in stays)
        return [f"{file:<{width}}  {', '.join(names)}" for file, names in stays]


async def profiled(ask: Callable[[int], Awaitable[Any]]) -> Profile:
    """What the last of some calls passes through: by then everything is known that is found out once."""
    for id in range(WARM_UP):
        await ask(id)
    profile = Profile()
    with profile.on():
        await ask(WARM_UP)
    return profile


async def over_stdio() -> Profile:
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    serving = asyncio.ensure_future(stdio.serve(server(), their_in, their_out))
    reader = asyncio.StreamReader()
    pipe = os.fdopen(our_in, "rb", 0)
    connect = asyncio.get_running_loop().connect_read_pipe
    transport, _ = await connect(lambda: asyncio.StreamReaderProtocol(reader), pipe)

    async def ask(id: int) -> None:
        os.write(our_out, message(id) + b"\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.readline()

    try:
        return await profiled(ask)
    finally:
        os.close(our_out)
        await serving
        transport.close()


async def over_http() -> Profile:
    listener = Listener(build_application(server(), HttpServerSettings()))
    ((host, port), *_) = await listener.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)

    async def ask(id: int) -> None:
        body = message(id)
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
            f"mcp-method: tools/call\r\nmcp-name: add\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"content-length: (\d+)", answer)[1]))  # type: ignore[index]

    try:
        return await profiled(ask)
    finally:
        writer.close()
        await listener.stop(0)


@asynccontextmanager
async def served_in_a_thread() -> AsyncIterator[str]:
    """Serve over HTTP in another thread, which the profile does not cover; yields the URL."""
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    here, over = asyncio.get_running_loop(), asyncio.Event()
    there: list[Any] = []

    async def serve() -> None:
        listener, stop = Listener(build_application(server(), HttpServerSettings())), asyncio.Event()
        ((_, port), *_) = await listener.listen("127.0.0.1", 0)
        there.extend([asyncio.get_running_loop(), stop])
        here.call_soon_threadsafe(started.set_result, port)
        await stop.wait()
        await listener.stop(0)
        here.call_soon_threadsafe(over.set)

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    port = await started
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        there[0].call_soon_threadsafe(there[1].set)
        await over.wait()


async def of_a_client() -> Profile:
    async with served_in_a_thread() as url, Client(url) as client:
        await client.list_tools()
        return await profiled(lambda id: client.call_tool("add", {"a": id, "b": 1}))


async def of_a_gateway() -> Profile:
    """From the dispatcher of the gateway to its HTTP connection to the upstream, and back."""
    async with served_in_a_thread() as url:
        gateway = Gateway({"up": url})
        async with gateway.lifespan():
            await gateway.list_tools()
            answered = asyncio.Event()

            class GatewayReply(Reply):
                def finish(self, message: bytes | None) -> None:
                    answered.set()

            door = Dispatcher(gateway)

            async def ask(id: int) -> None:
                answered.clear()
                frame = jsonrpc.decode_message(message(id, "up_add"))
                assert door.dispatch(frame, GatewayReply(), modern=True) is None
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await answered.wait()

            return await profiled(ask)


WALKS = {"stdio": over_stdio, "http": over_http, "client": of_a_client, "gateway": of_a_gateway}


async def walks() -> dict[str, list[str]]:
    return {name: (await walk()).lines() for name, walk in WALKS.items()}


def written(page: str) -> dict[str, list[str]]:
    """The walks that stand in the page."""
    matches = re.findall(r"<!-- walk: (\w+) -->\n```\n(.*?)```", page, re.DOTALL)
    return {name: block.splitlines() for name, block in matches}


def main() -> None:
    page = PAGE.read_text()
    for name, lines in asyncio.run(walks()).items():
        block = "\n".join([f"<!-- walk: {name} -->", "```", *lines, "```"])
        page = re.sub(rf"<!-- walk: {name} -->\n```\n.*?```", lambda _, block=block: block, page, flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
