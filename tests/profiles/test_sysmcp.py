"""The exchanges of SysMCP's protocol documentation, with `--profile sysmcp` and a log named System."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from portico_services import assembly

pytestmark = pytest.mark.broken_frames("the profile wants members that no revision has")

Serve = Callable[..., Awaitable[Any]]

OPEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"clientInfo": {"name": "Claude", "version": "1.0.0"}, "protocolVersion": "2024-11-05"},
}
OPENED = (
    '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},'
    '"serverInfo":{"name":"SysMCP","version":"1.0.0"}}}'
)
# The six of the document, in its order; behind them what lists what reg_read reads.
LISTED = [
    "eventlog_query",
    "eventlog_list_logs",
    "fs_search",
    "fs_stat",
    "reg_read",
    "reg_write",
    "reg_list",
    "fs_read",
]
ENTRIES = 523


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """As a user would write it: a log of JSON lines, called System."""
    lines = (
        {
            "timestamp": f"2024-02-10T10:{number // 60 % 60:02}:{number % 60:02}Z",
            "level": "ERROR" if number % 10 == 0 else "INFO",
            "source": "kernel",
            "message": f"Event {number}",
        }
        for number in range(ENTRIES)
    )
    (tmp_path / "system.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "plan.txt").write_text("The plan.\n")
    path = tmp_path / "portico.toml"
    path.write_text(
        "[services.system]\n"
        f"logs = {{ System = {str(tmp_path / 'system.jsonl')!r} }}\n"
        f"allowed_paths = [{str(tmp_path / 'notes')!r}]\n"
        'platform_logs = false\nprivacy = "off"\n'
    )
    return path


@pytest.fixture
async def sysmcp(serve: Serve, config: Path) -> Any:
    """Opened as the documented client does: nothing is said between initialize and the first request."""
    child = await serve("sysmcp", "--config", config)
    assert await child.exchange(json.dumps(OPEN)) == OPENED
    return child


# The handshake


async def test_worked_example_leaves_out_the_version(serve: Serve) -> None:
    child = await serve("sysmcp")
    line = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"Claude","version":"1.0"}}}'
    assert await child.exchange(line) == OPENED
    listed = await child.request({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
    assert [tool["name"] for tool in listed["result"]["tools"]] == LISTED


@pytest.mark.parametrize("params", [{"protocolVersion": "2024-11-05"}, {"clientInfo": "Claude"}, {}])
async def test_initialize_without_client_info_is_rejected(serve: Serve, params: dict[str, Any]) -> None:
    child = await serve("sysmcp")
    answer = await child.request({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    assert answer["error"]["code"] == -32602
    assert (await child.request(OPEN))["result"]["serverInfo"]["name"] == "SysMCP"


async def test_server_has_only_tools(sysmcp: Any) -> None:
    for method in ("resources/list", "prompts/list", "logging/setLevel"):
        assert (await sysmcp.child.request(method, {"level": "info"}))["error"]["code"] == -32601


# Folders


async def test_folders_are_named_on_the_command_line(serve: Serve, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    child = await serve("sysmcp", "--allow-path", tmp_path / "one", "--allow-path", tmp_path / "two")
    await child.request(OPEN)
    response = (await child.call("fs_search", fileName="*.txt"))["result"]["data"]["files"]
    assert sorted(item["name"] for item in response) == ["one.txt", "two.txt"]
    told = (await child.call("fs_stat", path=str(tmp_path / "two" / "two.txt")))["result"]["data"]
    assert told["size"] == 3
    assert (await child.call("fs_stat", path=str(tmp_path)))["result"]["success"] is False


async def test_rejection_without_allowed_paths_names_the_command_line_option(serve: Serve) -> None:
    child = await serve("sysmcp")
    await child.request(OPEN)
    for tool, arguments in (("fs_stat", {"path": "/etc/hosts"}), ("fs_stat", {"path": "hosts"}), ("fs_search", {})):
        message = (await child.call(tool, **arguments))["result"]["error"]["message"]
        assert "portico serve --allow-path PATH" in message
        assert "allowed_paths=" not in message
    message = (await child.call("reg_write", path="HKCU\\Software\\X", name="n", value=1))["result"]["error"]["message"]
    assert "access_levels=" not in message and "[services.system]" in message


# tools/list


async def test_tool_parameters_match_the_document(sysmcp: Any) -> None:
    query = (await sysmcp.tools())["eventlog_query"]
    assert query["description"]
    schema = query["inputSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["logName"])
    kinds = {name: item["type"] for name, item in schema["properties"].items()}
    documented = {"logName": "string", "limit": "number", "offset": "number", "minLevel": "string", "source": "string"}
    assert documented.items() <= kinds.items()
    limit, level = schema["properties"]["limit"], schema["properties"]["minLevel"]
    assert (limit["default"], limit["maximum"], limit["multipleOf"]) == (100, 10_000, 1)
    assert set(level["enum"]) >= {"INFORMATION", "WARNING", "ERROR"}
    assert all(item["description"] for item in schema["properties"].values())


async def test_without_services_the_list_is_empty(serve: Serve) -> None:
    child = await serve("sysmcp", "--services", "")
    await child.request(OPEN)
    assert await child.exchange('{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}') == (
        '{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}'
    )


# tools/call


async def test_query_answers_with_success_and_data(sysmcp: Any) -> None:
    result = (await sysmcp.call("eventlog_query", logName="System", limit=100))["result"]
    assert (result["success"], result["status"], result["isError"]) == (True, "success", False)
    assert "error" not in result
    data = result["data"]
    assert (len(data["entries"]), data["totalCount"], data["nextOffset"]) == (100, ENTRIES, 100)
    assert (data["page"], data["pageSize"]) == (1, 100)
    entry = data["entries"][0]
    assert isinstance(entry["id"], int)
    assert (entry["logName"], entry["source"], entry["message"]) == ("System", "kernel", "Event 522")
    assert entry["timestamp"] == "2024-02-10T10:08:42Z"
    assert entry["eventId"] == 0
    # The same for clients that read content.
    assert json.loads(result["content"][0]["text"]) == data


async def test_pages_follow_one_another_by_offset(sysmcp: Any) -> None:
    data = (await sysmcp.call("eventlog_query", logName="System", limit=100, offset=100))["result"]["data"]
    assert (data["page"], data["nextOffset"], data["entries"][0]["message"]) == (2, 200, "Event 422")
    data = (await sysmcp.call("eventlog_query", logName="System", minLevel="ERROR", limit=2))["result"]["data"]
    assert [entry["level"] for entry in data["entries"]] == ["ERROR", "ERROR"]


async def test_wrong_argument_is_a_result_with_its_details(sysmcp: Any) -> None:
    line = (
        '{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"eventlog_query",'
        '"arguments":{"logName":"System","limit":"invalid"}}}'
    )
    answer = json.loads(await sysmcp.exchange(line))
    assert answer["id"] == 4
    result = answer["result"]
    assert (result["success"], result["data"], result["isError"]) == (False, None, True)
    error = result["error"]
    assert (error["code"], error["message"]) == ("InvalidParams", "Invalid parameter: limit must be a number")
    assert error["details"] == {"path": "arguments.limit", "expected": "number", "received": "string"}
    message = {"parameter": "limit", "constraint": "an integer between 1 and 10000", "provided_value": "invalid"}
    assert (error["error_type"], error["error_details"]) == ("ValidationError", message)
    # Nothing is broken by it.
    assert (await sysmcp.call("eventlog_query", logName="System", limit=1))["result"]["success"] is True


@pytest.mark.parametrize(
    "arguments, path",
    [
        ({}, "arguments.logName"),
        ({"logName": "System", "limit": 0}, "arguments.limit"),
        ({"logName": "System", "limit": 1.5}, "arguments.limit"),
        ({"logName": "System", "limti": 1}, "arguments.limti"),
        ({"logName": ["System"]}, "arguments.logName"),
    ],
)
async def test_every_problem_is_reported(sysmcp: Any, arguments: dict[str, Any], path: str) -> None:
    error = (await sysmcp.call("eventlog_query", **arguments))["result"]["error"]
    assert (error["code"], error["details"]["path"]) == ("InvalidParams", path)
    assert error["details"]["expected"]
    assert error["details"]["received"]


async def test_text_for_a_number_is_rejected_in_the_words_of_the_document(sysmcp: Any) -> None:
    result = (await sysmcp.call("eventlog_query", logName="System", limit="5"))["result"]
    assert result["success"] is False
    assert result["error"]["message"] == "Invalid parameter: limit must be a number"
    assert result["error"]["details"] == {"path": "arguments.limit", "expected": "number", "received": "string"}


async def test_tool_error_has_a_failure_envelope(sysmcp: Any) -> None:
    result = (await sysmcp.call("eventlog_query", logName="Nothing"))["result"]
    assert (result["success"], result["status"], result["data"]) == (False, "failure", None)
    assert (result["error"]["code"], result["error"]["error_type"]) == ("ToolExecutionError", "ResourceNotFound")
    assert result["error"]["message"] == result["content"][0]["text"]


async def test_unknown_tool_has_the_name_for_it(sysmcp: Any) -> None:
    error = (await sysmcp.call("eventlog_qurey"))["error"]
    assert (error["code"], error["message"]) == (-32602, "Unknown tool: eventlog_qurey")
    assert error["data"]["code"] == "MCP-ToolNotFound"
    assert error["data"]["suggestions"] == ["eventlog_query"]


async def test_all_six_tools_do_their_work(sysmcp: Any, tmp_path: Path) -> None:
    logs = (await sysmcp.call("eventlog_list_logs"))["result"]["data"]["logs"]
    assert [log["name"] for log in logs] == ["System"]
    response = (await sysmcp.call("fs_search", fileName="*.txt"))["result"]["data"]
    assert [Path(file["path"]).name for file in response["files"]] == ["plan.txt"]
    about = (await sysmcp.call("fs.stat", path=str(tmp_path / "notes" / "plan.txt")))["result"]["data"]
    assert about["size"] == 10
    # Reading alone, unless somebody says otherwise.
    refused = (await sysmcp.call("reg_write", path="HKEY_CURRENT_USER\\Software\\A", name="x", value=1))["result"]
    assert (refused["success"], refused["error"]["error_type"]) == (False, "PermissionError")
    absent = (await sysmcp.call("reg_read", path="HKEY_CURRENT_USER\\Software\\A", name="x"))["result"]
    assert (absent["success"], absent["error"]["error_type"]) == (False, "ResourceNotFound")


async def test_registry_that_may_be_written_is_read_again(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "writing.toml"
    config.write_text('[services.system]\naccess_levels = { registry = "read-write" }\n')
    child = await serve("sysmcp", "--config", config)
    await child.request(OPEN)
    where = {"path": "HKEY_CURRENT_USER\\Software\\A", "name": "x"}
    assert (await child.call("reg_write", **where, value="seven"))["result"]["success"] is True
    assert (await child.call("reg_read", **where))["result"]["data"]["value"] == "seven"


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_later_revisions_have_structured_content_instead(serve: Serve, config: Path, revision: str) -> None:
    child = await serve("sysmcp", "--config", config)
    await child.open(revision)
    result = (await child.call("eventlog_query", logName="System", limit=1))["result"]
    assert result.keys() == {"content", "structuredContent", "isError"}
    wrong = (await child.call("eventlog_query", logName="System", limit="invalid"))["result"]
    assert wrong.keys() == {"content", "isError", "_meta"}
    assert wrong["_meta"]["portico/error"]["error_type"] == "ValidationError"


# Services that come and go


async def test_service_is_removed_and_added_without_a_new_connection(
    connect: Callable[..., Any], tmp_path: Path
) -> None:
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "store.db"))
    server = assembly.build_server(None, assembly.read_settings("sysmcp", None), place)
    wire = connect(server)
    await wire.request_as("2024-11-05", "initialize", OPEN["params"])

    async def listed() -> list[str]:
        return [tool["name"] for tool in (await wire.request("tools/list"))["result"]["tools"]]

    assert await listed() == LISTED
    (system,) = server.services
    server.remove("system")
    assert await listed() == []
    assert (await wire.request("tools/call", {"name": "eventlog_list_logs"}))["error"]["code"] == -32602
    server.add(system)
    assert await listed() == LISTED
    assert wire.is_silent


async def test_operator_switches_services_on_stdio(serve: Serve) -> None:
    child = await serve("sysmcp", "--service-admin")
    await child.request(OPEN)
    switches = ["service_list", "service_enable", "service_disable"]
    assert list(await child.tools()) == [*LISTED, *switches]
    await child.call("service_disable", name="system")
    assert list(await child.tools()) == switches
    assert (await child.call("eventlog_list_logs"))["error"]["code"] == -32602
    await child.call("service_enable", name="system")
    assert set(await child.tools()) == {*LISTED, *switches}
    assert (await child.call("eventlog_list_logs"))["result"]["success"] is True


# The log


async def test_log_records_requests_and_standard_output_does_not(serve: Serve, config: Path) -> None:
    child = await serve("sysmcp", "--config", config, PORTICO_LOG_LEVEL="debug")
    await child.request(OPEN)
    await child.tools()
    await child.call("eventlog_query", logName="System", limit="invalid")
    await child.call("eventlog_query", logName="System", limit=1)
    await child.call("fs_stat", path="/etc/hosts")
    code, rest, log = await child.end()
    assert (code, rest) == (0, "")
    lines = [line.partition("portico.trace: ")[2] for line in log.splitlines()]

    def said(kind: str) -> list[str]:
        return [line.removeprefix(f"{kind}: ") for line in lines if line.startswith(f"{kind}: ")]

    assert [line.split()[0] for line in said("incoming message")] == ["initialize", "tools/list"] + ["tools/call"] * 3
    assert '"logName":"System"' in said("incoming message")[2].replace(" ", "")
    assert said("handler invocation")[2] == "tools/call eventlog_query at 2024-11-05"
    assert said("tool discovery") == [f"tools/list returned {len(LISTED)}: {', '.join(LISTED)}"]
    (invalid,) = said("validation error")
    assert invalid.startswith("tools/call eventlog_query: ") and "limit" in invalid
    opened, result, refused = said("execution result")
    assert opened.startswith("initialize returned ") and "SysMCP" in opened
    assert result.startswith("tools/call eventlog_query returned ") and "Event 522" in result
    assert refused.startswith("tools/call fs_stat failed, PermissionError: ") and "outside" in refused
    assert [line.split(" took ")[0] for line in said("performance")][1:3] == ["tools/list", "tools/call eventlog_query"]
    assert "Said" not in log and "server/discover" not in log
