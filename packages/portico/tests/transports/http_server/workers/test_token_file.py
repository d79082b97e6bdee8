"""A token removed from its file, with several workers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from portico import Server
from portico.auth import Principal, ResourceServer
from portico.auth.verifiers.token_file import ISSUER
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import HttpRequest
from support.worker_processes import HttpConnection, Session


def tokens(*words: str | Path) -> str:
    """What `portico tokens …` prints."""
    command = [sys.executable, "-m", "portico", "tokens", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


async def test_removing_a_token_ends_its_streams_in_all_workers(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    ada, bob = [await asyncio.to_thread(tokens, "add", name, "--file", file) for name in ("ada", "bob")]
    fleet = await serve("--workers", "2", "--token-file", file)
    result = HttpConnection.stand_alone("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    lines: dict[str, list[HttpConnection]] = {ada: [], bob: []}
    for token in (ada, bob):
        # By as many connections that both workers have some.
        for _ in range(6):
            session = Session(fleet.port)
            session.fields["authorization"] = f"Bearer {token}"
            await session.begin()
            by_get, modern = await HttpConnection.to(fleet.port), await HttpConnection.to(fleet.port)
            await by_get.send("GET", **session.fields)
            await modern.send("POST", **result, authorization=f"Bearer {token}")
            lines[token] += [by_get, modern]
        for line in lines[token]:
            assert (await line.head())[0] == 200
    await asyncio.to_thread(tokens, "remove", "ada", "--file", file)
    for line in lines[ada]:
        while await line.chunk():
            pass
    # Those of another person go on: they still wait for what is said next.
    rest = [asyncio.ensure_future(last_chunk(line)) for line in lines[bob]]
    assert not (await asyncio.wait(rest, timeout=1.0))[0]
    for line in rest:
        line.cancel()
    for line in (*lines[ada], *lines[bob]):
        await line.close()


async def test_forwarded_request_with_revoked_token_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent on to us, and while it was under way the token was removed."""
    monkeypatch.setattr("portico.auth.verifiers.token_file.RELOAD_INTERVAL_SECONDS", 0.0)
    file = tmp_path / "tokens.toml"
    await asyncio.to_thread(tokens, "add", "ada", "--file", file)
    server = Server("one", auth=ResourceServer(token_file=file))
    exchange = server.http_app().application
    answers: list[Any] = []
    request = HttpRequest("GET", "/metrics", "", Headers())
    for issuer, status in ((ISSUER, 200), ("https://elsewhere.example", 200)):
        request.principal = Principal("ada", issuer=issuer)
        exchange.handle_forwarded(request, Mock(respond=answers.append))
        assert answers.pop().status == status
    await asyncio.to_thread(file.write_text, "")
    request.principal = Principal("ada", issuer=ISSUER)
    exchange.handle_forwarded(request, Mock(respond=answers.append))
    assert answers.pop().status == 401


async def last_chunk(line: HttpConnection) -> None:
    while await line.chunk():
        pass
