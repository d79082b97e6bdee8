"""The official TypeScript clients of both generations and the Inspector, driven by typescript/*.mjs.

A leg is one client, on one transport, at one revision. It says all it has to say in one conversation, so that Node
starts once; each test looks at one step of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.node_scripts import PINS, Conversation, ScriptResult, Scripts

HERE = Path(__file__).resolve().parent
EVERYTHING = HERE.parent.parent / "examples" / "everything.py"
SMALL = f"{HERE / 'server.py'}:server"
BOUNDED = f"{HERE / 'server.py'}:bounded"
MODERN = "2026-07-28"


class Leg(NamedTuple):
    client: str
    transport: str
    revision: str

    @property
    def modern(self) -> bool:
        return self.revision >= MODERN


# The first client offers one revision alone; over HTTP its script has a way to change the offer.
LEGS = [
    Leg("v1", "stdio", "2025-11-25"),
    Leg("v1", "http", "2025-03-26"),
    Leg("v1", "http", "2025-06-18"),
    Leg("v1", "http", "2025-11-25"),
    Leg("v2", "stdio", "2025-11-25"),
    Leg("v2", "stdio", "2026-07-28"),
    Leg("v2", "http", "2025-03-26"),
    Leg("v2", "http", "2025-06-18"),
    Leg("v2", "http", "2025-11-25"),
    Leg("v2", "http", "2026-07-28"),
]


@pytest.fixture(scope="module", params=LEGS, ids="-".join)
def leg(request: pytest.FixtureRequest) -> Leg:
    return request.param


@pytest.fixture(scope="module")
def said(leg: Leg, scripts: Scripts, serve: Callable[..., Any]) -> Conversation:
    talk = partial(scripts.run, f"{leg.client}.mjs", leg.revision)
    if leg.transport == "stdio":
        return Conversation(talk(*(json.dumps(_words(server)) for server in (EVERYTHING, SMALL, BOUNDED))))
    with serve("everything") as everything, serve("changing") as small, serve("bounded") as bounded:
        return Conversation(talk(everything, small, bounded))


def _words(server: object) -> list[str]:
    return [sys.executable, "-m", "portico", "serve", str(server)]


# The clients


def test_client_gets_the_requested_version_and_server_info(leg, said):
    assert said["opening"]["revision"] == leg.revision
    assert said["opening"]["server"] == "everything"
    assert said["opening"]["instructions"].startswith("Every feature of the protocol")
    assert {"completions", "logging", "prompts", "resources", "tools"} <= {*said["opening"]["capabilities"]}


def test_ping_is_answered_on_versions_that_have_it(leg, said):
    if not leg.modern:
        assert said["ping"] == {}


def test_tools_are_listed_and_called(said):
    assert said["tools"][:2] == ["test_simple_text", "test_image_content"]
    assert said["text"] == "This is a simple text response for testing."
    assert said["contents"] == ["text", "image", "resource"]


def test_value_is_structured_from_2025_06_18_on_and_text_always(leg, said):
    weather = {"city": "Paris", "degrees": 21.5}
    assert said["text of a value"] == weather
    assert said["structured"] == (weather if leg.revision >= "2025-06-18" else None)


def test_results_of_every_kind_are_read(leg, said):
    """The clients validate structured content by the schema in the list."""
    weather = {"city": "Paris", "degrees": 21.5}
    kinds = {"text": "words", "number": 3, "list": [1, 2], "either": weather, "maybe": None}
    structured = {kind: {"result": value} for kind, value in kinds.items()} | {"object": weather, "nothing": "none"}
    assert said["kinds of results"] == (
        structured if leg.revision >= "2025-06-18" else dict.fromkeys(structured, "none")
    )


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_long_results_are_shortened_and_the_rest_is_read(leg, said, size):
    assert said["text of 1000"] == {"shown": 1_000, "links": []}
    result = said[f"text of {size}"]
    assert result["shown"] < 20_000
    assert result["links"] == ([f"result://{result['id']}"] if leg.revision >= "2025-06-18" else [])
    assert (result["end"], result["whole"]) == ("A line of the text.\n", size)


def test_shortened_structured_content_passes_the_validation_of_the_clients(leg, said):
    result = said["list of 5000"]
    assert result["isError"] is False
    if leg.revision >= "2025-06-18":
        assert 10 < result["structured"] < 5_000
    else:
        assert result["structured"] is None


def test_tool_error_is_returned_as_a_result(said):
    assert said["tool says no"]["isError"] is True
    assert said["tool says no"]["content"][0]["text"] == "This tool intentionally returns an error for testing."


def test_unknown_tool_is_invalid_params(said):
    assert said.error("unknown tool")["code"] == -32602
    assert said.error("unknown tool")["message"].endswith("Unknown tool: test_simple_tex")


def test_argument_is_repeated_in_a_header(said):
    """On 2026-07-28 over HTTP, `Mcp-Param-Region`, and encoded, for it is not ASCII; elsewhere it is an argument."""
    assert said["header"] == "Routed to Zürich, west."


def test_fifty_concurrent_calls_each_get_their_own_result(said):
    assert said["fifty calls"] == [at + 2 if at % 2 else at * 2 for at in range(50)]


def test_progress_is_reported(said):
    steps = [[done, 100, f"Completed step {done} of 100"] for done in (0, 50, 100)]
    # On stdio the SDK drops a progress that it reads in one piece with the result.
    assert said["progress"] in [["Completed all steps.", item] for item in (steps, steps[:-1])]


def test_log_messages_start_at_the_requested_level(said):
    assert said["logs"] == ["info", "warning", "error"]


def test_response_survives_a_closed_connection(said):
    assert said["reconnection"] == "Here it is, on another connection."


@pytest.mark.parametrize("body", ["wait_forever", "block"])
def test_cancelled_call_stops_its_function(said, body):
    assert said[f"cancel {body}"] == ["given up", "true"]


def test_resources_are_listed_and_read(said):
    assert said["resources"][0] == "test://static-text"
    assert said["templates"][0] == "test://template/{id}/data"
    (contents,) = said["read"]
    assert json.loads(contents["text"])["id"] == "123"


def test_missing_resource_is_an_error(leg, said):
    # The second client reads the older code as the newer one.
    assert said.error("read nothing")["code"] == (-32002 if leg.client == "v1" else -32602)
    assert said.error("read nothing")["message"].endswith("Resource not found: test://nothing")


def test_prompts_are_listed_and_got_and_their_arguments_completed(said):
    assert "test_prompt_with_arguments" in said["prompts"]
    (message,) = said["prompt"]
    assert message["content"]["text"] == "Prompt with arguments: arg1='hello', arg2='world'"
    assert said["complete"] == ["paris", "park", "party"]


def test_tool_uses_sampling_and_roots(said):
    assert said["sampling"] == ["LLM response: Paris", "What is the capital of France?"]
    assert said["roots"] == "1 roots: file:///project"


def test_tool_asks_the_user_from_2025_06_18_on(leg, said):
    if leg.revision >= "2025-06-18":
        user = "User(username='alice', email='alice@example.com')"
        assert said["elicitation"] == [f"User response: action=accept, content={user}", "Who are you?"]
        assert said["refusal"] == "User response: action=decline, content=None"
        assert said["three questions"] == "Paris Alice, you have 1 roots."
        assert said["two rounds"] == "Alice likes blue."
    else:
        answer, request = said["elicitation"]
        assert "that the client does not support: elicitation" in answer
        assert request is None


def test_client_is_notified_of_changes_until_it_unsubscribes(said):
    assert said["changes"] == {"updated": ["notes://today"], "more": 2}


def test_session_can_be_ended(leg, said):
    if leg.transport == "http" and not leg.modern:
        assert said["end of session"] is None


def test_client_could_read_all_that_was_sent(said):
    assert said["complaints"] == []


# The Inspector


@pytest.fixture(params=["http", "stdio"])
def where(request: pytest.FixtureRequest, serve: Callable[..., Any]) -> Iterator[list[str]]:
    if request.param == "stdio":
        yield _words(EVERYTHING)
    else:
        with serve("everything") as url:
            yield [url]


@pytest.fixture(params=["legacy", "modern"])
def inspect(request: pytest.FixtureRequest, scripts: Scripts, where: list[str]) -> Callable[..., ScriptResult]:
    """`inspect("tools/list")`: as `mcp-inspector --cli … --method tools/list`, in either era."""

    def inspect(method: str, *options: str) -> ScriptResult:
        always = ("--protocol-era", request.param, "--format", "json")
        return scripts.inspect(*where, "--method", method, *options, *always)

    return inspect


def _result(ended: ScriptResult) -> Any:
    assert ended.code == 0, ended
    return json.loads(ended.out)["result"]


def test_inspector_lists_tools_and_finds_their_schemas_portable(inspect):
    tools = _result(inspect("tools/list", "--strict"))["tools"]
    assert {"test_simple_text", "json_schema_2020_12_tool"} <= {tool["name"] for tool in tools}


def test_inspector_calls_a_tool(inspect):
    result = _result(inspect("tools/call", "--tool-name", "test_x_mcp_header", "--tool-arg", "region=west"))
    assert result["content"] == [{"type": "text", "text": "Routed to west."}]


def test_inspector_reports_a_tool_error(inspect):
    ended = inspect("tools/call", "--tool-name", "test_error_handling")
    assert json.loads(ended.err)["error"]["code"] == "tool_is_error"
    assert "This tool intentionally returns an error for testing." in ended.out


def test_inspector_reads_a_resource_and_gets_a_prompt(inspect):
    (contents,) = _result(inspect("resources/read", "--uri", "test://static-text"))["contents"]
    assert contents["text"] == "This is the content of the static text resource."
    named = ("--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=a", "arg2=b")
    (message,) = _result(inspect("prompts/get", *named))["messages"]
    assert message["content"]["text"] == "Prompt with arguments: arg1='a', arg2='b'"


def test_inspector_verifies_the_skills(scripts, where):
    options = ("--method", "skills/list", "--verify", "--protocol-era", "modern", "--format", "json")
    ended = scripts.inspect(*where, *options)
    assert ended.code == 0, ended
    assert "no conformance errors" in ended.err


def test_lock_file_names_no_registry():
    assert "resolved" not in (PINS / "package-lock.json").read_text(encoding="utf-8")
