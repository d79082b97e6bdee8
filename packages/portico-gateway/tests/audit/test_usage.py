"""Usage from the audit log: what counts, hostile names, privacy, formats and periods."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, ToolError
from portico.auth.principal import Principal
from portico.cli.main import main
from portico.protocol.errors import ComponentNotFound
from portico.server.policy import settings as access_settings
from portico.store.database import Database
from portico_gateway import Gateway
from portico_gateway.audit import usage
from portico_gateway.audit.usage import (
    USAGE_DIMENSIONS,
    UsageDimension,
    UsageRecord,
    UsageReport,
    UsageRow,
    aggregate_usage,
    format_csv,
    read_usage,
)
from portico_gateway.cli.usage import run
from portico_gateway.policy.budget_report import RemainingBudget

SECRET = "hunter2-in-an-argument"


def audited(server: Server, folder: Path, **tables: Any) -> Server:
    table = {"audit": {"include_stdio": True, "data_dir": str(folder)}, **tables}
    access_settings.apply(server, access_settings.read(table, folder))
    return server


def house(name: str = "house") -> Server:
    server = Server(name)

    @server.tool
    def echo(text: str = "") -> str:
        """Return the text."""
        return text

    @server.tool
    def fail() -> str:
        """Fail."""
        raise ToolError("no")

    @server.tool
    async def nested(ctx: Context) -> str:
        """Call another."""
        await ctx.call_tool("echo", {"text": "x" * 8000})
        return "done"

    @server.resource("data://{name}")
    def data(name: str) -> str:
        """Return a text."""
        return name

    return server


async def report(folder: Path, by: UsageDimension = "tool", store: str | None = None) -> UsageReport:
    async with Database(store or str(folder / "audit.db")) as database:
        return await database.read(lambda tx: read_usage(tx, by, 0, time.time_ns()))


def calls(result: UsageReport) -> dict[str, tuple[int, int]]:
    return {row.name: (row.calls, row.errors) for row in result.rows}


async def test_calls_and_errors_by_tool_client_and_principal(tmp_path: Path) -> None:
    server = audited(house(), tmp_path)
    for principal, name in ((Principal("ann"), "assistant"), (Principal("bob"), "editor")):
        async with Client(server, principal=principal, client_name=name, client_version="1.2.3") as client:
            await client.call_tool("echo", {"text": "x" * 4000})
            await client.call_tool("fail", raise_on_error=False)
            await client.read_resource("data://one")
            await client.list_tools()
    async with Client(server) as client:
        with pytest.raises(ComponentNotFound):
            await client.call_tool("missing")
    by_tool = await report(tmp_path)
    assert calls(by_tool) == {
        "house.echo": (2, 0),
        "house.fail": (2, 2),
        "(resources/read)": (2, 0),
        "(unknown tool)": (1, 1),
    }
    echo = next(row for row in by_tool.rows if row.name == "house.echo")
    assert echo.p50_ms is not None and echo.p95_ms is not None and 0 <= echo.p50_ms <= echo.p95_ms
    # 4,000 bytes are 1,000 tokens; the envelope adds some, and the structured content repeats the result.
    assert 2000 <= echo.tokens_in < 2600 and 2000 <= echo.tokens_out < 4600
    assert (by_tool.total.calls, by_tool.total.errors) == (7, 3)
    assert calls(await report(tmp_path, "principal")) == {"ann": (3, 1), "bob": (3, 1), "(local)": (1, 1)}
    by_client = calls(await report(tmp_path, "client"))
    assert by_client["assistant"] == by_client["editor"] == (3, 1)
    assert calls(await report(tmp_path, "upstream")) == {"(this server)": (7, 3)}


async def test_calls_by_upstream(tmp_path: Path) -> None:
    gateway = audited(Gateway({"one": house(), "two": house()}), tmp_path)
    async with Client(gateway) as client:
        await client.list_tools()
        for _ in range(3):
            await client.call_tool("one_echo")
        await client.call_tool("two_fail", raise_on_error=False)
    assert calls(await report(tmp_path, "upstream")) == {"one": (3, 0), "two": (1, 1)}
    assert calls(await report(tmp_path)) == {"one.echo": (3, 0), "two.fail": (1, 1)}


async def test_nested_calls_count_without_tokens(tmp_path: Path) -> None:
    async with Client(audited(house(), tmp_path)) as client:
        await client.call_tool("nested")
    result = await report(tmp_path)
    assert calls(result) == {"house.echo": (1, 0), "house.nested": (1, 0)}
    echo = next(row for row in result.rows if row.name == "house.echo")
    assert echo.tokens_in == echo.tokens_out == 0


def test_tasks_and_rounds_count_once() -> None:
    def record(**members: Any) -> UsageRecord:
        return UsageRecord(**{"method": "tools/call", "owner": "a", "name": "b", "micros": 1000, **members})

    (row,) = aggregate_usage(
        [
            record(outcome="asked", received=40, sent=40),
            record(outcome="ok", received=40, sent=400),
            record(outcome="task", received=40, sent=40),
            record(outcome="error", job="1", received=40, sent=40, micros=9_000_000),
        ],
        "tool",
    ).rows
    assert (row.calls, row.errors, row.tokens_in, row.tokens_out) == (2, 1, 30, 120)
    assert row.p95_ms is not None and row.p95_ms > 5000


async def test_usage_needs_no_arguments_and_shows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Client(audited(house(), tmp_path)) as client:
        await client.call_tool("echo", {"text": SECRET})
        with pytest.raises(ComponentNotFound):
            await client.call_tool(SECRET)
        await client.read_resource(f"data://{SECRET}")
    for by in USAGE_DIMENSIONS:
        for form in ("table", "json", "csv"):
            assert await asyncio.to_thread(run, ["--data", str(tmp_path), "--by", by, "--format", form]) == 0
    output = capsys.readouterr()
    assert "house.echo" in output.out and SECRET not in output.out + output.err


async def test_hostile_names_neither_execute_nor_forge_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ['=HYPERLINK("http://evil")', "+1+cmd|' /C calc'!A0", "-2", "@SUM(A1)", "\t=1", "a\nforged,1,1", "\x1b[2Jx"]
    server = audited(house(), tmp_path)
    for name in names:
        async with Client(server, principal=Principal(name), client_name=name, client_version="") as client:
            await client.call_tool("echo")
    for by in ("principal", "client"):
        assert await asyncio.to_thread(run, ["--data", str(tmp_path), "--by", by, "--format", "csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert len(rows) == len(names)
        for row in rows:
            assert row["calls"] == "1" and row["name"].isprintable()
            assert not row["name"].startswith(("=", "+", "-", "@", "\t"))
        assert await asyncio.to_thread(run, ["--data", str(tmp_path), "--by", by]) == 0
        text = capsys.readouterr().out
        assert "\x1b" not in text and len(text.splitlines()) == len(names) + 2


@pytest.mark.parametrize("name", ["=1", " =1", "\u200b=1", "＝1", "\ufeff=1", "\r=1", "'=1", "a,b", 'a"b', "a=1"])
def test_cell_is_never_a_formula(name: str) -> None:
    row = UsageRow(name, 1, 0, None, 1.5, 2, 3)
    header, values = csv.reader(io.StringIO(format_csv([row])))
    assert header == ["name", "calls", "errors", "p50_ms", "p95_ms", "tokens_in", "tokens_out"]
    assert values[1:] == ["1", "0", "", "1.5", "2", "3"]
    assert values[0].isprintable() and not values[0].startswith(("=", "＝"))
    assert (values[0] == name) == (name in ("'=1", "a,b", 'a"b', "a=1"))


@pytest.mark.parametrize("name", ["x;=1+1", 'x";=1+1', "x;@sum(1)"])
def test_spreadsheets_that_separate_by_semicolon_find_no_formula_in_csv(name: str) -> None:
    budget = RemainingBudget(name, "calls", 1, 2)
    text = format_csv([UsageRow(name, 1, 0, None, 1.5, 2, 3, budgets=[budget, budget])])
    for cell in text.splitlines()[1].split(";"):
        assert not cell.lstrip(' "').startswith(("=", "@"))


def test_number_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_GROUPS", 10)
    records = [UsageRecord(method="tools/call", client=f"client{number} 1.0", outcome="ok") for number in range(50)]
    result = aggregate_usage(records, "client")
    assert len(result.rows) == 11 and result.rows[0].name == "(other)" and result.rows[0].calls == 40
    assert result.total.calls == 50


async def test_names_of_rejected_calls_are_not_trusted(tmp_path: Path) -> None:
    server = audited(house(), tmp_path, limit=[{"calls_per_month": 2}])
    async with Client(server) as client:
        for name in ("echo", "echo", "echo", SECRET, f"{SECRET}2"):
            with suppress(ComponentNotFound):
                await client.call_tool(name, raise_on_error=False)
    assert calls(await report(tmp_path)) == {"house.echo": (3, 1), "(rejected)": (2, 2)}


BUDGETS = [
    {"name": "free", "calls_per_month": 10, "tokens_per_month": 100_000},
    {"name": "echo", "tool": "house.echo", "calls_per_month": 3},
    # Not one budget for each principal.
    {"name": "everyone", "by": "provider", "tool": "house.*", "calls_per_month": 50},
]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_remaining_budgets_of_principals(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    store = None if engine == "sqlite" else request.getfixturevalue("postgres_url")
    server = house()
    server.data_dir = str(tmp_path)
    if store is not None:
        server.store = store
    audited(server, tmp_path, limit=BUDGETS)
    callers = [
        (Principal("ann", issuer="https://login.example"), 2),
        (Principal("a#b"), 1),
        (Principal("bob"), 4),
        (None, 1),
    ]
    place = ["--data", str(tmp_path)] if store is None else ["--store", store]
    for principal, times in callers:
        async with Client(server, principal=principal) as client:
            for _ in range(times):
                await client.call_tool("echo", raise_on_error=False)

    async def show(*words: str) -> str:
        assert await asyncio.to_thread(run, [*place, *words]) == 0
        return capsys.readouterr().out

    rows = {row["name"]: row["budgets"] for row in json.loads(await show("--by", "principal", "--format", "json"))}
    left = {
        name: {(budget["name"], budget["unit"]): budget["left"] for budget in budgets} for name, budgets in rows.items()
    }
    assert left["https://login.example#ann"].pop(("free", "tokens")) < 100_000
    assert left["https://login.example#ann"] == {("free", "calls"): 8, ("echo", "calls"): 1}
    assert left["a#b"]["free", "calls"] == 9 and left["(local)"]["echo", "calls"] == 2
    assert left["bob"]["echo", "calls"] == 0 and left["bob"]["free", "calls"] >= 6
    lines = [" ".join(line.split()) for line in (await show("--by", "principal")).splitlines()]
    assert "PRINCIPAL BUDGET LEFT THIS MONTH OF UNIT" in lines and "bob echo 0 3 calls" in lines
    assert "LEFT THIS MONTH" not in await show("--by", "tool")
    assert "budgets" not in await show("--by", "principal", "--month", "2026-01", "--format", "json")
    cells = {
        row["name"]: row["budgets"]
        for row in csv.DictReader(io.StringIO(await show("--by", "principal", "--format", "csv")))
    }
    assert cells["a#b"].startswith("echo: 2 of 3 calls; free: 9 of 10 calls; ")
    # A budget that the settings no longer have is not reported.
    audited(server, tmp_path, limit=BUDGETS[:1])
    async with Client(server) as client:
        await client.call_tool("echo")
    lines = [" ".join(line.split()) for line in (await show("--by", "principal")).splitlines()]
    assert "(local) free 8 10 calls" in lines and not any(" echo " in line for line in lines)


def test_principals_of_two_issuers_are_two() -> None:
    records = [
        UsageRecord(method="tools/call", principal="ann", issuer=issuer, address="10.0.0.1")
        for issuer in ("https://one", "https://two", "")
    ]
    records.append(UsageRecord(method="tools/call", address="10.0.0.1"))
    assert {row.name for row in aggregate_usage(records, "principal").rows} == {
        "https://one#ann",
        "https://two#ann",
        "ann",
        "(anonymous)",
    }


@pytest.mark.parametrize(
    "client, name",
    [
        ("claude-code 2.1.0", "claude-code"),
        ("Claude Desktop", "Claude Desktop"),
        ("my client v1", "my client"),
        ("", "id"),
        ("7", "7"),
    ],
)
def test_clients_are_grouped_without_their_versions(client: str, name: str) -> None:
    record = UsageRecord(method="tools/call", client=client, client_id="id")
    assert aggregate_usage([record], "client").rows[0].name == name


async def test_changed_records_are_skipped(tmp_path: Path) -> None:
    async with Client(audited(house(), tmp_path)) as client:
        await client.call_tool("echo")
    async with Database(str(tmp_path / "audit.db")) as database:
        for number, body in enumerate(('{"kind":', '{"micros":"x"}', "[" * 5000, '{"received":-5}')):
            row = ["evil", number, time.time_ns() // 1000, body, ""]
            await database.write(
                lambda tx, row=row: tx.execute(  # type: ignore[misc]
                    "insert into audit_record (chain, number, at, body, hash) values (?, ?, ?, ?, ?)", row
                )
            )
    assert calls(await report(tmp_path)) == {"house.echo": (1, 0)}


async def test_workers_and_restarts_add_up(tmp_path: Path, postgres_url: str) -> None:
    for _ in range(2):
        servers = [
            audited(house(), tmp_path, audit={"include_stdio": True, "store": postgres_url, "data_dir": str(tmp_path)})
            for _ in range(2)
        ]
        async with Client(servers[0]) as client, Client(servers[1]) as two:
            await asyncio.gather(client.call_tool("echo"), two.call_tool("echo"), two.call_tool("echo"))
    assert calls(await report(tmp_path, store=postgres_url)) == {"house.echo": (6, 0)}


async def test_periods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Client(audited(house(), tmp_path)) as client:
        await client.call_tool("echo")

    async def names(*words: str) -> list[str]:
        arguments = ["--data", str(tmp_path), "--format", "jsonl", *words]
        assert await asyncio.to_thread(run, arguments) == 0
        return [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]

    month = time.strftime("%Y-%m", time.gmtime())
    assert await names() == await names("--month", month) == await names("--since", "1h") == ["house.echo"]
    assert await names("--month", "1999-12") == await names("--until", "1h", "--since", "2h") == []


async def test_pages_are_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_gateway.audit.queries.PAGE_ROWS", 3)
    async with Client(audited(house(), tmp_path)) as client:
        for _ in range(10):
            await client.call_tool("echo")
    assert calls(await report(tmp_path)) == {"house.echo": (10, 0)}


@pytest.mark.parametrize(
    "words, message",
    [
        (("--month", "2026-13"), "expected a form such as 2026-11"),
        (("--month", "2026-11", "--since", "1h"), "--month cannot be combined"),
        (("--since", "1h", "--until", "2h"), "--since must be before --until"),
        (("--since", "yesterday"), "invalid time"),
        (("--by", "tol"), "tool"),
        (("--format", "xml"), "csv"),
        ((), "A server records its calls if its settings file has [audit]"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["usage", "--data", str(tmp_path), *words])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
