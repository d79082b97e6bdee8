"""Export of the audit log: sinks, formats and `portico audit`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico.audit.records import AuditEvent
from portico.auth.errors import AuthorizationError
from portico.protocol.errors import InvalidParams
from portico.server.http import serve_http
from portico.server.policy import settings as access_settings
from portico_gateway.audit.formats import format_cef, format_jsonl, format_ocsf
from support.forks import ForkServer

TIMEOUT_SECONDS = 60.0


def house(folder: Path, **said: Any) -> Server:
    server = Server("house")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @server.tool
    async def refuse() -> str:
        """Say no."""
        raise ToolError("no", error_type="PermissionError")

    table = {"audit": {"include_stdio": True, "data_dir": str(folder), **said}}
    access_settings.apply(server, access_settings.read(table, folder))
    return server


async def used(server: Server, times: int = 3) -> None:
    async with Client(server) as client:
        for at in range(times):
            await client.call_tool("add", {"a": at, "b": 1})
        with pytest.raises(ToolError):
            await client.call_tool("refuse", {})


Audit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def audit(fork_server: ForkServer) -> Audit:
    """`audit(folder, "verify")` runs `portico audit`."""
    return lambda folder, *words: fork_server.run("audit", *words, "--data", folder)


# The command


async def test_command_lists_and_verifies(audit: Audit, tmp_path: Path) -> None:
    await used(house(tmp_path))
    done = await asyncio.to_thread(audit, tmp_path, "verify", "--format", "table")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"verified: 6 records in 1 chains, 2 checkpoints; last checkpoint: 2:[0-9a-f]{64}\n", done.stdout
    ), done.stdout
    done = await asyncio.to_thread(audit, tmp_path, "list", "--outcome", "denied")
    [line] = done.stdout.splitlines()
    assert json.loads(line)["name"] == "refuse"
    done = await asyncio.to_thread(audit, tmp_path, "list", "--target", "house.a*", "--limit", "2", "--since", "1h")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["add", "add"]
    done = await asyncio.to_thread(audit, tmp_path, "list", "--principal", "ann", "--format", "table")
    assert done.stdout == "" and re.fullmatch(r"records from .*audit\.db\nno records\n", done.stderr), done.stderr


async def test_exported_audit_can_be_verified(audit: Audit, tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "all.jsonl"
    await used(house(data))
    lines = (await asyncio.to_thread(audit, data, "export")).stdout
    file.write_text(lines)
    assert (await asyncio.to_thread(audit, data, "verify", "--input", str(file))).returncode == 0
    rows = lines.splitlines(keepends=True)
    for bent, word in (
        ([*rows[:2], *rows[3:]], "removed: record 3"),
        ([rows[0], rows[2], rows[1], *rows[3:]], "reordered: record 2"),
        ([rows[0], rows[1].replace('"ok"', '"no"'), *rows[2:]], "changed: record 2"),
        ([*rows[:3], rows[2], *rows[3:]], "inserted: record 3"),
        ([*rows[:4], *rows[6:]], "truncated: record 5"),
        ([*rows[:2], "{no json\n", *rows[2:]], "changed: line 3"),
    ):
        file.write_text("".join(bent))
        done = await asyncio.to_thread(audit, data, "verify", "--input", str(file), "--format", "table")
        assert done.returncode == 1
        assert word in done.stdout


async def test_missing_audit_is_a_mistake(audit: Audit, tmp_path: Path) -> None:
    for words, said in (
        (("list",), "no audit log found"),
        (("verify",), "no audit log found"),
        (("verify", "--public-key", "nowhere.pub"), "cannot read nowhere.pub"),
        (("list", "--since", "soon"), "invalid time"),
    ):
        done = await asyncio.to_thread(audit, tmp_path, *words)
        assert done.returncode == 2
        assert said in done.stderr
    assert not list(tmp_path.glob("*"))  # noqa: ASYNC240


# Over HTTP


async def test_http_records_have_address_and_rejected_callers(audit: Audit, tmp_path: Path) -> None:
    server = house(tmp_path, include_stdio=False)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_http(server, port=0, token="right", on_ready=ready.set_result, stop=stop))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        url = await ready
        async with Client(url, headers={"authorization": "Bearer right"}) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
        for _ in range(30):
            with pytest.raises(AuthorizationError):
                async with Client(url, headers={"authorization": "Bearer wrong"}, max_retries=0):
                    pass
        stop.set()
        await serving
    done = await asyncio.to_thread(audit, tmp_path, "list", "--limit", "1000")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    [call] = [item for item in results if item.get("method")]
    assert (call["address"], call["principal"], call["outcome"]) == ("127.0.0.1", "token", "ok")
    refused = [item for item in results if item.get("kind") == "login"]
    assert {item["address"] for item in refused} == {"127.0.0.1"}
    # A flood is counted.
    assert len(refused) == 21
    assert refused[0]["error"].startswith("401")
    assert sum(item.get("note", {}).get("more", 1) for item in refused) >= 30


# Formats


RECORD = AuditEvent(
    number=3,
    at=1_700_000_000_123_456,
    method="tools/call",
    owner="git|hub",
    name="create=issue",
    principal="ann\\o'hara",
    client="editor\n1.0",
    address="192.0.2.7",
    digest="ab",
    decision="deny",
    rule="ops only",
    outcome="denied",
    error="-32602",
    micros=1500,
    received=10,
    sent=20,
    trace="0af7651916cd43dd8448eb211c80319c",
    fields={"repo": "a=b|c"},
)


ROW = ("c1", RECORD.number, RECORD.at, "{}", "ff")


def test_event_of_cef_is_escaped() -> None:
    line = format_cef(ROW, RECORD)
    assert "\n" not in line
    header, message = re.split(r"(?<!\\)\|", line, maxsplit=7)[:7], re.split(r"(?<!\\)\|", line, maxsplit=7)[7]
    assert header[0] == "CEF:0"
    assert header[4:] == ["tools/call", "tools/call create=issue", "7"]
    pairs = dict(re.findall(r"(\w+)=((?:\\=|\\\\|[^=])*?)(?= \w+=|$)", message))
    assert pairs["suser"] == "ann\\\\o'hara"
    assert pairs["request"] == "git|hub.create\\=issue"
    assert pairs["requestClientApplication"] == "editor\\n1.0"
    assert pairs["cs5"] == '{"repo":"a\\=b|c"}'
    assert (pairs["in"], pairs["out"], pairs["act"]) == ("10", "20", "deny")


def test_ocsf_event_has_required_fields() -> None:
    event = json.loads(format_ocsf(ROW, RECORD))
    assert (event["class_uid"], event["category_uid"], event["type_uid"]) == (6003, 6, 600399)
    assert (event["time"], event["severity_id"], event["status_id"]) == (1_700_000_000_123, 3, 2)
    assert event["metadata"]["product"]["name"] == "Portico"
    assert event["metadata"]["correlation_uid"] == RECORD.trace
    assert event["actor"]["user"]["uid"] == "ann\\o'hara"
    assert event["api"]["operation"] == "create=issue"
    assert event["api"]["service"]["name"] == "git|hub"
    assert event["src_endpoint"] == {"ip": "192.0.2.7"}
    assert event["unmapped"]["rule"] == "ops only"
    login = json.loads(format_ocsf(ROW, AuditEvent(number=1, at=2, kind="login", owner="house", outcome="refused")))
    assert (login["class_uid"], login["category_uid"], login["type_uid"]) == (3002, 3, 300201)


# What OCSF 1.x demands of every event of these classes, and of the objects in them.
_EVENT = {"activity_id": int, "category_uid": int, "class_uid": int, "severity_id": int, "time": int, "type_uid": int}
_REQUIRED: dict[int, dict[str, type]] = {
    6003: {**_EVENT, "metadata": dict, "actor": dict, "api": dict, "src_endpoint": dict},
    3002: {**_EVENT, "metadata": dict, "user": dict},
}


@pytest.mark.parametrize("kind", ["call", "login", "begin", "end", "dropped", "restored"])
@pytest.mark.parametrize("outcome", ["", "ok", "denied", "limited", "cancelled", "refused"])
def test_no_record_is_too_poor_for_ocsf(kind: Any, outcome: str) -> None:
    """The least that can be known of a record makes a whole event all the same."""
    event = json.loads(format_ocsf(ROW, AuditEvent(number=1, at=2, kind=kind, outcome=outcome)))
    for name, wanted in _REQUIRED[event["class_uid"]].items():
        assert type(event[name]) is wanted, name
    assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    assert event["metadata"]["version"] and event["metadata"]["product"]["name"]
    if event["class_uid"] == 6003:
        assert event["api"]["operation"] and event["actor"]["user"] and event["src_endpoint"]


# Sinks


async def test_file_gets_every_record_and_every_checkpoint(audit: Audit, tmp_path: Path) -> None:
    sent = tmp_path / "sent.jsonl"
    await used(house(tmp_path / "data", sinks=[f"file:{sent}", f"file:{tmp_path}/sent.cef?format=cef"]))
    assert (await asyncio.to_thread(audit, tmp_path / "data", "verify", "--input", str(sent))).returncode == 0
    lines = (tmp_path / "sent.cef").read_text().splitlines()
    assert len(lines) == 8
    assert all(line.startswith("CEF:0|Portico|Portico|") for line in lines)


@pytest.mark.parametrize("line_break", ["\u2028", "\u2029", "\x85"])
async def test_name_starts_no_other_line_of_a_file(audit: Audit, tmp_path: Path, line_break: str) -> None:
    """Callers choose the names that they call, and readers of a log may split lines at any line break of Unicode."""
    server = house(tmp_path / "data", sinks=[f"file:{tmp_path}/sent.jsonl", f"file:{tmp_path}/sent.ocsf?format=ocsf"])
    async with Client(server) as client:
        with pytest.raises(InvalidParams):
            await client.call_tool(f'x{line_break}{{"chain":"forged"}}', {})
    for name in ("sent.jsonl", "sent.ocsf"):
        lines = (tmp_path / name).read_text().splitlines()
        assert any("forged" in line for line in lines)
        assert all(isinstance(json.loads(line), dict) for line in lines)
    verified = await asyncio.to_thread(audit, tmp_path / "data", "verify", "--input", str(tmp_path / "sent.jsonl"))
    assert verified.returncode == 0, verified.stdout


async def test_without_a_store_a_file_is_an_audit_too(audit: Audit, tmp_path: Path) -> None:
    sent = tmp_path / "sent.jsonl"
    for _ in range(2):
        await used(house(tmp_path / "data", store=False, sinks=[f"file:{sent}"]))
    done = await asyncio.to_thread(audit, tmp_path / "data", "verify", "--input", str(sent), "--format", "table")
    assert done.returncode == 0, done.stdout
    assert "verified: 12 records in 2 chains, 4 checkpoints" in done.stdout
    bent = sent.read_text().replace('"name":"refuse"', '"name":"add"', 1)
    sent.write_text(bent)
    done = await asyncio.to_thread(audit, tmp_path / "data", "verify", "--input", str(sent), "--format", "table")
    assert "changed: record 5" in done.stdout


@pytest.mark.parametrize("scheme", ["syslog", "syslog+udp"])
async def test_syslog_gets_messages_of_rfc_5424(tmp_path: Path, scheme: str) -> None:
    kind = socket.SOCK_DGRAM if scheme == "syslog+udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(TIMEOUT_SECONDS)
        if kind == socket.SOCK_STREAM:
            listening.listen()
        port = listening.getsockname()[1]
        await used(house(tmp_path, sinks=[f"{scheme}://127.0.0.1:{port}?format=cef"]))
        received = await asyncio.to_thread(_received, listening, kind)
    assert len(received) == 8
    for message in received:
        assert re.match(r"<110>1 \d{4}-\d\d-\d\dT[\d:.]+Z \S+ portico \d+ audit - CEF:0\|", message), message


def _received(listening: socket.socket, kind: int) -> list[str]:
    if kind == socket.SOCK_DGRAM:
        return [listening.recv(70_000).decode() for _ in range(8)]
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(TIMEOUT_SECONDS)
        data = b""
        while more := connection.recv(65536):
            data += more
    results = []
    while data:
        length, _, data = data.partition(b" ")
        results.append(data[: int(length)].decode())
        data = data[int(length) :]
    return results


async def test_sink_that_is_away_does_not_hold_up_calls(
    audit: Audit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        await used(house(tmp_path, sinks=[f"syslog://127.0.0.1:{port}"]))
    assert "is unavailable" in caplog.text
    assert "were not delivered to the audit sink" in caplog.text
    assert (await asyncio.to_thread(audit, tmp_path, "verify")).returncode == 0


def test_file_of_settings_puts_an_audit_on_any_server(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from portico import Server\nserver = Server('own')\n\n@server.tool\ndef add(a: int, b: int) -> int:\n"
        "    return a + b\n"
    )
    (tmp_path / "portico.toml").write_text("[audit]\ninclude_stdio = true\n")
    portico = [sys.executable, "-m", "portico"]
    serve = [*portico, "serve", "own.py", "--config", "portico.toml", "--data", "data"]
    called = [*portico, "call", "add", "a=1", "b=2", "--", *serve]
    subprocess.run(called, cwd=tmp_path, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
    done = audit(tmp_path / "data", "list", "--target", "own.add")
    assert json.loads(done.stdout)["outcome"] == "ok"
    assert audit(tmp_path / "data", "verify").returncode == 0


WORKED = """
import asyncio
from portico import Client, Server

server = Server("own")

@server.tool(task="required")
async def slow(a: int) -> int:
    "Take long."
    return a

async def main() -> None:
    server.tasks.concurrency = 0
    async with Client(server) as client:
        task = await client.start_task("slow", {"a": 1})
        await task.result()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_worker_process_records_its_tasks(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WORKED)
    (tmp_path / "portico.toml").write_text("[audit]\n")
    store = str(tmp_path / "tasks.db")
    work = [sys.executable, "-m", "portico", "worker", "own.py", "--config", "portico.toml", "--data", "data"]
    with subprocess.Popen([*work, "--store", store], cwd=tmp_path, stderr=subprocess.PIPE) as working:
        assert working.stderr is not None
        assert b"Running the tasks" in working.stderr.readline()
        environment = {**os.environ, "PORTICO_STORE": store}
        command = [sys.executable, "own.py"]
        subprocess.run(command, cwd=tmp_path, env=environment, timeout=TIMEOUT_SECONDS, check=True, capture_output=True)
        working.terminate()
    done = audit(tmp_path / "data", "list", "--target", "own.slow")
    [record] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (record["outcome"], bool(record["job"])) == ("ok", True)


@pytest.mark.skipif(os.name != "posix", reason="pseudoterminals")
async def test_an_export_to_a_terminal_is_escaped(audit: Audit, tmp_path: Path) -> None:
    server = house(tmp_path)
    async with Client(server, client_name="mallory\u202e\u2066") as client:
        await client.call_tool("add", {"a": 1, "b": 1})
    # A file has the exact text.
    assert "\u202e" in (await asyncio.to_thread(audit, tmp_path, "export")).stdout
    terminal, end = os.openpty()
    command = [sys.executable, "-m", "portico", "audit", "export", "--data", str(tmp_path)]
    await asyncio.to_thread(subprocess.run, command, stdout=end, check=True, timeout=TIMEOUT_SECONDS)
    text = os.read(terminal, 60_000).decode()
    os.close(end)
    os.close(terminal)
    assert "\\u202e\\u2066" in text and "\u202e" not in text


@pytest.mark.parametrize("format_row", [format_jsonl, format_ocsf, format_cef])
def test_row_that_was_written_to_the_database_is_one_line_of_an_export(format_row: Any) -> None:
    text = 'x\n{"chain":"forged"}\r\u2028\u2029\x85\x00\x1b[2J|=\\'
    record = AuditEvent(number=1, at=1, method=text, name=text, principal=text, client=text, address=text)
    chain, body = f'a","record":{{}}}}{text}', f' {{\n"number":1,"name":{json.dumps(text, ensure_ascii=False)}}}\r\n'
    line = format_row((chain, 1, 1, body, "0" * 64), record)
    assert len(line.splitlines()) == 1 and not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    if format_row is format_jsonl:
        assert json.loads(line)["chain"] == chain and json.loads(line)["record"]["number"] == 1
