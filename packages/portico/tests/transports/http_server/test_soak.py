"""Calls of every kind, side by side over twenty connections that are kept: each answer holds its own, and not a byte
of another. The bodies speak after they have answered, after their time, and after they were left."""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from portico import Context, Server
from support import debian, nginx
from support.storm import times

from .conftest import TIMEOUT_SECONDS, Raw, Session, Site, call_message, until

CONNECTIONS = 20
CALLS = times(400, 20_000)
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
MARK = re.compile(rb"<\d+>")
# How long bodies go on after the end, in seconds: long enough for other calls to be in the middle of their answers.
AFTERWARDS = (0.0, 0.001, 0.005, 0.02)
LIMIT_SECONDS = 0.01

KINDS = ("plain", "talk", "late", "late_talk", "overdue", "stubborn", "left")
# Those that are left by the client before they have answered.
LEFT = ("stubborn", "left")


class Bodies:
    """Tools that say their mark in all that they say. `said` counts what they say when it is too late."""

    def __init__(self) -> None:
        self.said: Counter[str] = Counter()
        self._errands: set[asyncio.Task[None]] = set()
        self._threads: set[int] = set()
        self.server = Server("soak", version="1")
        for tool in (self.talk, self.late, self.late_talk, self.stubborn, self.left):
            self.server.tool(tool)
        self.server.tool(run_in_thread=False)(self.plain)
        self.server.tool(timeout=LIMIT_SECONDS)(self.overdue)

    def plain(self, mark: str) -> str:
        return mark

    async def talk(self, mark: str, ctx: Context) -> str:
        for number in range(3):
            await ctx.report_progress(number + 1, None, mark)
            await ctx.info(mark)
            await asyncio.sleep(0)
        return mark

    async def late(self, mark: str, ctx: Context) -> str:
        self._later(mark, ctx, "late")
        return mark

    async def late_talk(self, mark: str, ctx: Context) -> str:
        await ctx.report_progress(1, None, mark)
        self._later(mark, ctx, "late_talk")
        return mark

    def overdue(self, mark: str, ctx: Context) -> str:
        self._threads.add(threading.get_ident())
        try:
            time.sleep(LIMIT_SECONDS * 3)
            ctx.report_progress(2, None, mark)
            ctx.error(mark)
            self.said["overdue"] += 1
        finally:
            self._threads.discard(threading.get_ident())
        return mark

    async def stubborn(self, mark: str, ctx: Context) -> str:
        """Does not take its cancellation for an answer."""
        await ctx.report_progress(1, None, mark)
        try:
            await asyncio.sleep(TIMEOUT_SECONDS)
        except asyncio.CancelledError:
            await self._speak(mark, ctx, "stubborn")
        return mark

    async def left(self, mark: str, ctx: Context) -> str:
        """Leaves somebody behind who speaks."""
        await ctx.report_progress(1, None, mark)
        self._later(mark, ctx, "left")
        await asyncio.sleep(0.002)
        return mark

    def _later(self, mark: str, ctx: Context, kind: str) -> None:
        task = asyncio.get_running_loop().create_task(self._speak(mark, ctx, kind))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _speak(self, mark: str, ctx: Context, kind: str) -> None:
        for number, pause in enumerate(AFTERWARDS):
            await asyncio.sleep(pause)
            await ctx.report_progress(number + 10, None, mark)
            await ctx.error(mark)
        self.said[kind] += 1

    @property
    def silent(self) -> bool:
        return not self._errands and not self._threads


# A client


class Caller:
    """One connection that is kept as long as it can be, and the calls on it: alone, or in a session of its own."""

    def __init__(self, number: int, site: Site, session: Session) -> None:
        self.number = number
        self.site, self.session = site, session
        self.answered: Counter[str] = Counter()
        self._choice = random.Random(number)
        self._raw: Raw | None = None

    async def run(self, calls: int) -> None:
        for item in range(calls):
            kind = KINDS[(self.number + item) % len(KINDS)]
            if self._raw is None:
                self._raw = await self.site.connect()
            id = self.number * 1_000_000 + item
            self._raw.send(self._request(kind, id))
            await (self._leave(self._raw, id) if kind in LEFT else self._hear(self._raw, kind, id))
            self.answered[kind] += 1

    def _request(self, kind: str, id: int) -> bytes:
        arguments, meta = {"mark": f"<{id}>"}, {"progressToken": f"<{id}>"}
        if self._choice.random() < 0.5:
            modern = {**meta, "io.modelcontextprotocol/logLevel": "debug"}
            return self.site.modern_bytes("tools/call", {"name": kind, "arguments": arguments}, id=id, meta=modern)
        fields, body = self.session._posted(call_message(kind, arguments, id=id, meta=meta), None)
        return self.site.bytes("POST", "/mcp", fields, body)

    async def _hear(self, raw: Raw, kind: str, id: int) -> None:
        response = await raw.response()
        assert response.status == 200, response
        *notices, answer = response.messages
        assert answer["id"] == id
        assert answer["result"]["isError"] == (kind == "overdue")
        assert all(_about(notice) == f"<{id}>" for notice in notices)
        _only(id, response.body)
        if kind == "talk":
            assert len(notices) == 6

    async def _leave(self, raw: Raw, id: int) -> None:
        """Go away in the middle; what was heard so far is one's own."""
        self._raw = None
        if self._choice.random() < 0.7:
            await raw.read_head()
            _only(id, await raw.chunk() or b"")
        raw.abort()


def _about(notice: dict[str, Any]) -> str:
    params = notice["params"]
    return str(params["data"] if notice["method"] == "notifications/message" else params["progressToken"])


def _only(id: int, said: bytes) -> None:
    assert set(MARK.findall(said)) <= {b"<%d>" % id}


async def soak(bodies: Bodies, site: Site) -> None:
    sessions = [await site.initialize(REVISIONS[number % len(REVISIONS)]) for number in range(CONNECTIONS)]
    callers = [Caller(number, site, session) for number, session in enumerate(sessions)]
    async with asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(caller.run(CALLS // CONNECTIONS))
    assert sum((caller.answered for caller in callers), Counter()).keys() == set(KINDS)
    await until(lambda: bodies.silent)
    # Each kind that can be late has been.
    assert bodies.said.keys() == set(KINDS) - {"plain", "talk"}


# Where


@pytest.mark.requirement("logging.own-stream", "http.own-answer")
async def test_each_response_counts_its_body(serve: Callable[..., Awaitable[Any]]) -> None:
    bodies = Bodies()
    await soak(bodies, await serve(bodies.server, max_concurrent_requests_per_client=CALLS))


@pytest.mark.requirement("http.own-answer")
async def test_each_response_counts_its_body_behind_a_pooling_proxy(
    serve: Callable[..., Awaitable[Any]], at: Callable[..., Site]
) -> None:
    """Two clients of the proxy follow one another on one connection to us."""
    bodies = Bodies()
    here = await serve(bodies.server, max_concurrent_requests_per_client=CALLS)
    try:
        with nginx.in_front_of(here.port, pooled=CONNECTIONS // 2) as port:
            await soak(bodies, at(port))
    except debian.NotInstalled as why:
        debian.without(why)


@pytest.mark.requirement("http.own-answer")
async def test_each_response_counts_its_body_under_asgi(at: Callable[..., Site]) -> None:
    bodies = Bodies()
    async with under_uvicorn(bodies.server) as port:
        await soak(bodies, at(port))


@asynccontextmanager
async def under_uvicorn(server: Server) -> AsyncIterator[int]:
    """uvicorn in a thread of its own; the port that it listens on."""
    application = server.http_app(max_concurrent_requests_per_client=CALLS)
    serving = uvicorn.Server(uvicorn.Config(application, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=serving.run)
    thread.start()
    try:
        await until(lambda: serving.started or not thread.is_alive())
        yield serving.servers[0].sockets[0].getsockname()[1]
    finally:
        serving.should_exit = True
        await asyncio.to_thread(thread.join)
