"""The console is a server: everything that the page does is tested here through a Client."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from portico import Client, Context, Server, ToolError
from portico.auth import Principal
from portico.cli import local_token
from portico.extend import serve_http
from portico.rpc.metrics import DURATION_BUCKETS_SECONDS
from portico.search.tool_search import ToolSearchServer
from portico_console import Console, activity
from portico_gateway import Gateway
from support.console_server import console_of
from support.paths import ROOT

EXAMPLE = str(ROOT / "examples" / "hello.py")


def busy() -> Server:
    server = Server("busy", version="1.2", title="A busy one", instructions="Be kind.")

    @server.tool
    async def count(to: int, ctx: Context) -> int:
        """Count."""
        for number in range(1, to + 1):
            await ctx.info(f"at {number}")
            await ctx.report_progress(number, to, "counting")
        return to

    @server.tool
    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit("Your name?", str)
        return f"hello {answer.data}" if answer.action == "accept" else answer.action

    @server.tool
    async def write(ctx: Context) -> str:
        return (await ctx.sample("Say something")).text

    @server.tool
    async def places(ctx: Context) -> list[str]:
        return [root.uri for root in await ctx.list_roots()]

    @server.tool
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool
    def fail() -> str:
        raise ToolError("no luck")

    @server.resource("busy://state")
    def state() -> str:
        return "fine"

    @server.prompt
    def ask(what: str) -> str:
        return f"What is {what}?"

    return server


async def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


class Asked:
    """A client of a console that remembers what was said on the way."""

    def __init__(self, client: Client, said: list[tuple[str, Any]]) -> None:
        self.client, self.said = client, said

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        return (await self.client.call_tool(tool, arguments)).structured

    async def wait_for(self, topic: str) -> Any:
        await until(lambda: bool(self.topic(topic)))
        return self.topic(topic)[0]

    def topic(self, name: str) -> list[Any]:
        return [data for logger, data in self.said if logger == name]


@asynccontextmanager
async def asking(console: Console) -> AsyncIterator[Asked]:
    messages: list[tuple[str, Any]] = []
    async with (
        # Its life is not the console's: it is served, or it is begun here.
        console.inspected_server.lifespan() if console.inspected_server is not None else nullcontext(),
        console.lifespan(),
        Client(
            console.server,
            log_handler=lambda item: messages.append((item.logger or "", item.data)),
            log_level="debug",
            progress_handler=lambda *item: messages.append(("progress", item)),
        ) as client,
    ):
        yield Asked(client, messages)


async def test_about_lists_only_the_available_features() -> None:
    async with asking(Console(busy())) as ask:
        about = await ask("about")
        assert about["name"] == "A busy one" and about["mode"] == "serve" and not about["can_open"]
        assert about["parts"] == ["wire", "saved"] and not about["tool_search"]
        tools = {tool.name for tool in await ask.client.list_tools()}
        assert not tools & {"open_target", "audit", "explain", "upstreams", "jobs", "oauth_chain", "dev_state"}


async def test_about_reports_that_clients_list_some_tools_only() -> None:
    server = busy()
    server.public_handler = ToolSearchServer(server)
    async with asking(Console(server)) as ask:
        assert (await ask("about"))["tool_search"] is True


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_server_is_seen_in_every_revision(revision: str) -> None:
    async with asking(Console(busy())) as ask:
        target = await ask("set_revision", target="self", revision=revision)
        assert target["protocol_version"] == revision and target["server"]["name"] == "busy"
        assert target["instructions"] == "Be kind."
        tools = await ask("list_items", target="self", kind="tools")
        assert [item["name"] for item in tools["items"]][:2] == ["count", "greet"] and tools["weight"] > 50
        assert {
            finding["tool"].removeprefix("busy.") for finding in (await ask("lint", target="self"))["findings"]
        } <= {item["name"] for item in tools["items"]}
        assert (await ask("list_items", target="self", kind="prompts"))["items"][0]["name"] == "ask"
        done = await ask("call_tool", target="self", name="count", arguments={"to": 2})
        assert done["ok"] and done["result"]["content"][0]["text"] == "2"
        assert ask.topic("progress") == [(1.0, 2.0, "counting"), (2.0, 2.0, "counting")] or revision == "2024-11-05"
        assert [finding["data"] for finding in ask.topic("log")] == ["at 1", "at 2"]
        read = await ask("read_resource", target="self", uri="busy://state")
        assert read["result"]["contents"][0]["text"] == "fine"
        prompt = await ask("get_prompt", target="self", name="ask", arguments={"what": "love"})
        assert prompt["result"]["messages"][0]["content"]["text"] == "What is love?"


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_elicitation_is_answered_in_the_form(revision: str) -> None:
    async with asking(Console(busy())) as ask:
        await ask("set_revision", target="self", revision=revision)
        for tool, content, expected in (
            ("greet", {"value": "Ann"}, "hello Ann"),
            ("write", {"text": "something"}, "something"),
            ("places", {"roots": [{"uri": "file:///here"}]}, "file:///here"),
        ):
            ask.said.clear()
            running = asyncio.create_task(ask("call_tool", target="self", name=tool))
            question = await ask.wait_for("question")
            assert question["run"] == (await ask.wait_for("run"))["run"] and question["target"] == "self"
            assert question["name"] == tool
            assert await ask("list_questions") == {"questions": [question]}
            await ask("answer", question=question["id"], action="accept", content=content)
            assert expected in json.dumps((await running)["result"])
        with pytest.raises(ToolError, match="unknown request"):
            await ask("answer", question=question["id"], action="accept")


async def test_run_is_cancelled_by_its_name_and_by_leaving() -> None:
    async with asking(Console(busy())) as ask:
        running = asyncio.create_task(ask("call_tool", target="self", name="wait"))
        run = (await ask.wait_for("run"))["run"]
        assert await ask("cancel_run", run=run) == {"cancelled": True}
        done = await running
        assert not done["ok"] and done["error"]["message"] == "cancelled"
        assert await ask("cancel_run", run=run) == {"cancelled": False}


async def test_failed_calls_are_returned_as_outcomes() -> None:
    async with asking(Console(busy())) as ask:
        failed = await ask("call_tool", target="self", name="fail")
        assert not failed["ok"] and failed["result"]["isError"] and failed["error"] is None
        absent = await ask("call_tool", target="self", name="absent")
        assert not absent["ok"] and absent["error"]["code"] == -32602
        with pytest.raises(ToolError, match="unknown target 'x'"):
            await ask("list_items", target="x", kind="tools")


async def test_wire_shows_round_trips_and_can_be_taken_along() -> None:
    async with asking(Console(busy())) as ask:
        done = await ask("call_tool", target="self", name="count", arguments={"to": 1})
        response = (await ask("wire", find="tools/call"))["messages"]
        request = response[-1]
        assert request["method"] == "tools/call" and request["name"] == "count" and request["way"] == "sent"
        assert request["trip"] in done["trips"]
        trip = [message for message in (await ask("wire"))["messages"] if message["trip"] == request["trip"]]
        assert [message["kind"] for message in trip] == ["request", "notification", "response"]
        assert trip[-1]["seconds"] >= 0 and (await ask("wire_message", id=request["id"]))["text"] == request["text"]
        lines = (await ask("export_wire", form="jsonl"))["text"].splitlines()
        assert [json.loads(line)["id"] for line in lines] == sorted(json.loads(line)["id"] for line in lines)
        assert "→" in (await ask("export_wire", form="transcript"))["text"]
        await ask("clear_wire")
        assert (await ask("wire"))["messages"] == []


async def test_targets_are_opened_and_closed_where_allowed() -> None:
    async with asking(Console(mode="console", can_open_targets=True)) as ask:
        target = await ask("open_target", target=EXAMPLE)
        assert target["state"] == "open" and target["kind"] == "file" and target["id"] == "t1"
        command = await ask("open_target", target=shlex.join([sys.executable, EXAMPLE]), revision="2025-06-18")
        assert command["state"] == "open" and command["protocol_version"] == "2025-06-18"
        broken = await ask("open_target", target=f"{sys.executable} -c pass")
        assert broken["state"] == "failed" and broken["error"]
        with pytest.raises(ToolError, match="is not available"):
            await ask("list_items", target=broken["id"], kind="tools")
        left = await ask("close_target", target=broken["id"])
        assert [one["id"] for one in left["targets"]] == ["t1", "t2"]
        with pytest.raises(ToolError, match="unknown protocol version"):
            await ask("open_target", target=EXAMPLE, revision="1999-01-01")


async def test_over_http_the_wire_has_headers_and_no_secrets() -> None:
    server = busy()
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop, token="s3cret"))
    url = await asyncio.wait_for(ready, 20)
    try:
        async with asking(Console(mode="console", can_open_targets=True)) as ask:
            target = await ask("open_target", target=url, token="s3cret")
            await ask("call_tool", target=target["id"], name="count", arguments={"to": 1})
            results = [message for message in (await ask("wire"))["messages"] if message["trip"]]
            request = next(message for message in results if message["name"] == "count")
            headers = {name.lower(): value for name, value in request["http"]["headers"]}
            assert headers["mcp-name"] == "count" and headers["authorization"] == "•••"
            answers = [
                message for message in results if message["trip"] == request["trip"] and message["way"] == "received"
            ]
            assert answers[0]["status"] == 200 and answers[-1]["kind"] == "response"
            assert "s3cret" not in (await ask("export_wire"))["text"]
            for form in ("curl", "portico", "pytest", "python", "json"):
                copied = await ask(
                    "copy_as", target=target["id"], method="tools/call", name="count", arguments={"to": 1}, form=form
                )
                assert "s3cret" not in copied["text"] and "count" in copied["text"]
    finally:
        stop.set()
        await serving


async def test_only_the_server_of_this_machine_gets_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy stands for the network, so that no other host is needed; it sees every request that leaves."""
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(busy(), port=0, on_ready=ready.set_result, stop=stop, token="s3cret"))
    url = await asyncio.wait_for(ready, 20)
    port = urlsplit(url).port
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    local_token.save_token("s3cret", port or 0)
    try:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
            async with asking(
                Console(mode="console", can_open_targets=True, token_for=local_token.token_for_url)
            ) as ask:
                for spelling in (url, f":{port}/mcp"):
                    # The token of this user is found for both.
                    target = await ask("open_target", target=spelling)
                    assert (target["state"], target["kind"]) == ("open", "url")
                for host in ("evil.example", "127.0.0.1.evil.example", "[2002:7f00:1::]"):
                    target = await ask("open_target", target=f"http://{host}:{port}/mcp")
                    assert target["state"] == "failed"
    finally:
        stop.set()
        await serving
    assert len(heads) >= 3
    assert not any(b"authorization" in head.lower() or b"s3cret" in head for head in heads)


async def test_copied_command_and_test_run(tmp_path: Path) -> None:
    async with asking(Console(mode="console", can_open_targets=True)) as ask:
        target = (await ask("open_target", target=EXAMPLE))["id"]
        tool = (await ask("list_items", target=target, kind="tools"))["items"][0]
        arguments = dict.fromkeys(tool["inputSchema"].get("required", []), "a 'quoted' $WORD")
        call = {"target": target, "method": "tools/call", "name": tool["name"], "arguments": arguments}
        test = tmp_path / "test_copied.py"
        text = (await ask("copy_as", form="pytest", **call))["text"]
        await asyncio.to_thread(test.write_text, text)
        line = (await ask("copy_as", form="portico", **call))["text"]
    words = [sys.executable, "-m", *shlex.split(line)]
    # One process: what the test holds is called as pytest would.
    code = f"import runpy; [fn() for name, fn in runpy.run_path({str(test)!r}).items() if name.startswith('test_')]"
    for command in (words, [sys.executable, "-c", code]):
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


# Texts that a shell, curl or `portico` reads as something else unless they are quoted or escaped for it.
AWKWARD = [
    "@/etc/hostname", "@", "-", "--arguments", "$HOME", "$(id)", "`id`", "it's", '"', "a\\nb\\", "two\nlines", "\ttab\r",
    "hey!x", "!!", "~", "=ls", "*", "{a,b}", "; exit 3 #", "a & b", "\x1b[31m", "\x00", "\u2028", "\u202egpj", "\x9b1m", "",
    " edge ", "@@x", "ключ", "😀",
]  # fmt: skip
ECHO = """\
import json
from portico import Server
server = Server("echo", version="1")

@server.tool
def echo(values: list[str]) -> list[str]:
    return values

@server.prompt
def tell(%s) -> str:
    return json.dumps([%s])

@server.resource("note:///{{name}}")
def note(name: str) -> str:
    return f"[{{name}}]"
"""


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
async def test_copied_commands_mean_the_same_in_a_shell(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    names = [f"a{at}" for at in range(len(AWKWARD))]
    file = tmp_path / "ec$(id)'ho.py"
    code = ECHO.replace("{{", "{").replace("}}", "}") % (", ".join(f"{name}: str" for name in names), ", ".join(names))
    await asyncio.to_thread(file.write_text, code)

    async def run(command: str) -> Any:
        line = f'portico() {{ "{sys.executable}" -m portico "$@"; }}\n{command}'
        words = [shell, "-c", line]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    async with asking(Console(mode="console", can_open_targets=True)) as ask:
        target = (await ask("open_target", target=str(file)))["id"]
        stdio = (await ask("open_target", target=shlex.join([sys.executable, "-m", "portico", "serve", str(file)])))[
            "id"
        ]

        async def copy(method: str, name: str, arguments: Any, where: str = target) -> str:
            call = {"target": where, "method": method, "name": name, "arguments": arguments}
            text = str((await ask("copy_as", form="portico", **call))["text"])
            assert text.isprintable()
            return text

        for where in (target, stdio):
            [result] = await run(await copy("tools/call", "echo", {"values": AWKWARD}, where))
            assert result["structuredContent"] == {"result": AWKWARD}
        [message] = await run(await copy("prompts/get", "tell", dict(zip(names, AWKWARD, strict=True))))
        assert json.loads(message["content"]["text"]) == AWKWARD
        [contents] = await run(await copy("resources/read", "note:///a'b$(id)`!&", {}))
        assert contents["text"] == "[a'b$(id)`!&]"


@pytest.mark.parametrize(
    "method, name, arguments",
    [
        ("tools/call", "--save-dir=/etc", {}),
        ("tools/call", "a\nb", {}),
        ("resources/read", "-o", {}),
        ("resources/read", "note:///\x1b[2J", {}),
        ("prompts/get", "tell", {"--save-dir": "/tmp"}),
        ("prompts/get", "tell", {"a=@/etc/hostname": ""}),
        ("prompts/get", "tell", {"a:": "1"}),
    ],
)
async def test_copy_as_command_rejects_calls_that_have_no_command(method: str, name: str, arguments: Any) -> None:
    async with asking(Console(mode="console", can_open_targets=True)) as ask:
        target = (await ask("open_target", target=EXAMPLE))["id"]
        with pytest.raises(ToolError, match="Copy it as Python or JSON"):
            await ask("copy_as", target=target, method=method, name=name, arguments=arguments, form="portico")


@pytest.mark.skipif(shutil.which("curl") is None, reason="this machine has no curl")
async def test_copied_curl_command_sends_the_same_call() -> None:
    server = Server("echo", version="1")

    @server.tool
    def echo(values: list[str]) -> list[str]:
        return values

    @server.resource("note:///{name}")
    def note(name: str) -> str:
        return f"[{name}]"

    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop))
    url = await asyncio.wait_for(ready, 20)

    async def run(command: str) -> Any:
        words = ["sh", "-c", f"{command} -s"]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.partition("data: ")[2] or done.stdout)["result"]

    try:
        async with asking(Console(mode="console", can_open_targets=True)) as ask:
            target = (await ask("open_target", target=url))["id"]
            call = {"target": target, "method": "tools/call", "name": "echo", "arguments": {"values": AWKWARD}}
            result = await run((await ask("copy_as", form="curl", **call))["text"])
            assert result["structuredContent"] == {"result": AWKWARD}
            read = {"target": target, "method": "resources/read", "name": "note:///a'b$(id)`!{c,d}"}
            result = await run((await ask("copy_as", form="curl", **read))["text"])
            assert result["contents"][0]["text"] == "[a'b$(id)`!{c,d}]"
    finally:
        stop.set()
        await serving


async def test_calls_are_saved_in_a_file_of_their_owner(tmp_path: Path) -> None:
    file = tmp_path / "data" / "calls.json"
    call = {"title": "two", "target": "self", "method": "tools/call", "name": "count", "arguments": {"to": 2}}
    async with asking(Console(busy(), saved_calls_file=file)) as ask:
        saved = await ask("save_call", call=call)
        assert saved.items() >= call.items()
    async with asking(Console(busy(), saved_calls_file=file)) as ask:
        assert (await ask("list_saved"))["saved"] == [saved]
        assert (await ask("delete_saved", id=saved["id"])) == {"saved": []}
        with pytest.raises(ToolError, match="unknown saved call"):
            await ask("delete_saved", id=saved["id"])
    assert file.stat().st_mode & 0o077 == 0


async def test_watching_page_receives_target_changes_and_client_messages() -> None:
    server = busy()
    async with console_of(server) as page:
        await page.sign_in()
        messages: list[tuple[str, Any]] = []
        async with page.client(
            log_handler=lambda message: messages.append((message.logger or "", message.data)), log_level="debug"
        ) as client:
            ask = Asked(client, messages)
            parts = (await ask("about"))["parts"]
            assert {"metrics", "sessions", "wire"} <= set(parts) and "workers" not in parts
            exchange = page.site._exchange
            assert exchange is not None and "handle" not in vars(exchange)
            topics = ["targets", "wire", "metrics", "sessions"]
            watching = asyncio.create_task(ask("watch", topics=topics))
            await ask.wait_for("metrics")
            assert "handle" in vars(exchange)
            async with Client(f"{page.origin}/mcp", protocol_version="2025-06-18") as other:
                await other.call_tool("count", {"to": 1})
                await ask.wait_for("wire")
                await until(lambda: any(message["total"] for message in ask.topic("sessions")))
            seen = [
                message for batch in ask.topic("wire") for message in batch["messages"] if message["hop"] == "client"
            ]
            assert {"initialize", "tools/call"} <= {message["method"] for message in seen}
            assert next(message for message in seen if message["method"] == "tools/call")["http"]["path"] == "/mcp"
            server.remove("fail")
            await until(lambda: any(message["targets"][0]["versions"]["tools"] for message in ask.topic("targets")))
            numbers = await ask("metrics")
            assert any(row["name"] == "count" and row["calls"] == 1 for row in numbers["tools"]) and numbers["history"]
            watching.cancel()
            # The tap is gone with the page.
            await until(lambda: "handle" not in vars(exchange))


async def test_gateway_upstreams_and_their_messages_are_shown() -> None:
    async with served(busy(), token="s3cret") as url:
        gateway = Gateway()
        gateway.add_upstream("child", [sys.executable, EXAMPLE])
        gateway.add_upstream("busy", {"url": url, "headers": {"Authorization": "Bearer s3cret"}})
        async with asking(Console(gateway)) as ask:
            await gateway.wait_until_listed(20)
            assert "upstreams" in (await ask("about"))["parts"]
            watching = asyncio.create_task(ask("watch", topics=["wire", "upstreams"]))
            seen = (await ask.wait_for("upstreams"))["upstreams"]
            assert [(one["alias"], one["state"]) for one in seen] == [("child", "ok"), ("busy", "ok")]
            names = [item["name"] for item in (await ask("list_items", target="self", kind="tools"))["items"]]
            count = next(name for name in names if "count" in name)
            assert (await ask("call_tool", target="self", name=count, arguments={"to": 1}))["ok"]
            calls = [one for one in (await ask("wire"))["messages"] if one["method"] == "tools/call"]
            assert [one["hop"] for one in calls] == ["target", "upstream"]
            sent = {name.lower(): value for name, value in calls[1]["http"]["headers"]}
            assert sent["mcp-name"] == "count" and sent["authorization"] == "•••"
            connection = next(one for alias, one in gateway.connections() if alias == "busy")
            assert "_exchange" in vars(connection.transport.pool)  # type: ignore[attr-defined]
            watching.cancel()
            await until(lambda: "_exchange" not in vars(connection.transport.pool))  # type: ignore[attr-defined]


async def test_with_rules_one_sees_with_the_eyes_of_others(tmp_path: Path) -> None:
    from portico.server.policy import settings as access_settings

    server = busy()
    server.data_dir = str(tmp_path)
    rules = [{"principal": "ann", "tool": "busy.count"}]
    access_settings.apply(server, access_settings.read({"rule": rules, "audit": {}}, tmp_path))
    async with asking(Console(server)) as ask:
        assert {"policy", "audit", "usage"} <= set((await ask("about"))["parts"])
        seen = await ask("list_items", target="self", kind="tools", as_principal={"id": "ann", "scopes": []})
        assert [item["name"] for item in seen["items"]] == ["count"]
        done = await ask(
            "call_tool", target="self", name="count", arguments={"to": 1}, as_principal={"id": "ann", "scopes": []}
        )
        assert done["ok"]
        refused = await ask("call_tool", target="self", name="fail", as_principal={"id": "ann", "scopes": []})
        assert not refused["ok"]
        verdict = await ask("explain", kind="tool", name="count", principal={"id": "ann", "scopes": []})
        assert verdict["outcome"] == "allow" and verdict["why"]
        assert (await ask("explain", kind="tool", name="fail", principal={"id": "bob"}))["outcome"] == "deny"
        records = (await ask("audit"))["records"]
        assert ("ann", "count", "ok") in [
            (record["principal"], record["name"], record["outcome"]) for record in records
        ]
        report = await ask("verify_audit")
        assert report["ok"] and report["records"] >= 2
        usage = await ask("usage", by="principal")
        assert [(row["name"], row["calls"], row["errors"]) for row in usage["rows"]] == [("ann", 2, 1)]
        assert usage["total"]["calls"] == 2 and usage["left_out"] == 0
        assert (await ask("usage", by="tool", format="csv"))["csv"].startswith("name,calls,errors,")


async def test_signed_in_principal_cannot_call_as_another() -> None:
    seen: list[Any] = []
    server = busy()

    @server.tool
    async def who(ctx: Context) -> str:
        seen.append(ctx.principal)
        return "noted"

    console = Console(server)
    boss = Principal("boss", frozenset({"admin"}))
    async with console.lifespan(), Client(console.server, principal=boss) as client:
        assert (await client.call_tool("call_tool", {"target": "self", "name": "who"})).structured["ok"]
        with pytest.raises(ToolError, match="cannot call as another principal"):
            await client.call_tool("call_tool", {"target": "self", "name": "who", "as_principal": {"id": "ann"}})
    assert seen == [boss]


@asynccontextmanager
async def served(server: Server, **options: Any) -> AsyncIterator[str]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop, **options))
    try:
        yield await asyncio.wait_for(ready, 20)
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize(
    "broken, finding",
    [
        ({}, None),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"issuer": "https://another.example"}, "IssuerMismatch"),
        (None, "DiscoveryError"),
    ],
    ids=["whole", "without PKCE", "another issuer", "no document"],
)
async def test_oauth_chain_is_shown_step_by_step(broken: dict[str, Any] | None, finding: str | None) -> None:
    issuer = Server("issuer")
    message: dict[str, Any] = {}

    @issuer.custom_route("/.well-known/oauth-authorization-server")
    async def metadata(request: Any) -> Any:
        return message or "no document"

    async with served(issuer) as at:
        base = at.removesuffix("/mcp")
        whole = {
            "issuer": base,
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": f"{base}/token",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "client_id_metadata_document_supported": True,
        }
        message.update(whole | broken if broken is not None else {})
        guarded = busy()
        guarded.auth = Server("x", auth=base).auth
        async with served(guarded) as url, asking(Console(mode="console", can_open_targets=True)) as ask:
            chain = await ask("oauth_chain", url=url)
    names = [step["name"] for step in chain["steps"]]
    assert names[:2] == ["server", "resource"] and chain["steps"][0]["status"] == 401
    assert chain["steps"][1]["document"]["authorization_servers"] == [base]
    assert chain["ok"] is (finding is None)
    texts = [f"{one['rule']} {one['text']}" for step in chain["steps"] for one in step["findings"]]
    assert finding is None or any(finding in text for text in texts), texts
    if broken == {}:
        assert chain["steps"][2]["document"]["issuer"] == base


@pytest.mark.parametrize("url", ["nonsense", "http://[bad", "http://a..b/mcp", "http://127.0.0.1:99999/mcp"])
async def test_oauth_discovery_reports_an_invalid_url_as_a_finding(url: str) -> None:
    async with asking(Console(mode="console", can_open_targets=True)) as ask:
        chain = await ask("oauth_chain", url=url)
    assert not chain["ok"] and chain["steps"][0]["findings"][0]["level"] == "error"


async def test_tasks_are_shown_cancelled_and_tried_again(tmp_path: Path) -> None:
    server = Server("slow", store=str(tmp_path / "tasks.db"))

    @server.tool(task="optional")
    async def work(ctx: Context) -> str:
        await ctx.step("first", lambda: "done")
        await asyncio.Event().wait()
        return "never"

    async with asking(Console(server)) as ask:
        assert "jobs" in (await ask("about"))["parts"]
        async with Client(server) as client:
            watching = asyncio.create_task(ask("watch", topics=["jobs"]))
            await ask.wait_for("jobs")
            task = await client.start_task("work")
            await until(lambda: len(ask.topic("jobs")) > 1)
            watching.cancel()
            [job] = (await ask("jobs"))["jobs"]
            assert job["id"] == task.id and job["tool"] == "work" and "arguments" not in job
            assert await ask("cancel_job", id=task.id) == {"changed": True}
            assert (await ask("job", id=task.id))["status"] == "cancelled"
            assert await ask("retry_job", id=task.id) == {"changed": True}
        with pytest.raises(ToolError, match="unknown task"):
            await ask("job", id="absent")


def test_latencies_are_those_of_tool_calls() -> None:
    fast, slow = [100, *[0] * len(DURATION_BUCKETS_SECONDS)], [0] * (len(DURATION_BUCKETS_SECONDS) + 1)
    slow[-2] = 1
    series = {("server/discover", "", ""): fast, ("tools/call", "report", ""): slow}
    metrics = activity._numbers(0.0, series, {}, 1.0, 0)
    assert metrics.p50 is not None and metrics.p50 > 1
    assert activity._numbers(0.0, {("server/discover", "", ""): fast}, {}, 1.0, 0).p50 is None
