"""The official clients log in with a certified provider, step up, and renew tokens."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support import logins, node
from support.logins import REDIRECT_URI, MemoryTokens, Visitor, notes, served

try:
    import httpx2
    import mcp
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
except ImportError:
    pytest.skip("The peers are not installed; `make test-all` does it.", allow_module_level=True)

HERE = Path(__file__).resolve().parent
SECONDS = 60.0


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with logins.provider(tmp_path_factory.mktemp("provider")) as issuer:
        yield issuer


@asynccontextmanager
async def official(url: str, storage: MemoryTokens, visit: Visitor, mode: str) -> AsyncIterator[Any]:
    """The official Python client, with a person who logs in."""
    came_back = ""

    async def show(page: str) -> None:
        nonlocal came_back
        came_back = await visit(page)

    async def callback() -> AuthorizationCodeResult:
        message = {name: values[0] for name, values in parse_qs(urlsplit(came_back).query).items()}
        return AuthorizationCodeResult(code=message["code"], state=message.get("state"), iss=message.get("iss"))

    metadata = OAuthClientMetadata(redirect_uris=[REDIRECT_URI], client_name="official")  # type: ignore[list-item]
    auth = OAuthClientProvider(url, metadata, storage, show, callback)
    async with (
        asyncio.timeout(SECONDS),
        httpx2.AsyncClient(auth=auth, timeout=SECONDS) as http,
        mcp.Client(streamable_http_client(url, http_client=http), mode=mode) as client,  # type: ignore[arg-type]
    ):
        client.auth = auth  # type: ignore[attr-defined]
        yield client


def text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_official_client_registers_and_logs_in(issuer: str, mode: str) -> None:
    async with served(notes(issuer)) as url, official(url, MemoryTokens(), Visitor(), mode) as client:
        assert text(await client.call_tool("who", {})).startswith("anna notes:read")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_official_client_steps_up_and_renews(issuer: str, mode: str) -> None:
    async with served(notes(issuer)) as url:
        storage, visit = MemoryTokens(), Visitor()
        storage.client = OAuthClientInformationFull.model_validate({**logins.PROGRAM, "issuer": issuer})
        async with official(url, storage, visit, mode) as client:
            assert text(await client.call_tool("who", {})) == "anna notes:read"
            assert text(await client.call_tool("write", {"text": "hello"})) == "wrote hello"
            assert text(await client.call_tool("who", {})) == "anna notes:read notes:write"
            # Its end has come, as far as the client knows.
            held = storage.tokens.access_token
            client.auth.context.token_expiry_time = 1.0
            assert text(await client.call_tool("who", {})) == "anna notes:read notes:write"
            assert storage.tokens.access_token != held
        assert len(visit.visits) == 2


class Typescript:
    """A script that says which page to show, and hears where that has led."""

    def __init__(self, url: str, version: str, folder: Path) -> None:
        self._arguments = (url, version)
        self._folder = folder

    async def run(self, visit: Visitor) -> list[Any]:
        packages = node.install(HERE / "typescript", "typescript")
        shutil.copy(HERE / "typescript" / "login.mjs", self._folder)
        (self._folder / "node_modules").symlink_to(packages.modules)
        process = await asyncio.create_subprocess_exec(
            packages.node,
            self._folder / "login.mjs",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=node.environment(),
        )
        messages: list[Any] = []
        try:
            assert process.stdout is not None and process.stdin is not None and process.stderr is not None
            async with asyncio.timeout(SECONDS):
                while line := await process.stdout.readline():
                    message = json.loads(line)
                    if "visit" in message:
                        process.stdin.write(f"{await visit(message['visit'])}\n".encode())
                    else:
                        messages.append(message)
                problem = (await process.stderr.read()).decode()
                assert await process.wait() == 0, problem
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return messages


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_typescript_clients_log_in_step_up_and_renew(issuer: str, version: str, tmp_path: Path) -> None:
    async with served(notes(issuer)) as url:
        visit = Visitor()
        result = await Typescript(url, version, tmp_path).run(visit)
        assert result == [
            {"who": "anna notes:read"},
            {"write": "wrote hello"},
            {"who": "anna notes:read notes:write"},
            {"renewed": "anna notes:read notes:write"},
        ]
        assert len(visit.visits) == 2
