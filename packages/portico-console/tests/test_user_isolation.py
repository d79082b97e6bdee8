"""Users other than the owner: access rules apply, and users do not see each other's data.

Source: what is listed is what can be called, whichever way somebody comes; a question is for who has asked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server
from portico.auth import InvalidToken, Principal
from portico.protocol.errors import ToolError
from portico.server.policy import settings as access_settings
from portico_console import Console, ConsoleAccess
from portico_console.message_log import MAX_OPEN_REQUESTS, MessageLog, make_http_metadata
from portico_console.server_requests import MAX_PENDING_BYTES, ServerRequests
from portico_console.session_auth import ConsoleAuthenticator
from support.console_server import Page, console_of

ANN, BOB = (Principal(name, frozenset({"admin"}), issuer="https://login.example") for name in ("ann", "bob"))


def guarded(tmp_path: Path) -> Server:
    server = Server("guarded")
    server.data_dir = str(tmp_path)

    @server.tool
    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit("Your name?", str)
        return f"hello {answer.data}"

    @server.tool
    async def launch(X: Any) -> str:
        return "gone"

    @server.resource("note://open")
    def open_note() -> str:
        return "open"

    @server.resource("note://closed")
    def closed_note() -> str:
        return "closed"

    rules = [
        {"principal": "local"},
        {"principal": "*", "tool": "guarded.greet"},
        {"principal": "*", "resource": "*.note://open"},
    ]
    access_settings.apply(server, access_settings.read({"rule": rules}, tmp_path))
    return server


async def test_denied_components_are_neither_linted_nor_subscribable(tmp_path: Path) -> None:
    console = Console(guarded(tmp_path))
    async with console.lifespan(), Client(console.server, principal=ANN) as ann:
        result = (await ann.call_tool("lint", {"target": "self"})).structured["findings"]
        assert "launch" not in json.dumps(result)
        watched = await ann.call_tool("subscribe", {"target": "self", "uri": "note://open"})
        assert watched.structured["uris"] == ["note://open"]
        with pytest.raises(ToolError, match="cannot subscribe"):
            await ann.call_tool("subscribe", {"target": "self", "uri": "note://closed"})
    async with console.lifespan(), Client(console.server) as owner:
        assert "launch" in json.dumps((await owner.call_tool("lint", {"target": "self"})).structured["findings"])


async def until_found(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(20):
        while not (result := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return result


@pytest.mark.parametrize("revision", [None, "2025-11-25"])
async def test_elicitation_is_answered_only_by_the_calling_principal(tmp_path: Path, revision: str | None) -> None:
    console = Console(guarded(tmp_path))
    async with (
        console.lifespan(),
        Client(console.server, principal=ANN) as ann,
        Client(console.server, principal=BOB) as bob,
        Client(console.server) as owner,
    ):
        await owner.call_tool("set_revision", {"target": "self", "revision": revision})
        running = asyncio.create_task(ann.call_tool("call_tool", {"target": "self", "name": "greet"}))

        async def asked(client: Client) -> list[Any]:
            return list((await client.call_tool("list_questions", {})).structured["questions"])

        [question] = await until_found(lambda: asked(ann))
        assert await asked(bob) == [] and len(await asked(owner)) == 1
        values = {"question": question["id"], "action": "accept", "content": {"value": "Bob"}}
        with pytest.raises(ToolError, match="unknown request"):
            await bob.call_tool("answer", values)
        cancelled = await bob.call_tool("cancel_run", {"run": question["run"]})
        assert cancelled.structured == {"cancelled": False}
        await ann.call_tool("answer", {**values, "content": {"value": "Ann"}})
        assert (await running).structured["result"]["content"][0]["text"] == "hello Ann"


async def test_watching_page_does_not_receive_elicitations_of_other_principals(tmp_path: Path) -> None:
    console = Console(guarded(tmp_path))
    heard: list[Any] = []
    async with console.lifespan(), Client(console.server, principal=ANN) as ann:
        hearing = Client(
            console.server, principal=BOB, log_handler=lambda message: heard.append(message.data), log_level="debug"
        )
        async with hearing as bob:
            watching = asyncio.create_task(bob.call_tool("watch", {"topics": ["questions"]}))
            running = asyncio.create_task(ann.call_tool("call_tool", {"target": "self", "name": "greet"}))

            async def told() -> bool:
                return len(heard) > 1

            await until_found(told)
            assert heard == [{"questions": []}] * len(heard)
            watching.cancel()
            running.cancel()
            await asyncio.wait([watching, running])


async def test_client_token_does_not_bypass_access_rules(tmp_path: Path) -> None:
    """A link is the owner's. A token is as good here as it is at the endpoint, and no better."""
    async with console_of(guarded(tmp_path), token="servers") as page:
        await page.sign_in("servers")
        response = await asked(page, "list_items", target="self", kind="tools")
        assert [item["name"] for item in response["items"]] == ["greet"]
        assert not (await asked(page, "call_tool", target="self", name="launch", arguments={"X": 1}))["ok"]
        await page.sign_in()
        assert (await asked(page, "call_tool", target="self", name="launch", arguments={"X": 1}))["ok"]


async def asked(page: Page, tool: str, **arguments: Any) -> Any:
    answer = await page.call(tool, arguments, accept="application/json")
    return json.loads(answer.body)["result"]["structuredContent"]


async def verify(credentials: Any) -> Principal:
    claims = {"boss": {"level": 7}, "windbag": {"story": "x" * 5000}, "odd": {"thing": object()}}
    if credentials.token not in claims:
        raise InvalidToken("unknown")
    return Principal(credentials.token, frozenset({"admin"}), claims=claims[credentials.token])


async def test_login_is_rejected_when_the_claims_cannot_be_preserved() -> None:
    seen: list[Any] = []
    server = Server("claims", auth=verify)

    @server.tool
    async def who(ctx: Context) -> str:
        seen.append(ctx.principal.claims)
        return "noted"

    async with console_of(server, "scope:admin") as page:
        for much in ("windbag", "odd"):
            assert (await page.sign_in(much)).status == 403
        assert (await page.sign_in("boss")).status == 200
        assert (await asked(page, "call_tool", target="self", name="who"))["ok"]
    assert seen == [{"level": 7}]


async def test_session_ends_when_the_access_mode_changes() -> None:
    """The secret of a port outlives the process: so does a cookie, but not what it was given for."""
    server = Server("terms", auth=verify)
    async with console_of(server) as page:
        await page.sign_in()
        assert (await page.call()).status == 200
        cookie, key = page.cookie.partition("=")[2], page.key
    again = Server("terms", auth=verify)
    async with console_of(again, "scope:admin") as page:
        port = page.origin.rpartition(":")[2]
        page.cookie, page.key = f"portico_console_{port}={cookie}", key
        assert (await page.call()).status == 401


async def test_link_of_an_earlier_process_is_not_good_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was used for is remembered in memory, and the secret in a file."""
    import time

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 60)
    before = ConsoleAuthenticator(
        ConsoleAccess(), b"a secret of this test", lambda id, expires: asyncio.sleep(0, True)
    ).create_login_token()
    monkeypatch.undo()
    async with console_of(Server("again")) as page:
        assert (await page.sign_in(before)).status == 401
        assert (await page.sign_in()).status == 200


def test_message_log_is_bounded_for_any_traffic() -> None:
    wire = MessageLog()
    for number in range(3 * MAX_OPEN_REQUESTS):
        id = f"{number} " + "x" * 1000
        params = {"name": "t", "_meta": {"progressToken": id}}
        request = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        noted = wire.add("target", "t1", "sent", json.dumps(request).encode())
        wire.on_response(noted, 200, make_http_metadata([("a", "b")]))
        wire.add("target", "t1", "received", json.dumps({"jsonrpc": "2.0", "id": id, "result": {}}).encode())
    assert (
        len(wire._progress) <= MAX_OPEN_REQUESTS
        and len(wire._open) <= MAX_OPEN_REQUESTS
        and len(wire._heads) <= MAX_OPEN_REQUESTS
    )
    assert all(len(key[1]) <= 200 for key in wire._progress)
    for _ in range(40):
        # One character that is not Latin makes the whole text four bytes each.
        wire.add("target", "t1", "sent", b"x" * 1_000_000 + "\N{PARTY POPPER}".encode())
    assert sum(sys.getsizeof(item.text) for item in wire.find()) <= 32 * 1024 * 1024
    headers = make_http_metadata([(f"x-{number}", "y" * 4000) for number in range(100)]).headers
    assert sum(len(name) + len(value) for name, value in headers) < 12_000


async def test_pending_server_requests_are_bounded_by_size() -> None:
    questions = ServerRequests()
    half = {"text": "x" * (MAX_PENDING_BYTES // 2 + 1)}
    first = asyncio.create_task(questions.wait_for_response("t1", None, "roots", half, lambda item: None))
    await asyncio.sleep(0)
    answer = await questions.wait_for_response("t1", None, "roots", half, lambda item: None)
    assert answer.action == "cancel" and len(questions.pending_for()) == 1
    first.cancel()
    await asyncio.wait([first])


@pytest.mark.parametrize(
    "name",
    ["Authorization", "Cf-Access-Jwt-Assertion", "X-Api-Key", "Ocp-Apim-Subscription-Key", "X-Forwarded-Client-Cert"],
)
def test_credentials_in_headers_are_redacted(name: str) -> None:
    assert "opensesame" not in str(make_http_metadata([(name, "opensesame")]))


@pytest.mark.parametrize("field", ["access_token", "api_key", "code", "X-Amz-Signature", "client_secret"])
def test_credentials_in_urls_are_redacted(field: str) -> None:
    result = make_http_metadata([("location", f"/next?{field}=opensesame")], "GET", f"/mcp?a=1&{field}=opensesame&b=2")
    assert "opensesame" not in str(result) and result.path is not None and "a=1" in result.path and "b=2" in result.path
