"""The system service through a client: tools, resources, prompts, subscriptions and denials."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ProtocolError, Server, ToolError, UsageError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services.system import System

TIMEOUT_SECONDS = 30.0
TOOLS = [
    "eventlog_list_logs",
    "eventlog_query",
    "eventlog_stats",
    "eventlog_follow",
    "fs_search",
    "fs_stat",
    "fs_list",
    "fs_read",
    "fs_checksum",
    "reg_list",
    "reg_read",
    "reg_write",
    "process_list",
    "system_info",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files" / "home" / "alice").mkdir(parents=True)
    (tmp_path / "files" / "home" / "alice" / "notes.txt").write_text(
        "Write to alice@example.org\x1b[31m from 10.1.2.3\n"
    )
    (tmp_path / "files" / "data.bin").write_bytes(bytes(range(256)))
    (tmp_path / "files" / ".env").write_text("PASSWORD=x")
    lines = [
        f"2026-01-01T00:00:{n:02}Z pc7 sshd[{n}]: Failed password for bob from 10.0.0.{n} port 22" for n in range(60)
    ]
    (tmp_path / "app.log").write_text(
        "\n".join(lines) + "\n" + "2026-01-01T00:01:00Z pc7 app: " + "long " * 2000 + "\n"
    )
    return tmp_path


def system(folder: Path, **options: Any) -> System:
    values = {
        "allowed_paths": [folder / "files"],
        "logs": {"app": folder / "app.log"},
        "platform_logs": False,
        "file_index": False,
    }
    return System(**(values | options))


@asynccontextmanager
async def serving(service: System) -> AsyncIterator[Client]:
    server = Server("test", version="1")
    server.add(service)
    async with server.lifespan(), Client(server) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    return (await client.call_tool(tool, arguments)).structured


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await client.call_tool(tool, arguments)
    return str(caught.value)


async def test_listed_tools_match_the_documented_ones(folder: Path) -> None:
    async with serving(system(folder)) as client:
        tools = await client.list_tools()
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            assert tool.description
            assert tool.input_schema["additionalProperties"] is False
            for name, field in tool.input_schema.get("properties", {}).items():
                assert "description" in field or "enum" in field, (tool.name, name)


async def test_dotted_names_are_accepted_and_not_listed(folder: Path) -> None:
    async with serving(system(folder)) as client:
        assert (await ask(client, "eventlog.list_logs"))["count"] == 1
        assert (await ask(client, "fs.list"))["count"] == 1


async def test_page_of_a_log(folder: Path) -> None:
    async with serving(system(folder, privacy="off")) as client:
        page = await ask(client, "eventlog_query", logName="app", limit=2, source="sshd")
        assert [entry["id"] & 0xFFF for entry in page["entries"]]
        first = page["entries"][0]
        assert {name: first[name] for name in ("logName", "level", "source", "eventId", "timestamp", "computer")} == {
            "logName": "app",
            "level": "ERROR",
            "source": "sshd",
            "eventId": 0,
            "timestamp": "2026-01-01T00:00:59Z",
            "computer": "pc7",
        }
        assert (page["totalCount"], page["nextOffset"], page["page"], page["pageSize"], page["hasMore"]) == (
            60,
            2,
            1,
            2,
            True,
        )
        more = await ask(client, "eventlog_query", logName="app", limit=2, source="sshd", cursor=page["nextCursor"])
        assert [entry["timestamp"] for entry in more["entries"]] == ["2026-01-01T00:00:57Z", "2026-01-01T00:00:56Z"]
        assert (more["page"], more["nextOffset"]) == (2, 4)
        offset = await ask(client, "eventlog_query", logName="app", limit=2, source="sshd", offset=2)
        assert offset["entries"] == more["entries"]


async def test_deleted_log_is_still_listed(folder: Path) -> None:
    (folder / "gone.evtx").touch()
    service = system(folder, logs={"gone": folder / "gone.evtx", "app": folder / "app.log"})
    async with serving(service) as client:
        assert (await ask(client, "eventlog_list_logs"))["count"] == 2
        (folder / "gone.evtx").unlink()
        listed = {log["name"]: log for log in (await ask(client, "eventlog_list_logs"))["logs"]}
        assert listed["gone"]["description"] == "Windows event log file: 'gone.evtx' does not exist."
        assert listed["app"]["size"] > 0


async def test_filters_of_a_log(folder: Path) -> None:
    async with serving(system(folder, privacy="off")) as client:
        window = {"startTime": "2026-01-01T00:00:10Z", "endTime": "2026-01-01T00:00:12Z"}
        page = await ask(client, "eventlog_query", logName="APP", minLevel="ERROR", messageContains="FROM 10", **window)
        assert [entry["timestamp"][-3:-1] for entry in page["entries"]] == ["12", "11", "10"]
        stats = await ask(client, "eventlog_stats", logName="app")
        assert stats["byLevel"] == {"ERROR": 60, "INFORMATION": 1}
        assert stats["bySource"] == {"sshd": 60, "app": 1}


async def test_empty_filters_are_ignored(folder: Path) -> None:
    """Many clients fill in every parameter."""
    async with serving(system(folder)) as client:
        nothing = {"source": "", "messageContains": "", "startTime": "", "endTime": "", "cursor": ""}
        assert (await ask(client, "eventlog_query", logName="app", **nothing))["totalCount"] == 61
        empty = dict.fromkeys(
            ("searchText", "path", "fileName", "fileType", "modifiedAfter", "modifiedBefore", "contains", "cursor"), ""
        )
        assert await ask(client, "fs_search", **empty) == await ask(client, "fs_search")
        assert (await ask(client, "process_list", name=""))["count"] > 0


async def test_long_message_is_cut_and_can_be_read_whole(folder: Path) -> None:
    async with serving(system(folder, privacy="off")) as client:
        [entry] = (await ask(client, "eventlog_query", logName="app", source="app"))["entries"]
        assert len(entry["message"]) < 4200
        assert f"read eventlog://app/{entry['id']}]" in entry["message"]
        [content] = await client.read_resource(f"eventlog://app/{entry['id']}")
        assert json.loads(content.text)["entry"]["message"].count("long") == 2000


@pytest.mark.parametrize(
    ("tool", "asked"),
    [("eventlog_query", {"logName": "App"}), ("fs_search", {"fileName": "*"}), ("fs_list", {"path": "PLACE"})],
)
async def test_missing_cryptography_disables_paging_and_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str, asked: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)  # type: ignore[arg-type]
    asked = {name: str(folder / "files") if value == "PLACE" else value for name, value in asked.items()}
    async with serving(system(folder)) as client:
        page = await ask(client, tool, limit=1, **asked)
        assert page["hasMore"]
        assert page["nextCursor"] is None
        assert any("cryptography" in problem and "portico-services[system]" in problem for problem in page["problems"])
        assert "cryptography" in await refused(client, tool, limit=1, cursor="x", **asked)


async def test_wrong_arguments_are_explained(folder: Path) -> None:
    async with serving(system(folder)) as client:
        words = await refused(client, "eventlog_query", logName="app", limit="invalid")
        assert "'limit': expected an integer between 1 and 10000" in words
        assert "Did you mean 'app'" in await refused(client, "eventlog_query", logName="ap")
        assert "startTime must be an ISO 8601 date" in await refused(
            client, "eventlog_query", logName="app", startTime="noon"
        )
        turned = {"startTime": "2026-01-02", "endTime": "2026-01-01"}
        assert "later than endTime" in await refused(client, "eventlog_query", logName="app", **turned)
        assert "cursor does not belong" in await refused(client, "eventlog_query", logName="app", cursor="abc")
        assert (await ask(client, "eventlog_query", logName="app", limit=1))["entries"], "and the next call works"


# Privacy


async def test_personal_names_are_anonymized_by_default(folder: Path) -> None:
    async with serving(system(folder)) as client:
        page = json.dumps(await ask(client, "eventlog_query", logName="app", limit=100, messageContains="failed"))
        response = await ask(client, "fs_search", contains="write")
        for text in (page, json.dumps(response)):
            for name in ("bob", "pc7", "10.0.0.", "10.1.2.3", "alice", "example.org"):
                assert name not in text
        path = response["files"][0]["path"]
        assert "/home/user-" in path
        part = await ask(client, "fs_read", path=path)
        assert "alice" not in part["content"]
        assert part["size"] == 46
        assert "alice" not in json.dumps(await ask(client, "fs_stat", path=path))


async def test_errors_are_anonymized(folder: Path) -> None:
    service = system(folder, allowed_paths=[folder / "files" / "home" / "alice"])
    async with serving(service) as client:
        assert "alice" not in await refused(client, "fs_read", path="/nowhere")


async def test_process_name_is_searchable_by_token(folder: Path) -> None:
    async with serving(system(folder)) as client:
        page = await ask(client, "eventlog_query", logName="app", limit=1, source="sshd")
        token = page["entries"][0]["message"].split(" for ")[1].split()[0]
        again = await ask(client, "eventlog_query", logName="app", limit=1, messageContains=token)
        assert again["totalCount"] == 60


async def test_binary_content_is_rejected_while_anonymization_is_on(folder: Path) -> None:
    async with serving(system(folder)) as client:
        path = str(folder / "files" / "data.bin")
        assert "is not a text file" in await refused(client, "fs_read", path=path)
        assert (await ask(client, "fs_checksum", path=path))["size"] == 256
    async with serving(system(folder, privacy="off")) as client:
        assert (await ask(client, "fs_read", path=path))["encoding"] == "base64"


async def test_tokens_are_the_same_after_a_restart(folder: Path) -> None:
    pages = []
    for _ in range(2):
        async with serving(system(folder, data_dir=folder / "data")) as client:
            pages.append((await ask(client, "eventlog_query", logName="app", limit=5))["entries"])
    assert pages[0] == pages[1]


# Safety


async def test_nothing_outside_and_no_secret_is_read(folder: Path) -> None:
    async with serving(system(folder, privacy="off")) as client:
        assert "outside" in await refused(client, "fs_read", path="/etc/passwd")
        assert "is not allowed" in await refused(client, "fs_read", path=f"{folder}/files/../app.log")
        assert "is denied" in await refused(client, "fs_read", path=f"{folder}/files/.env")
        assert "app.log" not in json.dumps(await ask(client, "fs_search"))
        listed = await ask(client, "fs_list", path=str(folder / "files"))
        assert [row["name"] for row in listed["files"]] == ["data.bin", "home"]


async def test_control_characters_are_made_visible(folder: Path) -> None:
    async with serving(system(folder, privacy="off")) as client:
        part = await ask(client, "fs_read", path=str(folder / "files" / "home" / "alice" / "notes.txt"))
        assert "\\x1b[31m" in part["content"]


async def test_registry_is_read_only_until_it_is_not(folder: Path) -> None:
    values = {"path": r"HKCU\Software\Example", "name": "Answer", "value": 42}
    async with serving(system(folder)) as client:
        assert not (await ask(client, "reg_write", **values, dry_run=True))["written"]
        assert "read-only here" in await refused(client, "reg_write", **values)
    async with serving(system(folder, access_levels={"registry": "read-write"})) as client:
        assert (await ask(client, "reg_write", **values))["written"]
        assert (await ask(client, "reg_read", path=values["path"], name="answer"))["value"] == 42
        assert (await ask(client, "reg_list", path=r"HKCU\Software"))["subkeys"] == ["Example"]


@pytest.mark.parametrize("answer, written", [("yes", True), ("no", False)])
async def test_where_the_user_can_be_asked_writing_is_confirmed(folder: Path, answer: str, written: bool) -> None:
    requests: list[str] = []

    async def elicit(params: Any, *_: Any) -> Any:
        requests.append(params.message)
        return {"value": answer}

    server = Server("test", version="1")
    server.add(system(folder, access_levels={"registry": "read-write"}))
    values = {"path": r"HKCU\Software\Example", "name": "Answer", "value": 42}
    async with server.lifespan(), Client(server, elicitation_handler=elicit) as client:
        if written:
            assert (await ask(client, "reg_write", **values))["written"]
        else:
            assert "the user declined" in await refused(client, "reg_write", **values)
    assert requests == [r"Write 42 to HKEY_CURRENT_USER\Software\Example\Answer?"]


@pytest.mark.parametrize("level", [None, 7])
def test_access_level_that_is_not_a_string_is_rejected(folder: Path, level: Any) -> None:
    with pytest.raises(UsageError, match="access_levels"):
        system(folder, access_levels={"files": level})


@pytest.mark.parametrize(
    ("part", "hint"), [("file", "did you mean 'files'?"), ("fs", "expected one of logs, files, registry, processes")]
)
def test_unknown_part_in_access_levels_is_rejected(folder: Path, part: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"access_levels: unknown part {part!r} ({hint})")):
        system(folder, access_levels={part: "disabled"})


@pytest.mark.parametrize("level", ["disabled", "readonly", ""])
async def test_disabled_or_unknown_access_level_hides_the_components(
    folder: Path, level: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "portico")
    async with serving(system(folder, access_levels={"files": level})) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert not [name for name in names if name.startswith("fs_")]
        assert "eventlog_query" in names
        assert "fs://roots" not in [item.uri for item in await client.list_resources()]
        assert "find-large-files" not in [item.name for item in await client.list_prompts()]
        with pytest.raises(ProtocolError):
            await client.call_tool("fs_list")


def test_privacy_that_is_not_understood_is_strict(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "portico")
    service = system(folder, privacy="none")
    assert service.machine.privacy.level == "strict"
    service.machine.close()


async def test_every_call_leaves_a_record(folder: Path) -> None:
    async with serving(system(folder, data_dir=folder / "data")) as client:
        await ask(client, "fs_list")
        await refused(client, "fs_read", path="/etc/passwd")
        [trail] = await client.read_resource("system://audit")
        records = json.loads(trail.text)["records"]
        assert [(record["tool"], record["outcome"]) for record in records] == [
            ("fs_list", "ok"),
            ("fs_read", "outside"),
        ]
        assert records[1]["previous"] == records[0]["hash"]
    lines = [json.loads(line) for line in (folder / "data" / "system-audit.jsonl").read_text().splitlines()]
    kept = [line["record"] for line in lines if "record" in line]
    assert kept[1]["fields"] == {"path": "/etc/passwd", "offset": 0}


# Resources and prompts


async def test_resources_and_templates(folder: Path) -> None:
    async with serving(system(folder, privacy="off")) as client:
        assert sorted(item.uri for item in await client.list_resources()) == [
            "eventlog://logs",
            "fs://roots",
            "reg://hives",
            "system://audit",
            "system://health",
        ]
        assert sorted(item.uri_template for item in await client.list_resource_templates()) == [
            "eventlog://{logName}",
            "eventlog://{logName}/{id}",
            "fs://{+path}",
            "reg://{+path}",
        ]

        async def text(uri: str) -> str:
            [content] = await client.read_resource(uri)
            return str(content.text)

        assert json.loads(await text("eventlog://logs"))["logs"][0]["name"] == "app"
        assert len(json.loads(await text("eventlog://app"))["entries"]) == 61
        assert (
            await text(f"fs://{folder}/files/home/alice/notes.txt")
            == "Write to alice@example.org\\x1b[31m from 10.1.2.3\n"
        )
        assert json.loads(await text(f"fs://{folder}/files"))["count"] == 2
        assert "HKEY_LOCAL_MACHINE" in json.loads(await text("reg://hives"))["subkeys"]
        assert json.loads(await text("reg://HKCU"))["path"] == "HKEY_CURRENT_USER"
        assert json.loads(await text("system://health"))["privacy"] == "off"
        for uri in ("eventlog://nothing", "eventlog://app/1", f"fs://{folder}/files/nothing", "reg://HKCU/nothing"):
            with pytest.raises(ProtocolError, match="not found"):
                await client.read_resource(uri)
        with pytest.raises(ProtocolError, match="outside"):
            await client.read_resource("fs:///etc/passwd")


async def test_prompts(folder: Path) -> None:
    async with serving(system(folder)) as client:
        assert [prompt.name for prompt in await client.list_prompts()] == [
            "diagnose-errors",
            "find-large-files",
            "explain-event",
        ]
        error = await client.get_prompt("diagnose-errors", {"logName": "app", "hours": "5"})
        assert "last 5 hours" in error.messages[0].content.text
        error = await client.get_prompt("explain-event", {"id": "7", "logName": "A/B"})
        assert "eventlog://A%2FB/7" in error.messages[0].content.text


async def test_names_of_logs_are_completed(folder: Path, connect: Callable[..., Any]) -> None:
    server = Server("test", version="1")
    server.add(system(folder))
    wire = connect(server)
    ref = {"type": "ref/prompt", "name": "diagnose-errors"}
    response = await wire.request_stateless(
        "completion/complete", {"ref": ref, "argument": {"name": "logName", "value": "A"}}
    )
    assert response["result"]["completion"]["values"] == ["app"]


@pytest.mark.parametrize("attached", [True, False])
async def test_log_subscriber_is_notified_when_the_log_grows(
    folder: Path, connect: Callable[..., Any], attached: bool
) -> None:
    service = system(folder, log_poll_interval=3600)
    server = Server("test", version="1")
    server.add(service)
    async with server.lifespan():
        wire = connect(server)
        await wire.initialize("2025-11-25")
        await wire.request("resources/subscribe", {"uri": "eventlog://app"})
        if attached:
            service.attach(server)
        else:
            await wire.request("resources/read", {"uri": "eventlog://app"})
        await service.poll_logs()
        await service.poll_logs()
        assert wire.is_silent
        with (folder / "app.log").open("a") as file:
            file.write("2026-01-01T00:02:00Z pc7 app: more\n")
        await service.poll_logs()
        heard = await wire.receive()
        assert heard["method"] == "notifications/resources/updated"
        assert heard["params"]["uri"] == "eventlog://app"


async def test_every_server_that_has_the_service_tells_of_a_log_that_grows(folder: Path) -> None:
    service, notification = system(folder, log_poll_interval=3600), list[tuple[str, str]]()
    servers = [Server(name, version="1") for name in ("one", "two")]
    for server in servers:
        server.add(service)
        server.notify_resource_updated = lambda uri, name=server.info.name, **_: notification.append((name, uri))  # type: ignore[method-assign,misc]
    await service.poll_logs()
    with (folder / "app.log").open("a") as file:
        file.write("2026-01-01T00:02:00Z pc7 app: more\n")
    await service.poll_logs()
    assert sorted(notification) == [("one", "eventlog://app"), ("two", "eventlog://app")]


async def test_logs_are_checked_by_themselves(folder: Path) -> None:
    looked = threading.Event()
    service = system(folder, log_poll_interval=0.001)
    service.machine.logs.change_stamps = lambda: looked.set() or {}  # type: ignore[method-assign,func-returns-value]
    async with serving(service) as client:
        await ask(client, "eventlog_list_logs")
        assert await asyncio.to_thread(looked.wait, TIMEOUT_SECONDS)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_it_is_the_same_on_every_revision(folder: Path, connect: Callable[..., Any], revision: str) -> None:
    server = Server("test", version="1")
    server.add(system(folder, privacy="off"))
    wire = connect(server)
    if revision != SUPPORTED_PROTOCOL_VERSIONS[-1]:
        await wire.initialize(revision)
    request = {"name": "eventlog_query", "arguments": {"logName": "app", "limit": 1}}
    response = await wire.request_as(revision, "tools/call", request)
    assert json.loads(response["result"]["content"][0]["text"])["totalCount"] == 61


async def test_index_answers_when_complete(folder: Path) -> None:
    service = system(folder, file_index=True, data_dir=folder / "data")
    async with serving(service) as client:
        assert service.machine.index is not None
        assert await asyncio.to_thread(service.machine.index.wait, 1, TIMEOUT_SECONDS)
        response = await ask(client, "fs_search", searchText="notes")
        assert response["usedIndex"]
        assert response["count"] == 1


async def test_service_can_come_and_go(folder: Path) -> None:
    server = Server("test", version="1")
    async with Client(server) as client:
        assert await client.list_tools() == []
        server.add(system(folder))
        assert len(await client.list_tools(refresh=True)) == len(TOOLS)
        server.remove("system")
        assert await client.list_tools(refresh=True) == []
        server.add(system(folder))
        assert await ask(client, "fs_list")


async def test_processes_and_the_machine(folder: Path) -> None:
    pytest.importorskip("psutil")
    async with serving(system(folder)) as client:
        page = await ask(client, "process_list", name="pytest", sort="memory")
        assert page["count"] >= 1
        assert {"pid", "name", "cmdline", "resident_size", "start_time"} <= set(page["processes"][0])
        machine = await ask(client, "system_info")
        assert machine["hostname"].startswith(("host-", "localhost"))
