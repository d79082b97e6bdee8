"""2026-07-28 over HTTP: stateless requests, whose headers repeat the body."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from msgspec import Meta

from portico import Context, Server
from portico.transports.http_server import listener as listening

MODERN = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
Serve = Callable[..., Any]
LONG = "/" * 1_000_000


def based(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def mirrored(header: str) -> Meta:
    return Meta(extra_json_schema={"x-mcp-header": header})


@pytest.fixture
def routed() -> Server:
    """A server whose tools have parameters in headers."""
    server = Server("routed", version="1")

    @server.tool(run_in_thread=False)
    def text(region: Annotated[str, mirrored("Region")] = "") -> str:
        return region

    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "sure": {"type": "boolean", "x-mcp-header": "Sure"},
            "note": {"type": "string", "x-mcp-header": "Note"},
            "where": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
            "free": {"type": "string"},
        },
    }

    @server.tool(run_in_thread=False, input_schema=schema)
    def all_kinds(arguments: dict[str, Any]) -> str:
        return json.dumps(arguments, sort_keys=True)

    return server


# The ladder. Each step is tried with everything below it being wrong as well, so the order is what is tested.


class Ladder:
    """A request in which everything is wrong, made right from the top, step by step."""

    STEPS = (
        ("host", 403, -32600),
        ("origin", 403, -32600),
        ("method", 405, None),
        ("auth", 401, -32600),
        ("content type", 415, -32600),
        ("parse", 400, -32700),
        ("envelope", 400, -32600),
        ("meta", 400, -32602),
        ("headers", 400, -32020),
        ("version", 400, -32022),
        ("method name", 404, -32601),
        ("param", 400, -32020),
        ("capability", 400, -32021),
        ("nothing", 200, None),
    )

    @staticmethod
    def request(site: Any, wrong: str) -> tuple[str, dict[str, str | None], bytes]:
        """The request that is right down to a step, and wrong in it and in everything that is looked at later."""
        names = [name for name, _, _ in Ladder.STEPS]
        is_wrong = {name: place >= names.index(wrong) for place, name in enumerate(names)}
        version = "1999-01-01" if is_wrong["version"] else MODERN
        method = "tools/nothing" if is_wrong["method name"] else "tools/call"
        meta = {PREFIX + "protocolVersion": version, PREFIX + "clientCapabilities": {"elicitation": {}}}
        if is_wrong["capability"]:
            meta[PREFIX + "clientCapabilities"] = {}
        if is_wrong["meta"]:
            del meta[PREFIX + "clientCapabilities"]
        params = {"name": "ask", "arguments": {"region": "east"}, "_meta": meta}
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        if is_wrong["envelope"]:
            message["jsonrpc"] = "1.0"
        body = json.dumps(message).encode()
        if is_wrong["parse"]:
            body = body[:-1]
        fields: dict[str, str | None] = {
            "host": "evil.example" if is_wrong["host"] else "localhost",
            "origin": "http://evil.example" if is_wrong["origin"] else "http://localhost:3000",
            "authorization": "Bearer wrong" if is_wrong["auth"] else "Bearer right",
            "content-type": "text/plain" if is_wrong["content type"] else "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": version,
            "mcp-method": "tools/list" if is_wrong["headers"] else method,
            "mcp-name": "ask",
            "mcp-param-region": "west" if is_wrong["param"] else "east",
        }
        return ("PUT" if is_wrong["method"] else "POST"), fields, body


@pytest.mark.requirement("http.ladder")
@pytest.mark.parametrize(("step", "status", "code"), Ladder.STEPS)
async def test_request_is_judged_in_the_order_of_the_ladder(
    serve: Serve, step: str, status: int, code: int | None
) -> None:
    """The first thing that is wrong is the one that is told."""
    server = Server("ladder", version="1")

    @server.tool
    async def ask(region: Annotated[str, mirrored("Region")], ctx: Context) -> str:
        return str((await ctx.elicit("Where?", str)).data)

    site = await serve(server, token="right", allowed_origins=["http://localhost:3000"])
    method, fields, body = Ladder.request(site, step)
    response = await site.request(method, "/mcp", fields, body)
    assert response.status == status
    if code is not None:
        assert response.json["error"]["code"] == code


@pytest.mark.requirement("jsonrpc.unreadable-id-absent")
async def test_error_has_the_request_id_if_known(serve: Serve, server: Server) -> None:
    """JSON-RPC 2.0, section 5: an id that could not be read is left out, never null."""
    site = await serve(server)
    response = await site.request_stateless("tools/list", id="seven", meta={"clientCapabilities": None})
    assert response.json["id"] == "seven"
    fields = {"content-type": "application/json", "mcp-protocol-version": "2026-07-28"}
    unknown = await site.request("POST", "/mcp", fields, b"{")
    assert "id" not in unknown.json


@pytest.mark.requirement("modern.envelope-required", "modern.missing-400")
@pytest.mark.parametrize("missing", ["protocolVersion", "clientCapabilities"])
async def test_missing_meta_key_is_invalid_params(serve: Serve, server: Server, missing: str) -> None:
    """2026-07-28, basic, General fields: -32602 and 400, and it comes before the headers are compared."""
    site = await serve(server)
    response = await site.request_stateless("tools/list", meta={missing: None}, headers={"mcp-method": "wrong"})
    assert response.error == (400, -32602)
    assert missing in response.json["error"]["message"]


@pytest.mark.requirement("modern.envelope-required")
async def test_modern_header_without_any_meta_is_invalid_params(serve: Serve, server: Server) -> None:
    """Right headers with no `_meta` are -32602, not a session's problem."""
    site = await serve(server)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    fields = {"mcp-protocol-version": MODERN, "mcp-method": "tools/list"}
    assert (await site.post(message, fields)).error == (400, -32602)


@pytest.mark.requirement("http.version-header")
async def test_header_and_body_of_different_versions_are_a_mismatch(serve: Serve, server: Server) -> None:
    """Header 2026-07-28 with body v999 is -32020, not -32022."""
    site = await serve(server)
    for header, body in ((MODERN, "v999"), ("v999", MODERN), ("2025-11-25", MODERN), (MODERN, "2025-11-25")):
        response = await site.request_stateless(
            "tools/list", meta={"protocolVersion": body}, headers={"mcp-protocol-version": header}
        )
        assert response.error == (400, -32020), (header, body)


@pytest.mark.requirement("modern.unsupported-version")
@pytest.mark.parametrize("version", ["v999", "2099-01-01", "2025-11-25", "2024-11-05"])
async def test_unsupported_version_error_lists_supported_versions(serve: Serve, server: Server, version: str) -> None:
    """2026-07-28, basic/versioning: -32022 with `supported` and `requested`, 400; the same list as discover's."""
    site = await serve(server)
    response = await site.request_stateless("tools/list", meta={"protocolVersion": version})
    assert response.error == (400, -32022)
    data = response.json["error"]["data"]
    assert data["requested"] == version
    discovered = (await site.request_stateless("server/discover")).json["result"]
    assert data["supported"] == discovered["supportedVersions"]


@pytest.mark.requirement("modern.era-before-method", "http.unknown-method-404")
@pytest.mark.parametrize(
    "method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "nonsense"]
)
async def test_method_that_this_revision_has_not_is_404(serve: Serve, server: Server, method: str) -> None:
    """2026-07-28, basic/transports: -32601 is 404; the era is decided before the method."""
    site = await serve(server)
    assert (await site.request_stateless(method)).error == (404, -32601)


@pytest.mark.requirement("modern.missing-capability")
async def test_missing_capability_is_400_even_if_found_late(serve: Serve, server: Server) -> None:
    """2026-07-28, basic, Error Codes: -32021 is 400 wherever it arises, with a ClientCapabilities object."""
    site = await serve(server)
    response = await site.call("ask")
    assert response.error == (400, -32021)
    assert response.json["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}


async def test_errors_of_the_handler_are_http_200(serve: Serve, server: Server) -> None:
    """200, except the codes with a MUST."""
    site = await serve(server)
    assert (await site.call("nothing")).error == (200, -32602)
    assert (await site.request_stateless("resources/read", {"uri": "gone://x"})).error == (200, -32602)
    wrong = await site.call("echo", {"text": 1})
    assert wrong.status == 200
    assert wrong.json["result"]["isError"] is True


@pytest.mark.requirement("batch.only-2025-03-26", "http.one-message")
async def test_arrays_and_responses_are_not_of_this_revision(serve: Serve, server: Server) -> None:
    """2026-07-28, basic: a client sends requests and notifications, one at a time."""
    site = await serve(server)
    fields = {"mcp-protocol-version": MODERN}
    assert (await site.post([{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}], fields)).status == 400
    assert (await site.post({"jsonrpc": "2.0", "id": 1, "result": {}}, fields)).status == 400


# Headers that repeat the body


@pytest.mark.requirement("http.header-case")
async def test_headers_have_any_case(serve: Serve, server: Server) -> None:
    """RFC 9110 5.1: field names are case-insensitive. 2026-07-28: values are not."""
    site = await serve(server)
    shouted = {"MCP-PROTOCOL-VERSION": MODERN, "MCP-METHOD": "tools/call", "mCp-NaMe": "echo"}
    assert (await site.call("echo", {"text": "x"}, headers=shouted)).status == 200
    assert (await site.call("echo", {"text": "x"}, headers={"mcp-name": "Echo"})).error == (400, -32020)
    assert (await site.call("echo", {"text": "x"}, headers={"mcp-method": "Tools/Call"})).error == (400, -32020)


@pytest.mark.parametrize("blank", ["  echo", "echo  ", "\techo\t", " \t echo \t "])
async def test_white_space_around_header_values_is_ignored(serve: Serve, server: Server, blank: str) -> None:
    """RFC 9110 5.5: optional white space is not part of the value."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"mcp-name": blank})).status == 200
    version = blank.replace("echo", MODERN)
    assert (await site.call("echo", {"text": "x"}, headers={"mcp-protocol-version": version})).status == 200


@pytest.mark.requirement("http.standard-headers")
@pytest.mark.parametrize("header", ["mcp-protocol-version", "mcp-method", "mcp-name"])
async def test_missing_header_is_a_mismatch(serve: Serve, server: Server, header: str) -> None:
    """2026-07-28, basic/transports, Standard headers: required on every request."""
    site = await serve(server)
    response = await site.call("echo", {"text": "x"}, headers={header: None})
    assert response.error == (400, -32020)
    assert header in response.json["error"]["message"].lower()


@pytest.mark.requirement("http.standard-headers")
@pytest.mark.parametrize(
    "header", ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region", "Mcp-Param-Unknown"]
)
@pytest.mark.parametrize("same", [True, False])
async def test_header_that_is_duplicated_is_a_mismatch(serve: Serve, routed: Server, header: str, same: bool) -> None:
    """Duplicated is -32020 too: first and last may be read by different parties."""
    site = await serve(routed)
    value = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "text"}.get(header, "eu")
    twice = [(header, value), (header.upper(), value if same else "other")]
    fields = twice if "region" in header else [*twice, ("mcp-param-region", "eu")]
    response = await site.call("text", {"region": "eu"}, headers=fields)
    assert response.error == (400, -32020)


@pytest.mark.parametrize("header", ["host", "origin", "authorization", "content-type"])
async def test_duplicate_security_headers_are_rejected(serve: Serve, server: Server, header: str) -> None:
    """RFC 9110 5.3: only list-based fields may repeat; two parties could believe different ones."""
    site = await serve(server, token="t")
    value = {
        "host": "localhost",
        "origin": "http://localhost",
        "authorization": "Bearer t",
        "content-type": "application/json",
    }
    response = await site.call("echo", {"text": "x"}, headers=[(header, value[header])] * 2)
    assert response.status in (400, 403)


@pytest.mark.requirement("http.header-base64")
@pytest.mark.parametrize(
    ("uri", "header"),
    [
        ("note://öst", based("note://öst")),
        ("note://plain", based("note://plain")),
        ("note://a b", "note://a b"),
        ("note://=?base64?YQ==?=", "note://=?base64?YQ==?="),
    ],
)
async def test_name_may_be_base64_of_its_utf_8(serve: Serve, server: Server, uri: str, header: str) -> None:
    """2026-07-28, basic/transports, Value encoding: decoded before it is compared."""
    site = await serve(server)
    assert (await site.request_stateless("resources/read", {"uri": uri}, headers={"mcp-name": header})).status == 200


@pytest.mark.requirement("http.header-base64")
@pytest.mark.parametrize(
    "header",
    [
        "=?base64?bm90ZTovL2E?=",  # the padding is missing
        "=?base64?bm90ZTovL2E===?=",
        "=?base64?bm90ZTovL2E*?=",  # not in the alphabet
        "=?base64?bm90 ZTovL2E=?=",
        "=?base64?bm90ZTovL2E_?=",
        "=?base64?gICA?=",  # not UTF-8
        "=?BASE64?bm90ZTovL2E=?=",  # literal, because the markers are exact
        "?base64?bm90ZTovL2E=?=",
        "=?base64?bm90ZTovL2E=",
        "=?base64??=",
    ],
)
async def test_invalid_base64_in_mcp_name_is_a_header_mismatch(serve: Serve, server: Server, header: str) -> None:
    """2026-07-28, basic/transports, Value encoding: bad padding or alphabet is -32020; other markers are literal."""
    site = await serve(server)
    response = await site.request_stateless("resources/read", {"uri": "note://a"}, headers={"mcp-name": header})
    assert response.error == (400, -32020)


@pytest.mark.requirement("http.header-base64")
async def test_mcp_name_in_base64_form_is_always_decoded(serve: Serve, server: Server) -> None:
    """The same section: a value that is itself of the form must be wrapped, or a gateway would read another name."""
    server.prompt("=?base64?YQ==?=")(lambda: "misleading")
    site = await serve(server)
    literal = await site.request_stateless("prompts/get", {"name": "=?base64?YQ==?="})
    assert literal.error == (400, -32020)
    wrapped = {"mcp-name": based("=?base64?YQ==?=")}
    assert (await site.request_stateless("prompts/get", {"name": "=?base64?YQ==?="}, headers=wrapped)).status == 200


@pytest.mark.requirement("http.header-base64")
async def test_name_in_raw_utf_8_is_a_mismatch(serve: Serve, server: Server) -> None:
    """The same section: only visible ASCII, space and tab stand plain; anything else is malformed."""
    site = await serve(server)
    raw = {"mcp-name": "note://öst".encode().decode("latin-1")}
    assert (await site.request_stateless("resources/read", {"uri": "note://öst"}, headers=raw)).error == (400, -32020)


# Parameters in headers


@pytest.mark.requirement("http.param-headers")
@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"count": 42}, {"Mcp-Param-Count": "42"}),
        ({"count": 42}, {"Mcp-Param-Count": "42.0"}),
        ({"count": 42.0}, {"Mcp-Param-Count": "42"}),
        ({"count": -7}, {"Mcp-Param-Count": "-7"}),
        ({"count": 9007199254740991}, {"Mcp-Param-Count": "9007199254740991"}),
        ({"count": 0}, {"Mcp-Param-Count": "0"}),
        ({"sure": True}, {"Mcp-Param-Sure": "true"}),
        ({"sure": False}, {"MCP-PARAM-SURE": "false"}),
        ({"note": "plain text"}, {"Mcp-Param-Note": "plain text"}),
        ({"note": "öst"}, {"Mcp-Param-Note": based("öst")}),
        ({"note": " padded "}, {"Mcp-Param-Note": based(" padded ")}),
        ({"note": "line\nbreak"}, {"Mcp-Param-Note": based("line\nbreak")}),
        ({"note": ""}, {"Mcp-Param-Note": ""}),
        ({"note": None}, {}),
        ({}, {}),
        ({"where": {"zone": "z"}}, {"Mcp-Param-Zone": "z"}),
        ({"where": {}}, {}),
        ({"where": {"zone": None}}, {}),
        ({"free": "x"}, {"Mcp-Param-Unknown": "forwarded"}),
    ],
)
async def test_mirrored_header_must_equal_the_body(
    serve: Serve, routed: Server, arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    """2026-07-28, basic/transports, Custom headers."""
    site = await serve(routed)
    # What the schema makes of null is not the question here: -32020 would be.
    response = await site.call("all_kinds", arguments, headers=headers)
    assert response.status == 200, response


@pytest.mark.requirement("http.param-headers")
@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"count": 42}, {}),
        ({"count": 42}, {"Mcp-Param-Count": "43"}),
        ({"count": 42}, {"Mcp-Param-Count": "42.5"}),
        ({"count": 42}, {"Mcp-Param-Count": "forty-two"}),
        ({"count": 42}, {"Mcp-Param-Count": "4_2"}),
        ({"count": 42}, {"Mcp-Param-Count": ""}),
        ({"count": 42}, {"Mcp-Param-Count": "nan"}),
        ({"count": 1}, {"Mcp-Param-Count": "true"}),
        ({"count": 9007199254740993}, {"Mcp-Param-Count": "9007199254740992"}),
        ({"sure": True}, {"Mcp-Param-Sure": "True"}),
        ({"sure": True}, {"Mcp-Param-Sure": "1"}),
        ({"sure": False}, {}),
        ({"note": "a"}, {"Mcp-Param-Note": "A"}),
        ({"note": "a"}, {"Mcp-Param-Note": based("b")}),
        ({"note": "a"}, {"Mcp-Param-Note": "=?base64?YQ?="}),
        ({"note": ""}, {}),
        ({"note": "a"}, {"Mcp-Param-Note": ""}),
        ({"where": {"zone": "z"}}, {}),
        ({"where": {"zone": "z"}}, {"Mcp-Param-Zone": "y"}),
        ({}, {"Mcp-Param-Count": "42"}),
        ({"note": None}, {"Mcp-Param-Note": "null"}),
    ],
)
async def test_parameter_in_a_header_that_disagrees_is_a_mismatch(
    serve: Serve, routed: Server, arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    """2026-07-28, basic/transports, Custom headers: any disagreement, and a missing header, is -32020."""
    site = await serve(routed)
    assert (await site.call("all_kinds", arguments, headers=headers)).error == (400, -32020)


@pytest.mark.requirement("http.param-headers")
async def test_body_is_executed(serve: Serve, routed: Server) -> None:
    """The body is the source of truth."""
    site = await serve(routed)
    response = await site.call("all_kinds", {"count": 42}, headers={"Mcp-Param-Count": "42.0"})
    assert response.json["result"]["content"][0]["text"] == '{"count": 42}'


# Answers


@pytest.mark.requirement("http.notification-202")
@pytest.mark.parametrize("meta", [{}, {"protocolVersion": None, "clientCapabilities": None}])
@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/initialized", "notifications/unknown"])
async def test_notification_is_accepted_without_a_word(
    serve: Serve, server: Server, method: str, meta: dict[str, Any]
) -> None:
    """2026-07-28, basic/transports: 202 and no body, never JSON."""
    site = await serve(server)
    message = {"jsonrpc": "2.0", "method": method, "params": {}}
    response = await site.post(message, {"mcp-protocol-version": MODERN})
    assert (response.status, response.body) == (202, b"")
    assert "content-type" not in response


@pytest.mark.requirement("http.one-endpoint")
@pytest.mark.parametrize("path", ["/mcp", "/"])
async def test_both_paths_are_the_same_endpoint(serve: Serve, server: Server, path: str) -> None:
    """POST /mcp and POST / are the same endpoint."""
    site = await serve(server)
    response = await site.call("echo", {"text": "hi"}, path=path)
    assert response.json["result"]["content"][0]["text"] == "hi"


async def test_path_can_be_chosen(serve: Serve, server: Server) -> None:
    """docs/how-to/choose-a-transport.md: `--path`."""
    site = await serve(server, path="/tools/v1")
    assert (await site.call("echo", {"text": "hi"}, path="/tools/v1")).status == 200
    assert (await site.call("echo", {"text": "hi"}, path="/mcp")).status == 404


@pytest.mark.requirement("http.json-or-events")
@pytest.mark.parametrize("tool", ["echo", "later"])
async def test_response_is_json_without_earlier_messages(serve: Serve, server: Server, tool: str) -> None:
    """2026-07-28, basic/transports: either form is allowed; plain JSON is what can still have a status."""
    site = await serve(server)
    response = await site.call(tool, {"text": "hi"}, id="one")
    assert response.status == 200
    assert response.json["id"] == "one"
    assert response.json["result"]["resultType"] == "complete"


@pytest.mark.requirement("http.json-or-events")
async def test_response_is_an_event_stream_after_a_message(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/transports: notifications of this request, then its response, then the end."""
    site = await serve(server)
    response = await site.call("talk", {"count": 3}, meta={"progressToken": "t"})
    assert response.status == 200
    assert [message.get("method", "response") for message in response.messages] == [
        *["notifications/progress"] * 3,
        "response",
    ]
    assert [message["params"]["progress"] for message in response.messages[:-1]] == [1, 2, 3]
    assert response.messages[-1]["result"]["content"][0]["text"] == "said"


@pytest.mark.requirement("http.no-buffering")
async def test_events_are_not_held_back_by_proxies(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/transports: `X-Accel-Buffering: no` SHOULD; and a stream is nothing to keep."""
    site = await serve(server)
    response = await site.call("talk", {"count": 1}, meta={"progressToken": "t"})
    assert response["x-accel-buffering"] == "no"
    assert "no-store" in response["cache-control"]


@pytest.mark.requirement("http.no-resumption")
async def test_events_have_no_ids_that_promise_resumption(serve: Serve, server: Server) -> None:
    """SSE ids and Last-Event-ID are not supported on 2026-07-28."""
    site = await serve(server)
    response = await site.call("talk", {"count": 2}, meta={"progressToken": "t"})
    assert all(event.id is None and event.retry is None for event in response.events)


@pytest.mark.requirement("progress.only-with-token", "logging.per-request")
async def test_logs_and_progress_are_sent_only_if_requested(serve: Serve, server: Server) -> None:
    """2026-07-28, server/utilities/logging: no log messages without a level; no progress without a token."""
    site = await serve(server)
    assert (await site.call("talk", {"count": 3})).json["result"]
    assert (await site.call("shout", {"count": 3, "size": 1})).json["result"]
    response = await site.call("shout", {"count": 3, "size": 1}, meta={"logLevel": "info"})
    assert len(response.messages) == 4
    above = await site.call("shout", {"count": 3, "size": 1}, meta={"logLevel": "error"})
    assert len(above.messages) == 1


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
async def test_client_that_does_not_accept_sse_gets_json(serve: Serve, server: Server, accept: str | None) -> None:
    site = await serve(server)
    response = await site.call("shout", {"count": 2, "size": 1}, meta={"logLevel": "info"}, headers={"accept": accept})
    assert response["content-type"] == "application/json"
    assert response.json["result"]


async def test_error_after_the_first_event_travels_in_the_stream(serve: Serve, server: Server) -> None:
    """Once the stream has begun the status is 200 already."""

    @server.tool
    async def late(ctx: Context) -> str:
        await ctx.report_progress(1)
        return str((await ctx.elicit("?", str)).data)

    site = await serve(server)
    failed = await site.call("talk", {"count": 1, "fail": True}, meta={"progressToken": 1})
    assert failed.messages[-1]["result"]["isError"] is True
    refused = await site.call("late", meta={"progressToken": 1})
    assert refused.status == 200
    assert refused.messages[-1]["error"]["code"] == -32021


@pytest.mark.requirement("mrtr.over-http")
async def test_question_is_a_result(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/patterns/mrtr: no request to the client ever; the retry has the answers."""
    site = await serve(server)
    meta = {"clientCapabilities": {"elicitation": {}}}
    response = (await site.call("ask", meta=meta)).json["result"]
    assert response["resultType"] == "input_required"
    (key,) = response["inputRequests"]
    answer = {key: {"action": "accept", "content": {"value": "blue"}}}
    retry = {"name": "ask", "arguments": {}, "inputResponses": answer, "requestState": response["requestState"]}
    done = await site.request_stateless("tools/call", retry, id=2, meta=meta)
    assert done.json["result"]["content"][0]["text"] == "blue"


@pytest.mark.parametrize(
    "accept", [None, "*/*", "application/json", "text/event-stream", "application/*", "application/json;q=0.1, */*"]
)
async def test_client_may_accept_less_than_it_should(serve: Serve, server: Server, accept: str | None) -> None:
    """2026-07-28, basic/transports asks clients to accept both; the text asks nothing of servers."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"accept": accept})).status == 200


async def test_client_that_accepts_nothing_we_have_is_informed(serve: Serve, server: Server) -> None:
    """RFC 9110 15.5.7."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"accept": "text/html"})).status == 406


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/json ;x=y", 200),
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("application/x-www-form-urlencoded", 415),
        (None, 415),
    ],
)
async def test_body_must_be_json_by_content_type(serve: Serve, server: Server, kind: str | None, status: int) -> None:
    """RFC 9110 15.5.16; a form of a page in a browser must not become a call without a preflight."""
    site = await serve(server)
    assert (await site.call("echo", {"text": "x"}, headers={"content-type": kind})).status == status


@pytest.mark.requirement("jsonrpc.parse-error")
@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff\xfe", b"[" * 100_000])
async def test_invalid_json_is_a_parse_error(serve: Serve, server: Server, body: bytes) -> None:
    """JSON-RPC 2.0, 5.1; 400 as both SDKs have it."""
    site = await serve(server)
    fields = {"content-type": "application/json", "mcp-protocol-version": MODERN}
    assert (await site.request("POST", "/mcp", fields, body)).error == (400, -32700)


# What older revisions have


@pytest.mark.requirement("http.post-only")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_get_and_delete_are_not_of_this_revision(serve: Serve, server: Server, method: str) -> None:
    """2026-07-28, basic/transports: POST alone; 405 SHOULD."""
    site = await serve(server)
    response = await site.request(method, "/mcp", {"mcp-protocol-version": MODERN, "accept": "text/event-stream"})
    assert response.status == 405
    assert "POST" in response["allow"]


@pytest.mark.requirement("http.no-sessions")
async def test_session_is_ignored_and_never_given(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/transports: ignore Mcp-Session-Id and Last-Event-ID, never mint or echo one."""
    site = await serve(server)
    fields = {"mcp-session-id": "somebody-elses", "last-event-id": "4-2"}
    for response in (
        await site.call("echo", {"text": "x"}, headers=fields),
        await site.call("talk", {"count": 1}, meta={"progressToken": 1}, headers=fields),
    ):
        assert response.status == 200
        assert "mcp-session-id" not in response
    assert len(site.exchange.sessions) == 0


@pytest.mark.requirement("modern.no-memory")
async def test_requests_share_no_state(serve: Serve, server: Server) -> None:
    """Capabilities of one request do not count for the next on the same connection."""
    site = await serve(server)
    raw = await site.connect()
    call = {"name": "ask", "arguments": {}}
    raw.send(site.modern_bytes("tools/call", call, meta={"clientCapabilities": {"elicitation": {}}}))
    assert (await raw.response()).json["result"]["resultType"] == "input_required"
    raw.send(site.modern_bytes("tools/call", call))
    assert (await raw.response()).error == (400, -32021)


# Going away


@pytest.mark.requirement("cancellation.http-disconnect")
async def test_reset_connection_cancels_the_body(
    serve: Serve, server: Server, held: Any, wait_until: Callable[..., Any]
) -> None:
    """2026-07-28, basic/patterns/cancellation: a disconnect is a cancellation."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    raw.abort()
    await held.was_cancelled()
    await wait_until(lambda: site.exchange.metrics.in_flight == 0)


@pytest.mark.requirement("cancellation.http-disconnect")
async def test_closed_connection_cancels_the_body(serve: Serve, server: Server, held: Any) -> None:
    """The same for a client that closes its socket as programs do: the first sign of it is an end of input."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    await raw.close()
    await held.was_cancelled(within=4)


@pytest.mark.requirement("cancellation.http-disconnect")
async def test_closed_stream_cancels_the_body(serve: Serve, server: Server, held: Any) -> None:
    """The same for a stream that has begun. Nothing more is said, so nothing tells us by failing to be written."""
    site = await serve(server)
    raw = await site.open_call("talk", {"count": 1, "hold": True}, meta={"progressToken": 1})
    await raw.event()
    await held.has_started()
    await raw.close()
    await held.was_cancelled(within=4)


@pytest.mark.requirement("cancellation.http-disconnect")
async def test_disconnected_call_does_not_affect_others(
    serve: Serve, server: Server, held: Any, wait_until: Callable[..., Any]
) -> None:
    """2026-07-28, basic/patterns/cancellation: it cancels that request."""
    site = await serve(server)
    item, other = await site.connect(), await site.connect()
    for raw in (item, other):
        raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    await wait_until(lambda: held.runs == 2)
    item.abort()
    await held.was_cancelled()
    held.release.set()
    assert (await other.response()).json["result"]["content"][0]["text"] == "released"


# Listening


@pytest.mark.requirement("subscriptions.acknowledged-first")
async def test_listen_stream_starts_with_the_accepted_filter(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/patterns/subscriptions: acknowledged first, with the id in its own JSON type."""
    site = await serve(server)
    for id in (20, "twenty"):
        raw = await site.listen(id, toolsListChanged=True, resourceSubscriptions=["note://a"], taskIds=["t"])
        assert raw.head["content-type"] == "text/event-stream"
        acknowledged = await raw.message()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": ["note://a"],
        }
        assert acknowledged["params"]["_meta"] == {PREFIX + "subscriptionId": id}


@pytest.mark.requirement("subscriptions.acknowledged-subset")
async def test_listen_without_the_capability_is_acknowledged_without_it(serve: Serve) -> None:
    """The same section: unsupported kinds are left out of the acknowledgement."""
    site = await serve(Server("still", version="1", capabilities={"tools": {}}))
    raw = await site.listen(1, toolsListChanged=True, promptsListChanged=True)
    assert (await raw.message())["params"]["notifications"] == {}


@pytest.mark.requirement("subscriptions.filter")
async def test_changes_are_sent_to_subscribers_only(serve: Serve, server: Server) -> None:
    """The same section: nothing that was not asked for, each event tagged with its subscription."""
    site = await serve(server)
    tools = await site.listen(1, toolsListChanged=True)
    notes = await site.listen("n", resourceSubscriptions=["note://a"])
    both = await site.listen(3, toolsListChanged=True, resourceSubscriptions=["note://a", "note://b"])
    for raw in (tools, notes, both):
        await raw.message()
    server.notify_resource_updated("note://c")
    await site.call("grow", {"name": "grown"})
    server.notify_resource_updated("note://a")
    notifications = [await tools.message(), await notes.message(), await both.message(), await both.message()]
    assert [item["method"].removeprefix("notifications/") for item in notifications] == [
        "tools/list_changed",
        "resources/updated",
        *sorted(
            ("resources/updated", "tools/list_changed"), reverse=notifications[2]["method"].endswith("list_changed")
        ),
    ]
    assert [item["params"]["_meta"][PREFIX + "subscriptionId"] for item in notifications] == [1, "n", 3, 3]
    assert notifications[1]["params"]["uri"] == "note://a"


@pytest.mark.requirement("progress.own-stream")
async def test_progress_never_travels_on_a_listen_stream(serve: Serve, server: Server) -> None:
    """Progress and log messages belong to the request they are about."""
    site = await serve(server)
    raw = await site.listen(1, toolsListChanged=True)
    await raw.message()
    await site.call("talk", {"count": 3}, meta={"progressToken": 1, "logLevel": "debug"})
    await site.call("grow", {"name": "grown"})
    assert (await raw.message())["method"] == "notifications/tools/list_changed"


async def test_idle_stream_is_kept_alive_by_comments(
    serve: Serve, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2026-07-28, basic/transports: SSE comments are encouraged on idle streams."""
    monkeypatch.setattr(listening, "KEEP_ALIVE_INTERVAL_SECONDS", 0.5)
    site = await serve(server)
    raw = await site.listen(1, toolsListChanged=True)
    await raw.message()
    assert await raw.until_comment()


async def test_keepalive_does_not_start_a_response(serve: Serve, server: Server, held: Any) -> None:
    """A stream must not be committed to before the answer's status is known."""
    site = await serve(server)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    site.exchange.send_keep_alives()
    held.release.set()
    assert (await raw.response())["content-type"] == "application/json"


@pytest.mark.requirement("subscriptions.graceful-end")
async def test_draining_ends_a_listen_stream_with_its_result(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/patterns/subscriptions: a graceful end is a result with its id, then the end.

    basic/patterns/cancellation wants `notifications/cancelled` for the same; it comes before the result, which is last.
    """
    site = await serve(server)
    item, other = await site.listen(1, toolsListChanged=True), await site.listen("two", promptsListChanged=True)
    for raw in (item, other):
        await raw.message()
    await site.stop(timeout=5)
    for raw, id in ((item, 1), (other, "two")):
        cancelled = await raw.message()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == id
        assert cancelled["params"]["_meta"] == {PREFIX + "subscriptionId": id}
        last = await raw.message()
        assert last["id"] == id
        assert last["result"]["resultType"] == "complete"
        assert last["result"]["_meta"][PREFIX + "subscriptionId"] == id
        assert await raw.event() is None
        assert await raw.is_over()


@pytest.mark.requirement("subscriptions.client-end")
async def test_listener_that_leaves_is_forgotten(serve: Serve, server: Server, wait_until: Any) -> None:
    """The client ends it by closing the stream."""
    site = await serve(server)
    raw = await site.listen(1, toolsListChanged=True)
    await raw.message()
    assert len(server.subscriptions._listeners) == 1
    raw.abort()
    await wait_until(lambda: not server.subscriptions._listeners)


# Limits


async def test_more_calls_than_there_may_be_are_rejected(
    serve: Serve, server: Server, held: Any, wait_until: Callable[..., Any]
) -> None:
    """docs/how-to/deploy.md, Limits: 503 with Retry-After; what is running is not disturbed."""
    site = await serve(server, max_concurrent_requests=2)
    running = [await site.connect() for _ in range(2)]
    for raw in running:
        raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await wait_until(lambda: held.runs == 2)
    refused = await site.call("echo", {"text": "x"})
    assert refused.status == 503
    assert int(refused["retry-after"]) >= 1
    held.release.set()
    for raw in running:
        assert (await raw.response()).status == 200
    assert (await site.call("echo", {"text": "x"})).status == 200


@pytest.mark.requirement("tools.limited")
async def test_one_client_cannot_have_all_calls(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Limits: so many from one address."""
    site = await serve(server, max_concurrent_requests_per_client=1)
    raw = await site.connect()
    raw.send(site.modern_bytes("tools/call", {"name": "hold", "arguments": {}}))
    await held.has_started()
    assert (await site.call("echo", {"text": "x"})).status == 503
    held.release.set()
    await raw.response()
    assert (await site.call("echo", {"text": "x"})).status == 200


# Tokens


@pytest.mark.requirement("auth.challenge")
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer ", "Bearer wrong", "Basic right", "right", "Bearer rightx", "Bearer righ"]
)
async def test_wrong_token_is_401_with_a_challenge(serve: Serve, server: Server, header: str | None) -> None:
    """RFC 6750 3; 2026-07-28, basic/authorization."""
    site = await serve(server, token="right")
    response = await site.call("echo", {"text": "x"}, headers={"authorization": header})
    assert response.status == 401
    assert response["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_right_token_is_accepted(serve: Serve, server: Server, scheme: str) -> None:
    """RFC 9110 11.1: the scheme is case-insensitive."""
    site = await serve(server, token="right")
    assert (await site.call("echo", {"text": "x"}, headers={"authorization": f"{scheme} right"})).status == 200


@pytest.mark.requirement("auth.header-only")
async def test_token_in_the_query_is_no_token(serve: Serve, server: Server) -> None:
    """2026-07-28, basic/authorization: access tokens MUST NOT be in the query."""
    site = await serve(server, token="right")
    path = "/mcp?access_token=right&token=right"
    assert (await site.call("echo", {"text": "x"}, path=path, headers={"authorization": None})).status == 401


@pytest.mark.parametrize("path", ["/healthcare", "/health/mcp", "/healthz-and-more"])
async def test_endpoint_named_like_health_requires_the_token(serve: Serve, server: Server, path: str) -> None:
    """docs/how-to/deploy.md: /health needs no token. Nothing else may be reached without one."""
    site = await serve(server, token="right", path=path)
    response = await site.call("echo", {"text": "x"}, path=path, headers={"authorization": None})
    assert response.status == 401


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": LONG}),
        ("prompts/get", {"name": LONG}),
        ("resources/read", {"uri": "note://" + LONG}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["note://" + LONG]}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": LONG}, "argument": {"name": "a", "value": ""}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a"}, "argument": {"name": "a", "value": LONG}}),
    ],
)
async def test_name_has_a_bound(serve: Serve, server: Server, method: str, params: Any) -> None:
    """A URI of 4 MiB was matched against every template for seconds, and then repeated."""
    response = await (await serve(server)).request_stateless(method, params, headers={"mcp-name": "n"})
    assert response.json["error"]["code"] == -32602
    assert len(response.body) < 1000
