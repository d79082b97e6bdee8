"""The contracts service: inspection, batches and background calls."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from portico import Client, Context, Server, ToolError
from portico.auth.principal import Principal
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services.contracts import Contracts, background_calls, definitions, lockfile
from portico_services.contracts.api import MCPToolCall, call
from portico_services.contracts.definitions import contract_from_tools
from portico_services.contracts.lint import lint_document
from portico_services.rate_limit import ToolRateLimiter

TIMEOUT_SECONDS = 10.0
OWN = [
    "spec_list",
    "spec_get",
    "spec_render",
    "spec_lint",
    "spec_diff",
    "spec_codegen",
    "tools_search",
    "tools_batch",
    "tool_start",
    "tool_status",
    "tool_result",
    "tool_cancel",
]


@pytest.fixture
def server(shop: Server) -> Server:
    shop.add(Contracts())
    return shop


async def asked(server: Server, name: str, /, **arguments: Any) -> Any:
    async with Client(server) as client:
        return (await client.call_tool(name, arguments)).structured


async def failing_batch(client: Client, *calls: dict[str, Any]) -> Any:
    """Return the results of a batch in which every call fails, which is a failure with the results in its details."""
    with pytest.raises(ToolError, match="results") as failure:
        await client.call_tool("tools_batch", {"calls": list(calls)})
    return failure.value.details["results"]


# Specifications


async def test_everything_is_present(server: Server) -> None:
    async with Client(server) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert names[-len(OWN) :] == OWN
        uris = [str(item.uri) for item in await client.list_resources()]
        assert set(uris) == {
            "spec://contract/tool_call",
            "spec://contract/tool_result",
            "spec://contract/error_detail",
            "spec://contract/context",
            "spec://meta",
            "spec://template",
            "spec://tools",
        }
        assert [item.uri_template for item in await client.list_resource_templates()] == ["spec://tools/{name}"]
        prompts = await client.list_prompts()
        assert [item.name for item in prompts] == ["write-tool-spec", "review-tool-spec"]
        assert [item.name for item in prompts[0].arguments or ()] == ["tool"]


async def test_our_own_tools_keep_to_the_rules(server: Server) -> None:
    async with Client(server) as client:
        for tool in await client.list_tools():
            if tool.name in OWN:
                assert tool.input_schema["additionalProperties"] is False
                assert tool.output_schema is not None
                assert tool.meta is not None
                assert tool.meta["portico/invocation"] == f"contracts.{tool.name}"
                assert definitions.parse_version(tool.meta["portico/version"])
                report = (await client.call_tool("spec_lint", {"tool": tool.name})).structured
                assert (report["errors"], report["warnings"]) == (0, 0)


async def test_tools_are_listed_with_their_versions(server: Server) -> None:
    listing = await asked(server, "spec_list", limit=2)
    assert (listing["server"], listing["contract_version"], listing["next_offset"]) == ("shop", "1.0.0", 2)
    assert listing["tools"][0] == {
        "name": "buy",
        "invocation": "shop.buy",
        "version": "2.1.0",
        "description": "Buy something.",
        "has_output_schema": True,
        "read_only": False,
    }
    rest = await asked(server, "spec_list", offset=2, limit=1000)
    assert rest["next_offset"] is None
    assert len(rest["tools"]) + 2 == rest["total"]


async def test_specification_comes_in_three_forms(server: Server) -> None:
    markdown = await asked(server, "spec_get", tool="shop.buy")
    assert {item.rule for item in lint_document(markdown["markdown"])} <= {"purpose", "examples", "vocabulary"}
    assert (await asked(server, "spec_render", tool="buy"))["markdown"] == markdown["markdown"]
    definition = (await asked(server, "spec_get", tool="buy", format="json"))["definition"]
    assert definition["name"] == "buy"
    old = (await asked(server, "spec_get", tool="buy", format="draft-07"))["definition"]["inputSchema"]
    assert old["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema_rs.Draft7Validator(old)
    assert "definitions" in old


async def test_spec_lint_checks_a_text(server: Server) -> None:
    report = await asked(server, "spec_lint", text="nothing")
    assert report["ok"] is False
    assert report["errors"] >= 8
    with pytest.raises(ToolError, match="either `text` or `tool`"):
        await asked(server, "spec_lint")


async def test_unknown_tool_is_named_with_the_nearest(server: Server) -> None:
    with pytest.raises(ToolError, match="did you mean 'buy'"):
        await asked(server, "spec_get", tool="buyy")


async def test_spec_diff_compares_a_definition_with_the_current_contract(server: Server) -> None:
    definition = (await asked(server, "spec_get", tool="buy", format="json"))["definition"]
    assert (await asked(server, "spec_diff", old=definition))["level"] == "none"
    del definition["inputSchema"]["properties"]["quantity"]
    response = await asked(server, "spec_diff", old=definition)
    assert response["level"] == "minor"
    assert response["versions"][0]["demanded"] == "2.2.0"
    back = await asked(server, "spec_diff", old="buy", new=definition)
    assert back["level"] == "breaking"
    assert "Leave out `quantity`." in back["migration"]


async def test_specifications_lists_and_text_can_be_compared(server: Server) -> None:
    markdown = (await asked(server, "spec_get", tool="buy"))["markdown"]
    assert (await asked(server, "spec_diff", old=markdown))["level"] == "none"
    async with Client(server) as client:
        raw = json.loads(bytes(await client.request("tools/list", {})))
    assert (await asked(server, "spec_diff", old=raw))["level"] == "none"
    assert (await asked(server, "spec_diff", old=json.dumps(raw["tools"][0])))["level"] == "none"
    assert (await asked(server, "spec_diff", old="count", new="advice"))["level"] == "breaking"


async def test_new_lock_has_no_drift(server: Server) -> None:
    async with Client(server) as client:
        tools = [msgspec.to_builtins(tool) for tool in await client.list_tools()]
        assert client.instructions
        for listed in (tools, tools[:1]):
            made = contract_from_tools(listed, server="shop", version="1.4.0", instructions=client.instructions)
            result = (await client.call_tool("spec_diff", {"old": lockfile.dump_lockfile(made)})).structured
            assert (result["level"], result["changes"]) == ("none", [])


@pytest.mark.parametrize("value", ["no such thing", "{", {"a": 1}, [{"a": 1}], {"lock": 9}])
async def test_spec_diff_rejects_values_it_cannot_compare(server: Server, value: Any) -> None:
    with pytest.raises(ToolError, match="cannot be compared"):
        await asked(server, "spec_diff", old=value)


async def test_code_is_generated(server: Server) -> None:
    response = await asked(server, "spec_codegen", language="typescript")
    assert response["file"] == "shop_client.ts"
    assert "async buy(args: BuyArguments): Promise<BuyResult>" in response["code"]
    assert "async def count(self) -> int:" in (await asked(server, "spec_codegen", tool="count"))["code"]


async def test_tools_of_mounted_servers_are_seen_and_called(server: Server) -> None:
    other = Server("other")

    @other.tool
    async def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    server.mount(other, namespace="far")
    assert (await asked(server, "tools_search", query="twice"))["tools"][0]["name"] == "far_double"
    calls = [{"tool_name": "shop.far_double", "arguments": {"number": 4}}]
    assert (await asked(server, "tools_batch", calls=calls))["results"][0]["data"] == {"result": 8}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_it_works_on_every_revision(server: Server, revision: str) -> None:
    async with Client(server, protocol_version=revision) as client:
        result = await client.call_tool("tools_batch", {"calls": [{"tool_name": "count"}]})
        assert json.loads(result.text)["results"][0]["data"] == {"result": 3}


# Resources and prompts


async def test_resources_can_be_read(server: Server) -> None:
    async with Client(server) as client:
        for name in ("tool_call", "tool_result", "error_detail", "context"):
            [contents] = await client.read_resource(f"spec://contract/{name}")
            assert contents.mime_type == "application/schema+json"
            jsonschema_rs.Draft7Validator(json.loads(str(contents.text)))
        [template] = await client.read_resource("spec://template")
        assert lint_document(str(template.text)) == []
        [listing] = await client.read_resource("spec://tools")
        assert json.loads(str(listing.text))["tools"][0]["name"] == "buy"
        [one] = await client.read_resource("spec://tools/shop.buy")
        assert "## Tool: `shop.buy`" in str(one.text)
        with pytest.raises(ProtocolError, match="not found"):
            await client.read_resource("spec://tools/nothing")


async def test_prompts_contain_the_required_sections(server: Server) -> None:
    async with Client(server) as client:
        [write] = (await client.get_prompt("write-tool-spec", {"tool": "buy"})).messages
        assert "**Security Considerations**" in write.content.text  # type: ignore[union-attr]
        assert "## Tool: `shop.buy`" in write.content.text  # type: ignore[union-attr]
        [review] = (await client.get_prompt("review-tool-spec", {"tool": "work"})).messages
        assert "Findings of the linter" in review.content.text  # type: ignore[union-attr]
        with pytest.raises(ProtocolError, match="Unknown tool") as refusal:
            await client.get_prompt("review-tool-spec", {"tool": "nothing"})
        assert refusal.value.code == InvalidParams.code


# Batches


async def test_batch_results_are_in_call_order(server: Server) -> None:
    calls = [
        {"tool_name": "shop.count"},
        {"tool_name": "buy", "arguments": {"product": "sock"}},
        {"tool_name": "buy", "arguments": {"product": 3}},
        {"tool_name": "nothing"},
        {"tool_name": "read_file", "arguments": {"path": "x"}},
        {"tool_name": "contracts.spec_list", "arguments": {"limit": 1}},
    ]
    for parallel in (False, True):
        response = await asked(server, "tools_batch", calls=calls, parallel=parallel)
        assert (response["succeeded"], response["failed"]) == (2, 4)
        types = [result["error"] and result["error"]["error_type"] for result in response["results"]]
        assert types == [None, "ResourceNotFound", "ValidationError", "ResourceNotFound", "FileNotFoundError", None]


async def test_after_a_failure_nothing_more_is_begun_if_that_is_wished(server: Server) -> None:
    calls = [{"tool_name": "count"}, {"tool_name": "nothing"}, {"tool_name": "count"}]
    error = await asked(server, "tools_batch", calls=calls, stop_on_error=True)
    assert [result["status"] for result in error["results"]] == ["success", "failure", "failure"]
    assert error["results"][2]["error"]["error_message"] == "Skipped because call 1 failed."


async def test_batch_runs_in_parallel_up_to_the_limit() -> None:
    server = Server("s")
    server.add(Contracts())
    running = most = 0
    full = asyncio.Event()

    @server.tool
    async def wait() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == background_calls.MAX_PARALLEL_CALLS:
            full.set()
        await full.wait()
        running -= 1

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asked(server, "tools_batch", calls=[{"tool_name": "wait"}] * 20, parallel=True)
    assert most == background_calls.MAX_PARALLEL_CALLS


async def test_batch_of_batches_is_rejected(server: Server) -> None:
    inner = {"tool_name": "tools_batch", "arguments": {"calls": [{"tool_name": "count"}]}}
    async with Client(server) as client:
        [found] = await failing_batch(client, inner)
    assert "cannot be nested" in found["error"]["error_message"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_batch_has_the_status_of_its_calls(server: Server, revision: str) -> None:
    good, bad = {"tool_name": "count", "arguments": {}}, {"tool_name": "nothing", "arguments": {}}
    expected = {"success": [good, good], "partial_success": [good, bad], "failure": [bad, bad]}
    async with Client(server, protocol_version=revision) as client:
        for status, calls in expected.items():
            result = await call(client, MCPToolCall(tool_name="contracts.tools_batch", arguments={"calls": calls}))
            assert result.status == status
            if result.error is None:
                assert result.data is not None and len(result.data["results"]) == 2
            else:
                assert result.error.error_type == "ResourceNotFound"
                assert isinstance(result.error.error_details, dict)
                assert len(result.error.error_details["results"]) == 2


async def test_batch_has_bounds(server: Server) -> None:
    with pytest.raises(ToolError, match="calls"):
        await asked(server, "tools_batch", calls=[{"tool_name": "count"}] * (background_calls.MAX_BATCH_CALLS + 1))
    with pytest.raises(ToolError, match="calls"):
        await asked(server, "tools_batch", calls=[])


async def test_batch_results_over_the_size_limit_are_partial(server: Server) -> None:
    @server.tool
    async def long() -> str:
        return "x" * (background_calls.MAX_BATCH_RESULT_BYTES // 2)

    response = await asked(
        server, "tools_batch", calls=[{"tool_name": "long"}, {"tool_name": "long"}, {"tool_name": "count"}]
    )
    assert [result["status"] for result in response["results"]] == ["success", "partial_success", "success"]
    assert "does not fit" in response["results"][1]["explanation"]


async def test_batch_calls_require_the_scopes_of_each_tool(shop: Server) -> None:
    shop.add(Contracts())

    @shop.tool(scopes=["admin"])
    async def reign() -> str:
        return "done"

    async with Client(shop, principal=Principal("ada", frozenset({"contracts:write"}))) as client:
        [found] = await failing_batch(client, {"tool_name": "reign"})
        assert found["error"]["error_type"] == "PermissionError"


async def test_tool_that_asks_has_to_be_called_by_itself(server: Server) -> None:
    async with Client(server, elicitation_handler=lambda question: {"value": True}) as client:
        [found] = await failing_batch(client, {"tool_name": "ask"})
        assert found["status"] == "failure"
        assert (await client.call_tool("ask")).text == "True"


async def test_progress_and_logs_of_a_batch_are_received(server: Server) -> None:
    steps: list[Any] = []
    messages: list[Any] = []
    async with Client(server, log_level="info", log_handler=lambda item: messages.append(item.data)) as client:
        calls = [{"tool_name": "work"}, {"tool_name": "count"}]
        await client.call_tool("tools_batch", {"calls": calls}, progress_handler=lambda *step: steps.append(step))
    assert steps == [(1, 2, "work"), (2, 2, "count")]
    assert messages == ["did 1", "did 2"]


async def test_open_world_calls_are_limited(shop: Server) -> None:
    shop.add(Contracts(rate_limit=0.001, rate_burst=2))
    inside = {"tool_name": "buy", "arguments": {"product": "x"}}
    response = await asked(shop, "tools_batch", calls=[{"tool_name": "count"}] * 3 + [inside] * 3)
    assert [result["status"] for result in response["results"]] == [
        "success",
        "success",
        "failure",
        "success",
        "success",
        "success",
    ]
    error = response["results"][2]["error"]
    assert error["error_type"] == "ApiLimitExceeded"
    assert error["error_details"]["retry_after"] > 0


def test_bucket_fills_at_its_rate() -> None:
    now = 0.0
    limiter = ToolRateLimiter(2.0, 2, lambda: now)
    assert [limiter.try_acquire("a"), limiter.try_acquire("a"), limiter.try_acquire("b")] == [0, 0, 0]
    assert limiter.try_acquire("a") == 0.5
    now = 0.5
    assert limiter.try_acquire("a") == 0
    assert limiter.try_acquire("a") > 0
    now = 100.0
    assert [limiter.try_acquire("a"), limiter.try_acquire("a")] == [0, 0]
    assert limiter.try_acquire("a") > 0


# Calls that go on by themselves


async def started(client: Client, tool: str, **arguments: Any) -> str:
    result = (await client.call_tool("tool_start", {"tool_name": tool, "arguments": arguments})).structured
    assert result["status"] == "working"
    return str(result["job_id"])


async def ended(client: Client, job: str) -> Any:
    return (await client.call_tool("tool_result", {"job_id": job, "wait": 10})).structured


async def test_background_call_is_started_polled_and_fetched(server: Server) -> None:
    async with Client(server) as client:
        job = await started(client, "shop.work", steps=3)
        assert await ended(client, job) == {
            "job_id": job,
            "status": "completed",
            "result": {"status": "success", "data": {"result": "done"}, "error": None, "explanation": None},
        }
        status = (await client.call_tool("tool_status", {"job_id": job, "since": 1})).structured
        assert (status["progress"], status["total"], status["message"]) == (3, 3, "step 3")
        assert [(item["number"], item["text"]) for item in status["log"]] == [(2, "did 2"), (3, "did 3")]
        assert status["started"].endswith("Z")
        assert status["ended"] >= status["started"]


async def test_call_that_fails_has_failed(server: Server) -> None:
    async with Client(server) as client:
        result = await ended(client, await started(client, "buy", product="sock"))
        assert result["status"] == "failed"
        assert result["result"]["error"]["error_message"] == "There are no socks."
        with pytest.raises(ToolError, match="Unknown tool"):
            await started(client, "nothing")


async def test_call_can_be_stopped(server: Server) -> None:
    async with Client(server) as client:
        job = await started(client, "hang")
        assert (await client.call_tool("tool_result", {"job_id": job})).structured["result"] is None
        result = (await client.call_tool("tool_cancel", {"job_id": job})).structured
        assert result["status"] == "cancelled"
        assert (await ended(client, job))["status"] == "cancelled"


async def test_slow_call_is_ended(shop: Server) -> None:
    shop.add(Contracts(call_timeout=0.01))
    async with Client(shop) as client:
        result = await ended(client, await started(client, "hang"))
        assert (result["status"], result["result"]["error"]["error_type"]) == ("failed", "TimeoutError")


async def test_number_of_running_calls_is_limited(server: Server) -> None:
    async with Client(server) as client:
        for _ in range(background_calls.MAX_RUNNING_CALLS):
            await started(client, "hang")
        with pytest.raises(ToolError, match="running calls is reached"):
            await started(client, "hang")


async def test_one_principal_cannot_hold_every_place(server: Server) -> None:
    async with Client(server, principal=Principal("ann")) as ann, Client(server, principal=Principal("bob")) as bob:
        for _ in range(background_calls.MAX_RUNNING_PER_PRINCIPAL):
            await started(ann, "hang")
        with pytest.raises(ToolError, match="Your limit of"):
            await started(ann, "hang")
        await started(bob, "hang")


async def test_running_calls_are_cancelled_when_the_server_stops() -> None:
    server = Server("s")
    server.add(Contracts())
    stopped = asyncio.Event()
    began = asyncio.Event()

    @server.tool
    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with Client(server) as client:
            await started(client, "hang")
            await began.wait()
        await stopped.wait()


async def test_jobs_of_other_principals_are_not_found(server: Server) -> None:
    async with Client(server, principal=Principal("ada")) as ada, Client(server, principal=Principal("bob")) as bob:
        job = await started(ada, "count")
        assert (await ended(ada, job))["status"] == "completed"
        for name in ("tool_status", "tool_result", "tool_cancel"):
            with pytest.raises(ToolError, match="Unknown job"):
                await bob.call_tool(name, {"job_id": job})


async def test_job_runs_as_the_principal_who_started_it(shop: Server) -> None:
    shop.add(Contracts())

    @shop.tool
    async def who(ctx: Context) -> str:
        return str(ctx.principal.id)

    async with Client(shop, principal=Principal("ada")) as client:
        assert (await ended(client, await started(client, "who")))["result"]["data"] == {"result": "ada"}


async def test_finished_call_is_dropped_after_the_retention_period() -> None:
    now = 0.0
    kept = background_calls.BackgroundCalls(retention=10.0, clock=lambda: now)

    async def work(job: background_calls.BackgroundCall) -> Any:
        return {"status": "success", "data": None, "error": None, "explanation": None}

    job = kept.start("t", "", work)
    assert job.task is not None
    await asyncio.wait([job.task], timeout=TIMEOUT_SECONDS)
    assert kept.find(job.id, "") is job
    now = 11.0
    assert kept.find(job.id, "") is None


async def test_crash_in_a_batch_shows_nothing_of_itself(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "portico")
    response = await asked(server, "tools_batch", calls=[{"tool_name": "crash"}, {"tool_name": "count"}])
    assert "secret" not in json.dumps(response)
    assert [result["status"] for result in response["results"]] == ["failure", "success"]


async def test_batch_calls_are_logged_without_their_arguments(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "portico.contracts")
    await asked(server, "tools_batch", calls=[{"tool_name": "advice", "arguments": {"about": "my secret"}}])
    assert [record.getMessage() for record in caplog.records] == ["'advice': success"]


@pytest.mark.parametrize("revision", [one for one in SUPPORTED_PROTOCOL_VERSIONS if one >= "2025-06-18"])
@pytest.mark.parametrize("tool", ["tools_batch", "tool_start"])
async def test_consent_is_not_skipped_by_calling_from_the_inside(revision: str, tool: str) -> None:
    """A tool that asks its user before it acts, where it can, does not act unasked in a batch or in the background."""
    shop = Server("shop")
    shop.add(Contracts())
    paid: list[int] = []

    @shop.tool
    async def pay(ctx: Context, amount: int) -> str:
        if ctx.client_capabilities.supports_elicitation("form"):
            answer = await ctx.elicit(f"Pay {amount}?", ["yes", "no"])
            if answer.data != "yes":
                raise ToolError("Not paid.")
        paid.append(amount)
        return "paid"

    async with Client(shop, protocol_version=revision, elicitation_handler=lambda question: {"value": "yes"}) as client:
        call = {"tool_name": "pay", "arguments": {"amount": 5}}
        if tool == "tools_batch":
            [result] = await failing_batch(client, call)
        else:
            job = (await client.call_tool(tool, call)).structured["job_id"]
            result = (await client.call_tool("tool_result", {"job_id": job, "wait": 30})).structured["result"]
        assert "call it directly" in result["error"]["error_message"]
        assert paid == []
        await client.call_tool("pay", {"amount": 5})
        assert paid == [5]
