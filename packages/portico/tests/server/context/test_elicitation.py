"""Server-to-client requests: only declared features, forms valid for the protocol version, validated answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from portico import Context, ProtocolError, Server
from portico.auth.principal import Principal
from portico.protocol.client_features import InputRequest, InputRequiredResult, ModelPreferences, SamplingMessage
from portico.protocol.content import TextContent, ToolResultContent, ToolUseContent
from portico.protocol.errors import ClientRequestFailed
from portico.protocol.jsonrpc import encode
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.server.context.request_state import request_binding
from portico.server.options import CacheHint

Connect = Callable[..., Any]

ELICITING = [revision for revision in SUPPORTED_PROTOCOL_VERSIONS if revision >= "2025-06-18"]
EVERYTHING = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
CHOICES = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]


class Asked:
    """A call at one revision, and what the client was asked before it was answered."""

    def __init__(self, connect: Connect, handler: Any, revision: str, able: Any = None) -> None:
        self.wire = connect(handler)
        self.revision = revision
        self.able = EVERYTHING if able is None else able
        self.questions: list[Any] = []

    async def call(self, name: str, answer: Any = None, method: str = "tools/call", **params: Any) -> Any:
        """The result or the error. Every question is answered with `answer`; an exception refuses it."""
        params = params or {"name": name}
        if self.revision == FIRST_MODERN_VERSION:
            return await self._modern(method, params, answer)
        await self.wire.initialize(self.revision, self.able)
        self.wire.send({"jsonrpc": "2.0", "id": 77, "method": method, "params": params})
        while True:
            message = await self.wire.receive()
            if message.get("id") == 77 and "method" not in message:
                return message.get("result") or message["error"]
            self.questions.append(message)
            told: dict[str, Any] = {"result": answer}
            if isinstance(answer, Exception):
                told = {"error": {"code": -1, "message": str(answer)}}
            self.wire.send({"jsonrpc": "2.0", "id": message["id"], **told})

    async def _modern(self, method: str, params: dict[str, Any], answer: Any) -> Any:
        while True:
            response = await self.wire.request_stateless(method, params, capabilities=self.able)
            if response.get("result", {}).get("resultType") != "input_required":
                return response.get("result") or response["error"]
            request = response["result"]["inputRequests"]
            self.questions += request.values()
            params = {**params, "inputResponses": dict.fromkeys(request, answer)}
            if "requestState" in response["result"]:
                params["requestState"] = response["result"]["requestState"]


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"])


# Forms


def eliciting(schema: Any) -> Server:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        result = await ctx.elicit("?", schema)
        return f"{result.action} {result.data}"

    return server


@pytest.mark.requirement("elicitation.flat")
@pytest.mark.parametrize("revision", ELICITING)
async def test_schema_that_is_not_flat_is_not_sent(connect: Connect, revision: str) -> None:
    deep = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}
    asked = Asked(connect, eliciting(deep), revision)
    result = await asked.call("ask")
    assert asked.questions == []
    assert "error id" in text_of(result)


@pytest.mark.requirement("elicitation.titles")
@pytest.mark.parametrize("revision", ELICITING)
async def test_choices_with_titles_are_reported_as_the_revision_has_them(connect: Connect, revision: str) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "string", "oneOf": CHOICES, "default": "s"}}}
    asked = Asked(connect, eliciting(schema), revision)
    result = await asked.call("ask", {"action": "accept", "content": {"size": "l"}})
    assert text_of(result) == "accept {'size': 'l'}"
    field = asked.questions[0]["params"]["requestedSchema"]["properties"]["size"]
    if revision == "2025-06-18":
        assert field == {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]}
    else:
        assert field == {"type": "string", "default": "s", "oneOf": CHOICES}


FIELD = {"type": "object", "properties": {"value": {"type": "string", "enum": ["a", "b"]}}, "required": ["value"]}


@pytest.mark.requirement("elicitation.answers-fit")
@pytest.mark.parametrize(
    "schema, content",
    [(FIELD, {"value": "zzz"}), (FIELD, {}), (FIELD, None), (int, {"value": "12"}), (int, {"value": {"deep": 1}})],
)
@pytest.mark.parametrize("revision", ELICITING)
async def test_invalid_elicitation_response_is_rejected(
    connect: Connect, revision: str, schema: Any, content: Any
) -> None:
    answer = {"action": "accept"} | ({} if content is None else {"content": content})
    result = await Asked(connect, eliciting(schema), revision).call("ask", answer)
    assert result["isError"] is True
    assert "The submitted form does not match its schema" in text_of(result)


@pytest.mark.requirement("elicitation.url")
@pytest.mark.parametrize(
    "url",
    [
        *("", "not a url", "relative/path", "//example.com", "http:///nohost", "https://exa mple.com", "http://"),
        *("javascript:alert(1)", "file:///etc/passwd", "ftp://example.com", "https://:80/", "https://example.com/a b"),
    ],
)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_page_is_an_absolute_http_url_with_a_host(connect: Connect, revision: str, url: str) -> None:
    server = Server("s")

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("?", url)).action

    asked = Asked(connect, server, revision)
    result = await asked.call("visit", {"action": "accept"})
    assert asked.questions == []
    assert "error id" in text_of(result)


@pytest.mark.parametrize(
    "url", ["https://example.com", "http://localhost:8080/a?b=c#d", "https://[::1]/", "HTTPS://u@example.com/%20"]
)
async def test_pages_that_are_pages_are_requested(connect: Connect, url: str) -> None:
    server = Server("s")

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("?", url)).action

    assert text_of(await Asked(connect, server, FIRST_MODERN_VERSION).call("visit", {"action": "accept"})) == "accept"


# Sampling with tools

USE = ToolUseContent(id="a", name="look", input={})
RESULT = ToolResultContent(tool_use_id="a", content=[])
HISTORIES: dict[str, list[Any]] = {
    "missing": [SamplingMessage("assistant", USE), "go on"],
    "mixed": [SamplingMessage("assistant", USE), SamplingMessage("user", [RESULT, TextContent(text="and")])],
    "wrong id": [
        SamplingMessage("assistant", USE),
        SamplingMessage("user", ToolResultContent(tool_use_id="b", content=[])),
    ],
    "not next": [SamplingMessage("assistant", USE), "wait", SamplingMessage("user", RESULT)],
}
BALANCED = [SamplingMessage("assistant", USE), SamplingMessage("user", RESULT)]
SAID = {"role": "assistant", "content": {"type": "text", "text": "so"}, "model": "m"}


def sampling(history: Any, **more: Any) -> Server:
    server = Server("s")

    @server.tool
    async def think(ctx: Context) -> str:
        return (await ctx.sample(history, **more)).text

    return server


@pytest.mark.requirement("sampling.balance")
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_conversation_out_of_balance_is_not_sent(connect: Connect, revision: str, history: Any) -> None:
    result = Asked(connect, sampling(history), revision)
    assert "error id" in text_of(await result.call("think", SAID))
    assert result.questions == []


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_conversation_in_balance_is_sent(connect: Connect, revision: str) -> None:
    result = Asked(connect, sampling(BALANCED), revision)
    assert text_of(await result.call("think", SAID)) == "so"
    assert len(result.questions[0]["params"]["messages"]) == 2


@pytest.mark.parametrize(
    "history, more",
    [
        ([SamplingMessage("system", TextContent(text="x"))], {}),  # type: ignore[arg-type]
        ("x", {"max_tokens": True}),
        ("x", {"max_tokens": "9"}),
        ("x", {"temperature": "hot"}),
        ("x", {"model_preferences": ModelPreferences(cost_priority=2)}),
        ("x", {"stop_sequences": [1]}),
        ("x", {"system_prompt": 5}),
    ],
)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_request_that_no_client_could_read_is_not_sent(
    connect: Connect, revision: str, history: Any, more: Any
) -> None:
    result = Asked(connect, sampling(history, **more), revision)
    assert "error id" in text_of(await result.call("think", SAID))
    assert result.questions == []


@pytest.mark.requirement("sampling.tools-declared")
@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {}], ids=["a choice", "blocks"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tools_are_for_clients_that_declared_them(connect: Connect, revision: str, more: Any) -> None:
    """Blocks of a history as well, and before 2025-11-25 there are none whatever a client declares."""
    able = EVERYTHING if revision < "2025-11-25" else {"sampling": {}}
    result = Asked(connect, sampling("?" if more else BALANCED, **more), revision, able)
    response = await result.call("think", SAID)
    assert result.questions == []
    if revision == FIRST_MODERN_VERSION:
        assert response["data"] == {"requiredCapabilities": {"sampling": {"tools": {}}}}
    else:
        assert "the client does not support: sampling" in text_of(response)


# Roots


@pytest.mark.requirement("roots.file")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_roots_that_are_no_folders_are_left_out(connect: Connect, revision: str) -> None:
    """client/roots: "MUST be a `file://` URI"."""
    server = Server("s")

    @server.tool
    async def where(ctx: Context) -> str:
        return " ".join(root.uri for root in await ctx.list_roots())

    roots = [{"uri": "https://example.com"}, {"uri": "file:///a"}, {"uri": "/home/x"}, {"uri": "FILE:///b"}]
    assert text_of(await Asked(connect, server, revision).call("where", {"roots": roots})) == "file:///a FILE:///b"


# What a Handler asks by its result


def question(method: str, params: Any, encoded: bool = False) -> Callable[[Call], Any]:
    """A Handler that answers once it was answered; `encoded`: as one does whose results come over a wire."""

    async def handler(call: Call) -> Any:
        if call.method == "server/discover":
            return await Server("s")(call)
        if call.decode_params().input_responses:
            return CallToolResult(content=[TextContent(text="done")], is_error=False)
        asks = InputRequiredResult(input_requests={"q": InputRequest(method, params)})
        return Raw(encode(asks)) if encoded else asks

    return handler


FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
PAGE = {"mode": "url", "message": "?", "url": "https://example.com"}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5}
QUESTIONS: dict[str, tuple[str, Any, Any]] = {
    "form": ("elicitation/create", FORM, {}),
    "form to those with pages": ("elicitation/create", FORM, {"elicitation": {"url": {}}}),
    "page": ("elicitation/create", PAGE, {"elicitation": {"form": {}}}),
    "sample": ("sampling/createMessage", SAMPLE, {}),
    "tools": ("sampling/createMessage", {**SAMPLE, "tools": []}, {"sampling": {}}),
    "roots": ("roots/list", None, {}),
}


@pytest.mark.requirement("mrtr.handlers", "elicitation.modes")
@pytest.mark.parametrize("method, params, able", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("encoded", [False, True], ids=["typed", "encoded"])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_handler_request_requires_the_client_capability(
    connect: Connect, revision: str, method: str, params: Any, able: Any, encoded: bool
) -> None:
    result = Asked(connect, question(method, params, encoded), revision, able)
    response = await result.call("t")
    assert result.questions == []
    assert (
        response["code"] == -32021
        if revision == FIRST_MODERN_VERSION
        else "that the client does not support" in text_of(response)
    )


@pytest.mark.requirement("mrtr.handlers")
@pytest.mark.parametrize("mounted", [False, True], ids=["alone", "mounted"])
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
async def test_handler_request_requires_version_support(connect: Connect, revision: str, mounted: bool) -> None:
    handler: Any = question("elicitation/create", FORM)
    if mounted:
        inner, handler = handler, Server("outer")
        handler.mount(inner)
    result = Asked(connect, handler, revision)
    assert "the client does not support: elicitation" in text_of(await result.call("t"))
    assert result.questions == []


@pytest.mark.parametrize("method, params, able", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_mounted_server_elsewhere_asks_no_more_than_we_may(
    connect: Connect, revision: str, method: str, params: Any, able: Any
) -> None:
    """What came over a wire, and is passed on as it came."""
    inner, server = question(method, params), Server("outer")

    async def elsewhere(call: Call) -> Any:
        return Raw(encode(await inner(call)))

    server.mount(elsewhere)
    result = Asked(connect, server, revision, able)
    response = await result.call("t")
    assert result.questions == []
    assert (
        response["code"] == -32021
        if revision == FIRST_MODERN_VERSION
        else "that the client does not support" in text_of(response)
    )


@pytest.mark.parametrize("revision", ELICITING)
async def test_handler_request_has_the_form_of_the_version(connect: Connect, revision: str) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "string", "oneOf": CHOICES}}}
    result = Asked(connect, question("elicitation/create", {"message": "?", "requestedSchema": schema}), revision)
    assert text_of(await result.call("t", {"action": "decline"})) == "done"
    field = result.questions[0]["params"]["requestedSchema"]["properties"]["size"]
    assert ("enumNames" in field) is (revision == "2025-06-18")


@pytest.mark.requirement("elicitation.url-id")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_handlers_page_has_an_id_where_the_revision_wants_one(connect: Connect, revision: str) -> None:
    result = Asked(connect, question("elicitation/create", PAGE), revision)
    assert text_of(await result.call("t", {"action": "accept"})) == "done"
    assert ("elicitationId" in result.questions[0]["params"]) is (revision == "2025-11-25")


@pytest.mark.parametrize(
    "method, params",
    [
        ("elicitation/create", {**FORM, "mode": "hologram"}),
        ("elicitation/create", {"message": "?"}),
        ("elicitation/create", {**PAGE, "url": "javascript:alert(1)"}),
        ("elicitation/create", {"requestedSchema": {}}),
        ("sampling/createMessage", {"messages": 5}),
        ("tools/list", {}),
    ],
)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_malformed_server_requests_are_not_sent(
    connect: Connect, revision: str, method: str, params: Any
) -> None:
    result = Asked(connect, question(method, params), revision)
    assert "error id" in text_of(await result.call("t", {"action": "accept"}))
    assert result.questions == []


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_client_that_rejects_a_handlers_question_has_a_tool_that_failed(connect: Connect, revision: str) -> None:
    result = await Asked(connect, question("elicitation/create", FORM), revision).call(
        "t", ClientRequestFailed("no thanks")
    )
    assert result["isError"] is True
    assert "no thanks" in text_of(result)


@pytest.mark.requirement("elicitation.answers-fit")
@pytest.mark.parametrize("answer", [{"action": "accept", "content": {"n": "x"}}, {"action": "perhaps"}, {}])
@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_handler_gets_no_answer_that_does_not_fit(connect: Connect, revision: str, answer: Any) -> None:
    result = await Asked(connect, question("elicitation/create", FORM), revision).call("t", answer)
    assert result["isError"] is True
    assert "error id" not in text_of(result)


# What was answered stays answered


@pytest.mark.requirement("mrtr.sealed")
async def test_request_state_cannot_be_replayed(connect: Connect) -> None:
    """basic/patterns/mrtr: the state's integrity is protected, and with it what was done for the answers in it."""
    charged: list[Any] = []
    server = Server("s")

    @server.tool
    async def buy(ctx: Context) -> str:
        card = (await ctx.elicit("card", str, key="one")).data
        await ctx.step("charge", lambda: charged.append(card))
        await ctx.elicit("sure?", str, key="two")
        return f"shipped to the owner of {card}"

    wire = connect(server)

    async def again(responses: Any, state: str) -> Any:
        params = {"name": "buy", "inputResponses": responses, "requestState": state}
        return (await wire.request_stateless("tools/call", params, capabilities=EVERYTHING))["result"]

    def said(value: str) -> Any:
        return {"action": "accept", "content": {"value": value}}

    first = (await wire.request_stateless("tools/call", {"name": "buy"}, capabilities=EVERYTHING))["result"]
    # An answer to a question that was not asked yet is none.
    second = await again({"one": said("mine"), "two": said("early")}, first["requestState"])
    assert second["inputRequests"].keys() == {"two"}
    third = await again({"one": said("yours"), "two": said("yes")}, second["requestState"])
    assert third["content"][0]["text"] == "shipped to the owner of mine"
    assert charged == ["mine"]


def test_request_state_is_bound_to_its_principal() -> None:
    def of(*scopes: str) -> bytes:
        return request_binding("tools/call", "t", {}, Principal("ada", frozenset(scopes)))

    assert of("a", "b", "c") == of("a")
    assert of("a") != request_binding("tools/call", "t", {}, Principal("eve", frozenset({"a"})))
    assert of("a") != request_binding("tools/call", "t", {}, None)


@pytest.mark.requirement("modern.other-process")
def test_state_can_be_opened_by_another_process() -> None:
    """basic#statelessness: the order of a set is another in each process."""
    code = (
        "from portico.auth.principal import Principal\n"
        "from portico.server.context.request_state import request_binding\n"
        "print(request_binding('m', 't', {}, Principal('ada', frozenset('abcdef'))).hex())"
    )
    messages = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(messages) == 1


# Log messages


@pytest.mark.requirement("logging.declared")
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_only_a_server_that_declares_logging_logs(connect: Connect, revision: str, declared: bool) -> None:
    """server/utilities/logging: servers that emit log messages MUST declare it."""
    server = Server("bare", capabilities={"tools": {}} | ({"logging": {}} if declared else {}))

    @server.tool
    async def say(ctx: Context) -> str:
        await ctx.error("a log")
        ctx._call.reply.notify("notifications/message", {"level": "error", "data": "past the context"})
        return "said"

    wire = connect(server)
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    await wire.request_as(revision, "tools/call", {"name": "say"}, log_level="debug")
    assert len(wire.other_messages) == (2 if declared else 0)


async def test_request_without_log_level_receives_no_handler_logs(connect: Connect) -> None:
    async def handler(call: Call) -> Any:
        call.reply.notify("notifications/message", {"level": "error", "data": "unasked"})
        return CallToolResult(content=[], is_error=False)

    wire = connect(handler)
    await wire.request_stateless("tools/call", {"name": "t"})
    assert wire.other_messages == []


# Silence


@pytest.mark.requirement("cancellation.question-time")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_unanswered_client_request_times_out(
    connect: Connect, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portico.rpc.channel.CLIENT_REQUEST_TIMEOUT_SECONDS", 0.01)
    server = Server("s")

    @server.tool
    async def careful(ctx: Context) -> str:
        try:
            return str(await ctx.list_roots())
        except ClientRequestFailed as silence:
            return f"without: {silence}"

    wire = connect(server)
    await wire.initialize(revision, EVERYTHING)
    response = await wire.request("tools/call", {"name": "careful"})
    assert text_of(response["result"]).startswith("without: The client did not respond")
    request, withdrawn = wire.other_messages
    assert withdrawn["method"] == "notifications/cancelled"
    assert withdrawn["params"]["requestId"] == request["id"]
    await asyncio.sleep(0)
    assert wire.is_silent


# What was read after a question


@pytest.mark.requirement("caching.after-questions")
@pytest.mark.parametrize("asks", [True, False])
async def test_resource_that_elicits_input_is_not_cacheable(connect: Connect, asks: bool) -> None:
    """server/utilities/caching: what depends on answers MUST NOT be cached."""
    server = Server("s", cache=CacheHint(60_000, "public"))

    @server.resource("test://a")
    async def read(ctx: Context) -> str:
        return str((await ctx.elicit("?", str)).data) if asks else "plain"

    answer = {"action": "accept", "content": {"value": "mine"}}
    result = await Asked(connect, server, FIRST_MODERN_VERSION).call("", answer, "resources/read", uri="test://a")
    assert (result["ttlMs"], result["cacheScope"]) == ((0, "private") if asks else (60_000, "public"))


# Codes


@pytest.mark.requirement("jsonrpc.undefined-codes")
@pytest.mark.parametrize(
    "code, modern",
    [(-32050, -32603), (-32099, -32603), (-32042, -32603), (-32002, -32602), (-32019, -32019), (-1, -1), (5, 5)],
)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_body_cannot_use_the_codes_of_the_specification(
    connect: Connect, revision: str, code: int, modern: int
) -> None:
    """2026-07-28, basic, Error Codes: what it does not define of its own, and what it gave up, MUST NOT be emitted."""
    server = Server("s")

    @server.tool
    async def fail() -> str:
        raise ProtocolError("no", {"elicitations": []}, code=code)

    response = await Asked(connect, server, revision).call("fail")
    assert response == {
        "code": modern if revision == FIRST_MODERN_VERSION else code,
        "message": "no",
        "data": {"elicitations": []},
    }
