"""Capability checks on both sides: before a request is sent, and before one is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ProtocolError, Server
from portico.client.input_handlers import InputHandlers
from portico.protocol.client_features import ElicitResult, Root
from portico.protocol.errors import InvalidParams, MethodNotFound, UsageError
from portico.protocol.versions import (
    FIRST_MODERN_VERSION,
    HANDSHAKE_VERSIONS,
    SUPPORTED_PROTOCOL_VERSIONS,
    V2024_11_05,
    V2025_11_25,
)
from support.scripted import Endpoint, Peer, Request

TIMEOUT_SECONDS = 20.0
Serve = Callable[..., Any]

REQUESTS: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "tools/list": ("tools", lambda client: client.list_tools()),
    "tools/call": ("tools", lambda client: client.call_tool("t")),
    "resources/list": ("resources", lambda client: client.list_resources()),
    "resources/templates/list": ("resources", lambda client: client.list_resource_templates()),
    "resources/read": ("resources", lambda client: client.read_resource("a://b")),
    "prompts/list": ("prompts", lambda client: client.list_prompts()),
    "prompts/get": ("prompts", lambda client: client.get_prompt("p")),
    "completion/complete": (
        "completions",
        lambda client: client.complete({"type": "ref/prompt", "name": "p"}, "a", ""),
    ),
}
SESSION_REQUESTS = {
    "resources/subscribe": ("resources.subscribe", lambda client: client.subscribe("a://b")),
    "logging/setLevel": ("logging", lambda client: client.set_log_level("info")),
}
CASES = [(revision, method) for revision in SUPPORTED_PROTOCOL_VERSIONS for method in REQUESTS] + [
    (revision, method) for revision in HANDSHAKE_VERSIONS for method in SESSION_REQUESTS
]
# There is no way to declare it yet.
CASES.remove((V2024_11_05, "completion/complete"))


def endpoint(revision: str, capabilities: dict[str, Any]) -> Endpoint:
    return Endpoint(modern=revision == FIRST_MODERN_VERSION, revision=revision, capabilities=capabilities)


# What the server declared


@pytest.mark.requirement("lifecycle.client-declared-only")
@pytest.mark.parametrize("revision, method", CASES)
@pytest.mark.parametrize("capabilities", [{}, {"resources": {"subscribe": False}}], ids=["nothing", "false"])
async def test_undeclared_server_capabilities_are_not_requested(
    serve: Serve, revision: str, method: str, capabilities: dict[str, Any]
) -> None:
    needed, ask = {**REQUESTS, **SESSION_REQUESTS}[method]
    if needed in capabilities:
        pytest.skip("declared")
    there = await serve(endpoint(revision, capabilities))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=revision) as client:
        with pytest.raises(
            MethodNotFound, match=rf"does not declare {needed}, which {method} requires; pass ignore_capabilities=True"
        ):
            await ask(client)
    assert there.requests_for(method) == []


@pytest.mark.parametrize("revision, method", CASES)
async def test_undeclared_feature_is_requested_if_capabilities_are_ignored(
    serve: Serve, revision: str, method: str
) -> None:
    there = await serve(endpoint(revision, {}))
    _, ask = {**REQUESTS, **SESSION_REQUESTS}[method]
    there.rules[method] = lambda peer, request: peer.error(request, -32000, "it was asked")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(there.url, protocol_version=revision, ignore_capabilities=True) as client,
    ):
        with pytest.raises(ProtocolError, match="it was asked"):
            await ask(client)


async def test_completions_cannot_be_declared_in_2024_11_05(serve: Serve) -> None:
    there = await serve(endpoint(V2024_11_05, {}))
    there.rules["completion/complete"] = lambda peer, request: peer.result(request, {"completion": {"values": ["x"]}})
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=V2024_11_05) as client:
        assert (await client.complete({"type": "ref/prompt", "name": "p"}, "a", "")).values == ["x"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_mounted_server_is_not_requested_more_either(serve: Serve, revision: str) -> None:
    there = await serve(endpoint(revision, {"tools": {}}))
    server = Server("outer")
    server.mount(Client(there.url, protocol_version=revision), namespace="inner")
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server) as client:
        assert await client.list_tools() == await client.list_prompts() == await client.list_resources() == []
    assert len(there.requests_for("tools/list")) == 1
    assert there.requests_for("prompts/list") == there.requests_for("resources/list") == []


# Tasks of 2025-11-25

TASKS = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
STATE = {"taskId": "1", "status": "completed", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}
TASK = {**STATE, "lastUpdatedAt": "2026-01-01T00:00:00Z"}


def tasking(support: str | None, capabilities: dict[str, Any], revision: str = V2025_11_25) -> Endpoint:
    there = endpoint(revision, capabilities)
    execution = {} if support is None else {"execution": {"taskSupport": support}}
    done = {"content": [{"type": "text", "text": "done"}]}

    def call(peer: Peer, request: Request) -> None:
        peer.result(request, {"task": TASK} if "task" in request.json["params"] else done)

    tool = {"name": "t", "inputSchema": {"type": "object"}, **execution}
    there.rules["tools/list"] = lambda peer, request: peer.result(request, {"tools": [tool]})
    there.rules["tools/call"] = call
    there.rules["tasks/result"] = lambda peer, request: peer.result(request, done)
    return there


@pytest.mark.requirement("tasks.client")
@pytest.mark.parametrize(
    "support, capabilities, as_task",
    [
        ("optional", TASKS, True),
        ("required", TASKS, True),
        ("forbidden", TASKS, False),
        (None, TASKS, False),
        ("by chance", TASKS, False),
        ("required", {"tools": {}}, False),
        ("optional", {"tools": {}, "tasks": {"list": {}}}, False),
    ],
)
async def test_task_is_requested_where_server_and_tool_have_them(
    serve: Serve, support: str | None, capabilities: dict[str, Any], as_task: bool
) -> None:
    there = await serve(tasking(support, capabilities))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=V2025_11_25) as client:
        task = await client.start_task("t")
        assert (await task.result()).text == "done"
    [call] = there.requests_for("tools/call")
    assert ("task" in call.json["params"]) is as_task
    assert len(there.requests_for("tasks/result")) == as_task


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS[:-1])
async def test_before_2025_11_25_there_are_no_tasks(serve: Serve, revision: str) -> None:
    there = await serve(tasking("required", TASKS, revision))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=revision) as client:
        assert (await (await client.start_task("t")).result()).text == "done"
    assert "task" not in there.requests_for("tools/call")[0].json["params"]


@pytest.mark.requirement("tasks.client")
@pytest.mark.parametrize("support, as_task", [("required", True), ("optional", False), ("forbidden", False)])
async def test_tool_that_only_runs_as_a_task_is_called_as_one(serve: Serve, support: str, as_task: bool) -> None:
    there = await serve(tasking(support, TASKS))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=V2025_11_25) as client:
        for _ in range(2):
            assert (await client.call_tool("t")).text == "done"
    assert [("task" in item.json["params"]) for item in there.requests_for("tools/call")] == [as_task] * 2
    assert len(there.requests_for("tools/list")) == 1


# What we declared


FORM = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}
NESTED = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
USE = {"role": "assistant", "content": {"type": "tool_use", "id": "1", "name": "t", "input": {}}}
WORD = {"role": "user", "content": {"type": "text", "text": "hello"}}
TOOL = {"name": "t", "inputSchema": {"type": "object"}}


def elicitation(**params: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": "?", **params}}


def sampling(*messages: Any, **params: Any) -> dict[str, Any]:
    return {"method": "sampling/createMessage", "params": {"messages": list(messages), "maxTokens": 1, **params}}


WRONG: dict[str, dict[str, Any]] = {
    "an unknown mode": elicitation(mode="hologram", requestedSchema=FORM),
    "no schema": elicitation(),
    "a schema of no object": elicitation(requestedSchema={"type": "string"}),
    "a nested form": elicitation(requestedSchema=NESTED),
    "a list of numbers": elicitation(requestedSchema={**FORM, "properties": {"a": {"type": "array", "items": {}}}}),
    "nonsense for a field": elicitation(requestedSchema={"type": "object", "properties": {"a": {"anyOf": [5, {}]}}}),
    "a page without its address": elicitation(mode="url"),
    "a program for a page": elicitation(mode="url", url="javascript:alert(1)"),
    "a file for a page": elicitation(mode="url", url="file:///etc/passwd"),
    "a page without a host": elicitation(mode="url", url="https:///x"),
    "a result that is missing": sampling(USE, tools=[TOOL]),
    "a result that is not next": sampling(USE, WORD, tools=[TOOL]),
}
UNDECLARED: dict[str, dict[str, Any]] = {
    "a page": elicitation(mode="url", url="https://example.test/"),
    "tools": sampling(WORD, tools=[TOOL]),
    "a use of a tool": sampling(USE, WORD),
}
ELICITING = SUPPORTED_PROTOCOL_VERSIONS[2:]


async def asked(serve: Serve, revision: str, question: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the client answers to a question: `{"result": …}`, `{"error": …}` or, where it raises, `{"raised": …}`."""
    there = await serve(endpoint(revision, {"tools": {}}))

    def call(peer: Peer, request: Request) -> None:
        if revision == FIRST_MODERN_VERSION and "inputResponses" in request.json["params"]:
            peer.result(request, {"resultType": "complete", "content": []})
        elif revision == FIRST_MODERN_VERSION:
            peer.result(request, {"resultType": "input_required", "inputRequests": {"q": question}})
        else:
            peer.stream()
            peer.event({"jsonrpc": "2.0", "id": "q", **question})

    async def take(peer: Peer, request: Request) -> None:
        peer.answer(202)

    there.rules["tools/call"], there.rules["answer"] = call, take
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, protocol_version=revision, **options) as client:
        if revision == FIRST_MODERN_VERSION:
            try:
                await client.call_tool("t")
            except (ProtocolError, UsageError) as failure:
                return {"raised": failure}
            return {"result": there.seen[-1].json["params"]["inputResponses"]["q"]}
        calling = asyncio.ensure_future(client.call_tool("t"))
        answer = (await there.wait_for_request("answer")).json
        calling.cancel()
        await asyncio.wait({calling})
        return answer  # type: ignore[no-any-return]


def is_refused(answer: dict[str, Any]) -> bool:
    if "raised" in answer:
        return isinstance(answer["raised"], ProtocolError)
    return bool(answer.get("error", {}).get("code") == InvalidParams.code)


@pytest.mark.requirement("elicitation.client-rules")
@pytest.mark.parametrize("revision", ELICITING)
@pytest.mark.parametrize("question", WRONG.values(), ids=WRONG)
async def test_question_that_breaks_the_rules_reaches_no_handler(
    serve: Serve, revision: str, question: dict[str, Any]
) -> None:
    heard: list[Any] = []
    options: Any = {
        "elicitation_handler": lambda request: heard.append(request) or {},
        "sampling_handler": lambda request: heard.append(request) or "",
        "elicitation_modes": ["form", "url"],
        "sampling_tools": True,
    }
    assert is_refused(await asked(serve, revision, question, **options))
    assert heard == []


@pytest.mark.parametrize("revision", ELICITING)
@pytest.mark.parametrize("question", UNDECLARED.values(), ids=UNDECLARED)
async def test_question_that_was_not_declared_for_reaches_no_handler(
    serve: Serve, revision: str, question: dict[str, Any]
) -> None:
    heard: list[Any] = []
    options: Any = {
        "elicitation_handler": lambda request: heard.append(request) or ElicitResult("accept"),
        "sampling_handler": lambda request: heard.append(request) or "",
    }
    assert is_refused(await asked(serve, revision, question, **options))
    assert heard == []


@pytest.mark.requirement("elicitation.not-invited")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("question", [sampling(WORD), elicitation(requestedSchema=FORM), {"method": "roots/list"}])
async def test_server_request_without_a_handler_is_method_not_found(
    serve: Serve, revision: str, question: dict[str, Any]
) -> None:
    answer = await asked(serve, revision, question)
    assert answer["error"]["code"] == MethodNotFound.code


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS[:2])
async def test_before_2025_06_18_there_is_no_elicitation(serve: Serve, revision: str) -> None:
    answer = await asked(
        serve, revision, elicitation(requestedSchema=FORM), elicitation_handler=lambda request: {"age": 1}
    )
    assert answer["error"]["code"] == MethodNotFound.code


@pytest.mark.requirement("elicitation.client-fits")
@pytest.mark.parametrize("revision", ELICITING)
@pytest.mark.parametrize("given", [{"age": "x"}, {}, {"age": -1}, {"age": {"deep": 1}}, {"age": None}], ids=str)
async def test_answer_that_does_not_fit_its_form_is_not_sent(
    serve: Serve, revision: str, given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the handler's mistake: said to the caller where there is one, and to the log. The user has not answered."""
    answer = await asked(serve, revision, elicitation(requestedSchema=FORM), elicitation_handler=lambda request: given)
    if revision == FIRST_MODERN_VERSION:
        assert isinstance(answer["raised"], UsageError)
        assert "does not match the form: invalid value for 'age'" in str(answer["raised"])
    else:
        assert answer["result"] == {"action": "cancel"}
        assert "does not match the form: invalid value for 'age'" in caplog.text


@pytest.mark.parametrize("revision", ELICITING)
@pytest.mark.parametrize("given", ["text", 5, [1], ElicitResult("maybe")], ids=str)  # type: ignore[arg-type]
async def test_invalid_elicitation_handler_results_are_not_sent(
    serve: Serve, revision: str, given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await asked(serve, revision, elicitation(requestedSchema=FORM), elicitation_handler=lambda request: given)
    if revision == FIRST_MODERN_VERSION:
        assert isinstance(answer["raised"], UsageError)
    else:
        assert answer["result"] == {"action": "cancel"}
        assert "the elicitation handler" in caplog.text


@pytest.mark.parametrize("revision", ELICITING)
async def test_answer_that_fits_is_sent(serve: Serve, revision: str) -> None:
    answer = await asked(
        serve, revision, elicitation(requestedSchema=FORM), elicitation_handler=lambda request: {"age": 0}
    )
    assert answer["result"] == {"action": "accept", "content": {"age": 0}}


@pytest.mark.requirement("elicitation.client-page")
@pytest.mark.parametrize("revision", [V2025_11_25, FIRST_MODERN_VERSION])
async def test_fields_do_not_agree_to_a_page(serve: Serve, revision: str, caplog: pytest.LogCaptureFixture) -> None:
    options: Any = {"elicitation_handler": lambda request: {}, "elicitation_modes": ["form", "url"]}
    answer = await asked(serve, revision, UNDECLARED["a page"], **options)
    assert "must answer a URL elicitation with ElicitResult" in (
        str(answer["raised"]) if revision == FIRST_MODERN_VERSION else caplog.text
    )
    assert answer.get("result", {"action": "cancel"}) == {"action": "cancel"}


@pytest.mark.requirement("elicitation.client-modes")
def test_only_configured_capabilities_are_declared() -> None:
    def handler(asked: Any) -> Any:
        return None

    plain = InputHandlers(handler, handler, [])
    assert (plain.capabilities.sampling, plain.capabilities.elicitation) == ({}, {"form": {}})
    more = InputHandlers(handler, handler, elicitation_modes=["url", "form"], sampling_tools=True)
    assert (more.capabilities.sampling, more.capabilities.elicitation) == ({"tools": {}}, {"form": {}, "url": {}})
    assert InputHandlers(handler, handler, elicitation_modes=["url"]).capabilities.elicitation == {"url": {}}
    for modes in ([], ["hologram"]):
        with pytest.raises(UsageError, match="elicitation_modes"):
            InputHandlers(handler, handler, elicitation_modes=modes)  # type: ignore[arg-type]


# Roots


@pytest.mark.requirement("roots.client-file")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_roots_are_uris_of_files(serve: Serve, revision: str, tmp_path: Path) -> None:
    roots = ["/home/x y", tmp_path, "file:///a", Root("file:///b", "B"), Root("/c")]
    answer = await asked(serve, revision, {"method": "roots/list"}, roots=roots)
    uris = ["file:///home/x%20y", tmp_path.as_uri(), "file:///a", "file:///b", "file:///c"]
    assert [load["uri"] for load in json.loads(json.dumps(answer["result"]["roots"]))] == uris


@pytest.mark.requirement("roots.client-file")
@pytest.mark.parametrize("root", ["https://example.com", "", "file:relative", "untitled:x", Root("http://a")], ids=str)
def test_other_roots_are_a_mistake(root: Any) -> None:
    with pytest.raises(UsageError, match="a root must be a path"):
        Client(["true"], roots=[root])


@pytest.mark.parametrize("modes", [("form",), ("url",), ("form", "url")], ids="+".join)
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_messages_are_translated_to_the_protocol_version(revision: str, modes: Any) -> None:
    notifications: list[Any] = []

    def trace(direction: str, message: bytes) -> None:
        data = json.loads(message)
        if direction == "sent" and data.get("method") == "initialize":
            notifications.append(data["params"]["capabilities"])

    client = Client(
        Server("s"),
        protocol_version=revision,  # type: ignore[arg-type]
        elicitation_handler=lambda params: None,
        elicitation_modes=modes,
        sampling_handler=lambda params: "x",
        sampling_tools=True,
        on_message_bytes=trace,
    )
    async with client:
        pass
    (able,) = notifications
    assert able["sampling"] == ({"tools": {}} if revision == V2025_11_25 else {})
    elicitation = {mode: {} for mode in modes} if revision == V2025_11_25 else {}
    has_forms = revision >= "2025-06-18" and ("form" in modes or revision == V2025_11_25)
    assert able.get("elicitation") == (elicitation if has_forms else None)


def test_roots_that_are_given_later_are_checked_too() -> None:
    inputs = InputHandlers(roots=["/a"])
    inputs.roots = ["/b c", "file:///d"]
    assert inputs.roots == [Root("file:///b%20c"), Root("file:///d")]
    with pytest.raises(UsageError, match="a root must be a path"):
        inputs.roots = ["https://example.com"]


@pytest.mark.parametrize("root", ["file:///a b", "file://", "file:/a", "file:///%zz"])
def test_root_is_written_as_a_uri(root: str) -> None:
    with pytest.raises(UsageError, match="a root must be a path"):
        InputHandlers(roots=[root])
