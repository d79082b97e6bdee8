"""Contents of audit records."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, Service, ToolError
from portico.audit.records import AuditEvent
from portico.auth.principal import Principal
from portico.protocol.errors import ProtocolError, UsageError
from portico.server.policy import settings as access_settings
from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_gateway import Gateway
from portico_gateway.audit.hook import AuditLogger
from portico_gateway.audit.queries import AuditFilter, newest_events
from portico_services.contracts import Contracts


def audited(server: Server, folder: Path, **said: Any) -> AuditLogger:
    table = {"audit": {"include_stdio": True, "data_dir": str(folder), **said}}
    access_settings.apply(server, access_settings.read(table, folder))
    assert server.policy is not None
    witness = server.policy.audit_hook
    assert isinstance(witness, AuditLogger)
    return witness


async def records(folder: Path, store: str | None = None) -> list[AuditEvent]:
    def read(tx: Transaction) -> list[AuditEvent]:
        return [record for _, record in newest_events(tx, AuditFilter(), 10_000)]

    async with Database(store or str(folder / "audit.db")) as database:
        return sorted(await database.read(read), key=lambda item: item.number)


async def calls(folder: Path, store: str | None = None) -> list[AuditEvent]:
    return [record for record in await records(folder, store) if record.kind == "call"]


def house() -> Server:
    server = Server("house")

    @server.tool(aliases=["plus"])
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @server.tool
    async def twice(ctx: Context, a: int) -> str:
        """Call another."""
        return str((await ctx.call_tool("add", {"a": a, "b": a})).content[0].text)

    @server.tool
    def refuse() -> str:
        """Say no."""
        raise ToolError("a word of the body", error_type="Busy")

    @server.tool
    def secretive(password: str, place: str) -> str:
        """Take a secret."""
        return "done"

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return f"the note {name}"

    @server.prompt
    def greet(who: str) -> str:
        return f"Greet {who}"

    return server


@asynccontextmanager
async def asking(server: Server) -> AsyncIterator[Client]:
    async with Client(server, client_name="tester") as client:
        yield client


async def test_every_call_read_and_prompt_is_one_record(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path)
    async with asking(server) as client:
        await client.list_tools()
        await client.call_tool("plus", {"a": 1, "b": 2})
        await client.read_resource("note://one")
        await client.get_prompt("greet", {"who": "Ann"})
    messages = [(item.method, item.owner, item.name, item.shown, item.outcome) for item in await calls(tmp_path)]
    assert messages == [
        ("tools/call", "house", "add", "plus", "ok"),
        ("resources/read", "house", "note://one", "", "ok"),
        ("prompts/get", "house", "greet", "", "ok"),
    ]
    first = (await calls(tmp_path))[0]
    assert first.client.startswith("tester") and first.revision == "2026-07-28"
    assert len(first.digest) == 64 and first.received > 0 and first.sent > 0 and first.at > 10**15
    assert [item.kind for item in await records(tmp_path)] == ["begin", "call", "call", "call", "end"]


async def test_failures_are_recorded_by_kind_without_messages(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path)
    async with asking(server) as client:
        for name, arguments in (("refuse", {}), ("add", {"a": "no number"}), ("nothing_there", {})):
            with pytest.raises((ToolError, ProtocolError)):
                await client.call_tool(name, arguments)
        with pytest.raises(ProtocolError):
            await client.read_resource("no://such")
    messages = [(call.name, call.outcome, call.error) for call in await calls(tmp_path)]
    assert messages == [
        ("refuse", "error", "Busy"),
        ("add", "invalid", "ValidationError"),
        ("nothing_there", "unknown", "-32602"),
        ("no://such", "unknown", "-32602"),
    ]
    assert b"a word of the body" not in (tmp_path / "audit.db").read_bytes()


async def test_nested_tool_calls_are_recorded_separately(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path)
    async with asking(server) as client:
        await client.call_tool("twice", {"a": 2})
    messages = [(call.name, call.inner, call.outcome) for call in await calls(tmp_path)]
    assert messages == [("add", True, "ok"), ("twice", False, "ok")]


async def test_each_call_of_a_batch_is_recorded_separately(tmp_path: Path) -> None:
    server = house()
    server.add(Contracts())
    audited(server, tmp_path)
    async with asking(server) as client:
        batch = [{"tool_name": "add", "arguments": {"a": 1, "b": 2}}, {"tool_name": "nothing_there"}]
        await client.call_tool("tools_batch", {"calls": batch})
    messages = {(call.owner, call.name, call.outcome, call.inner) for call in await calls(tmp_path)}
    assert messages == {
        ("house", "add", "ok", True),
        ("house", "nothing_there", "unknown", True),
        ("contracts", "tools_batch", "ok", False),
    }


async def test_arguments_are_a_digest_unless_fields_are_chosen(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path, logged_arguments={"house.secretive": ["place", "password"]})
    async with asking(server) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.call_tool("add", {"a": 1, "b": 3})
        await client.call_tool("secretive", {"password": "hunter2-Zk9!qP", "place": "x" * 500})
    item, same, other, chosen = await calls(tmp_path)
    assert item.digest == same.digest != other.digest and not item.fields
    assert chosen.fields["place"] == "x" * 200
    assert "hunter2" not in chosen.fields["password"]


@pytest.mark.parametrize("mode", ["redacted", "omitted"])
async def test_arguments_are_recorded_as_configured(tmp_path: Path, mode: str) -> None:
    server = house()
    audited(server, tmp_path, arguments=mode)
    async with asking(server) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    [one] = await calls(tmp_path)
    assert one.fields == ({"a": 1, "b": 2} if mode == "redacted" else {})
    assert bool(one.digest) == (mode == "redacted")


async def test_secret_in_an_address_is_not_kept(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path)
    token = "ghp_" + "a8Kd0Qz7Lm3Xv5Nc1Rt9Yb2We6Uj4Hs8Gf0P"
    async with asking(server) as client:
        with pytest.raises(ProtocolError):
            await client.read_resource(f"https://files.example/x?token={token}")
    assert token.encode() not in (tmp_path / "audit.db").read_bytes()


async def test_lists_and_completions_are_recorded_when_requested(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path, include_lists=True, include_completions=True)
    async with asking(server) as client:
        await client.list_tools()
        await client.list_prompts()
    assert {call.method for call in await calls(tmp_path)} >= {"tools/list", "prompts/list"}


async def test_stdio_is_recorded_only_when_requested(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path, include_stdio=False)
    async with asking(server) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    assert await calls(tmp_path) == []


async def test_gateway_records_the_alias_and_the_inward_name(tmp_path: Path) -> None:
    gateway = Gateway({"math": house()})
    audited(gateway, tmp_path)
    async with asking(gateway) as client:
        await client.call_tool("math_add", {"a": 1, "b": 2})
        with pytest.raises(ToolError):
            await client.call_tool("math_refuse", {})
    messages = [(call.owner, call.name, call.shown, call.upstream, call.outcome) for call in await calls(tmp_path)]
    assert messages == [
        ("math", "add", "math_add", "math", "ok"),
        ("math", "refuse", "math_refuse", "math", "error"),
    ]


async def test_service_is_the_owner_of_its_tools(tmp_path: Path) -> None:
    server, notes = Server("house"), Service("notes")

    @notes.tool
    def keep(text: str) -> str:
        """Keep."""
        return text

    server.add(notes)
    audited(server, tmp_path)
    async with asking(server) as client:
        await client.call_tool("keep", {"text": "x"})
    assert [(call.owner, call.name) for call in await calls(tmp_path)] == [("notes", "keep")]


async def test_task_and_its_run_are_recorded(tmp_path: Path) -> None:
    server = Server("house", store=str(tmp_path / "tasks.db"))

    @server.tool(task="optional")
    async def long(a: int) -> int:
        """Take long."""
        return a

    audited(server, tmp_path)
    async with Client(server) as client:
        task = await client.start_task("long", {"a": 3})
        assert not (await task.result()).is_error
    messages = [
        (call.name, call.outcome, bool(call.job)) for call in await calls(tmp_path) if call.method == "tools/call"
    ]
    assert messages == [("long", "task", False), ("long", "ok", True)]
    [_, ran] = [call for call in await calls(tmp_path) if call.method == "tools/call"]
    assert ran.digest


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    """The store does not take anything."""
    connection = sqlite3.connect(folder / "audit.db", isolation_level=None)
    connection.execute("begin immediate")
    try:
        yield
    finally:
        connection.close()


async def test_full_audit_rejects_where_the_operator_wants_that(tmp_path: Path) -> None:
    server = house()
    audit = audited(server, tmp_path, on_overflow="reject", max_pending=3)
    done = 0
    async with asking(server) as client:
        async with locked(tmp_path):
            with pytest.raises(ToolError, match="calls without a record are not allowed"):
                while done < 1000:
                    await client.call_tool("add", {"a": 1, "b": 2})
                    done += 1
        await audit.writer.flush()
        await client.call_tool("add", {"a": 1, "b": 2})
    assert len(await calls(tmp_path)) == done + 1


async def test_full_queue_counts_dropped_records(tmp_path: Path) -> None:
    server = house()
    audit = audited(server, tmp_path, max_pending=3)
    async with asking(server) as client:
        async with locked(tmp_path):
            for _ in range(50):
                await client.call_tool("add", {"a": 1, "b": 2})
        await audit.writer.flush()
    result = await records(tmp_path)
    dropped = sum(item.note["count"] for item in result if item.kind == "dropped")
    assert dropped > 0
    assert dropped + len(await calls(tmp_path)) == 50


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"retention": "for ever"}, "invalid period"),
        ({"sinks": ["http://siem"]}, "invalid sink"),
        ({"sinks": ["file:/x?format=xml"]}, "format"),
        ({"store": False}, "expected at least one sink"),
        ({"argumens": "none"}, "argumens"),
        ({"on_overflow": "wait"}, "on_overflow"),
    ],
)
def test_mistake_in_the_section_is_explained(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        access_settings.read({"audit": said})


async def test_record_has_the_trace_of_its_request(tmp_path: Path, connect: Any) -> None:
    server = house()
    audited(server, tmp_path)
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with server.lifespan():
        wire = connect(server)
        params = {"name": "add", "arguments": {"a": 1, "b": 2}}
        await wire.request_stateless("tools/call", params, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    [one] = await calls(tmp_path)
    assert one.trace == trace


async def test_files_of_an_audit_are_for_their_owner_alone(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path, sinks=[f"file:{tmp_path}/sent.jsonl"])
    async with asking(server) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    assert open_to_others(tmp_path) <= {"audit-keys.pub"}


def open_to_others(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077}


async def test_actor_chain_is_recorded(tmp_path: Path) -> None:
    server = house()
    audited(server, tmp_path)
    agent = Principal("ann", issuer="https://login.example", actor_chain=("agent", "orchestrator"))
    async with Client(server, principal=agent) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    (item,) = await calls(tmp_path)
    assert (item.principal, item.issuer, item.actors) == ("ann", "https://login.example", ("agent", "orchestrator"))


async def test_flush_waits_for_pending_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are made in a thread, which a busy machine may come to late."""
    server = house()
    audit = audited(server, tmp_path)
    begun, may_go_on = threading.Event(), threading.Event()
    async with Client(server) as client:
        await audit.writer.flush()
        make = audit.writer._build_batch

        def slowly(some: Any) -> Any:
            begun.set()
            assert may_go_on.wait(10)
            return make(some)

        monkeypatch.setattr(audit.writer, "_build_batch", slowly)
        await client.call_tool("add", {"a": 1, "b": 2})
        assert await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.ensure_future(audit.writer.flush())
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        may_go_on.set()
        await asyncio.wait_for(waiting, 10)
        assert [call.name for call in await calls(tmp_path)] == ["add"]


async def test_records_that_cannot_be_made_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = house()
    audit = audited(server, tmp_path)
    async with Client(server) as client:
        await audit.writer.flush()
        with monkeypatch.context() as patch:
            failed = threading.Event()

            def fail(some: Any) -> Any:
                failed.set()
                raise MemoryError

            patch.setattr(audit.writer, "_build_batch", fail)
            await client.call_tool("add", {"a": 1, "b": 2})
            assert await asyncio.to_thread(failed.wait, 10)
        await asyncio.wait_for(audit.writer.flush(), 10)
        await client.call_tool("add", {"a": 1, "b": 2})
        await asyncio.wait_for(audit.writer.flush(), 10)
