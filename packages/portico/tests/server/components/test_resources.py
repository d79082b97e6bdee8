"""Resources and templates: lists, reads, and errors for missing ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, File, Image, ProtocolError, Server, ToolError, UsageError
from portico.protocol.content import Annotations, BlobResourceContents, TextResourceContents
from portico.protocol.meta import Icon
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS

Connect = Callable[..., Any]


@dataclass
class Report:
    count: int


async def read(server: Server, uri: str, **options: Any) -> Any:
    async with Client(server, **options) as client:
        [contents] = await client.read_resource(uri)
    return contents


# What is listed


async def test_resource_is_listed_with_all_options() -> None:
    server = Server("s")

    @server.resource(
        "notes://today",
        name="today",
        title="Today",
        mime_type="text/markdown",
        size=12,
        annotations=Annotations(audience=["user"], priority=0.5),
        icons=[Icon("https://example.com/i.png")],
        meta={"example.com/a": 1},
    )
    async def notes() -> str:
        """What happened today."""
        return "# Today"

    async with Client(server) as client:
        [resource] = await client.list_resources()
        assert await client.list_resource_templates() == []
    assert (resource.uri, resource.name, resource.title) == ("notes://today", "today", "Today")
    assert (resource.description, resource.mime_type, resource.size) == ("What happened today.", "text/markdown", 12)
    assert resource.annotations == Annotations(audience=["user"], priority=0.5)
    assert resource.meta == {"example.com/a": 1}


async def test_templates_are_listed_apart() -> None:
    server = Server("s")
    server.resource("a://b")(lambda: "")
    server.resource("a://{x}")(lambda x: x)
    async with Client(server) as client:
        assert [item.uri for item in await client.list_resources()] == ["a://b"]
        assert [item.uri_template for item in await client.list_resource_templates()] == ["a://{x}"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_older_client_does_not_receive_unknown_members(connect: Connect, revision: str) -> None:
    server = Server("s")
    options: dict[str, Any] = {"title": "T", "icons": [Icon("https://example.com/i.png")], "meta": {"example.com/a": 1}}
    late = Annotations(last_modified="2026-01-01T00:00:00Z", priority=1.0)
    server.resource("a://b", name="n", annotations=late, **options)(lambda: "")
    server.resource("a://{x}", name="n", annotations=late, **options)(lambda x: x)
    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    [resource] = (await wire.request_as(revision, "resources/list"))["result"]["resources"]
    [template] = (await wire.request_as(revision, "resources/templates/list"))["result"]["resourceTemplates"]
    known_names = {"name", "annotations"}
    known_names |= {"title", "_meta"} if revision >= "2025-06-18" else set()
    known_names |= {"icons"} if revision >= "2025-11-25" else set()
    assert (resource.keys(), template.keys()) == (known_names | {"uri"}, known_names | {"uriTemplate"})
    for item in (resource, template):
        assert ("lastModified" in item["annotations"]) is (revision >= "2025-06-18")


# What is read


@pytest.mark.parametrize(
    "value, mime_type, expected",
    [
        ("text", None, ("text/plain", "text")),
        ("<p>", "text/html", ("text/html", "<p>")),
        ("", None, ("text/plain", "")),
        ({"a": 1}, None, ("application/json", '{"a":1}')),
        (Report(3), None, ("application/json", '{"count":3}')),
        ([1, 2], None, ("application/json", "[1,2]")),
        ([], None, ("application/json", "[]")),
        (0, None, ("application/json", "0")),
        (False, None, ("application/json", "false")),
    ],
)
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_return_values_become_text(revision: str, value: Any, mime_type: Any, expected: Any) -> None:
    server = Server("s")
    server.resource("a://b", mime_type=mime_type)(lambda: value)
    contents = await read(server, "a://b", protocol_version=revision)
    assert (contents.uri, contents.mime_type, contents.text) == ("a://b", *expected)


@pytest.mark.requirement("resources.binary")
@pytest.mark.parametrize(
    "value, mime_type, expected",
    [
        (b"\x00\xff", None, ("application/octet-stream", "AP8=")),
        (bytearray(b"\x00"), "image/png", ("image/png", "AA==")),
        (Image(data=b"\x00"), None, ("image/png", "AA==")),
        (b"\xff", "text/plain", ("text/plain", "/w==")),
    ],
)
async def test_binary_return_values_become_blobs(value: Any, mime_type: Any, expected: Any) -> None:
    server = Server("s")
    server.resource("a://b", mime_type=mime_type)(lambda: value)
    contents = await read(server, "a://b")
    assert (contents.mime_type, contents.blob) == expected


async def test_bytes_of_a_textual_type_are_text() -> None:
    server = Server("s")
    server.resource("a://b", mime_type="application/json")(lambda: b"{}")
    assert (await read(server, "a://b")).text == "{}"


async def test_file_path_is_not_disclosed(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("inside")
    server = Server("s")
    server.resource("a://b")(lambda: File(tmp_path / "n.txt"))
    contents = await read(server, "a://b")
    assert (contents.uri, contents.mime_type, contents.text) == ("a://b", "text/plain", "inside")


async def test_resource_may_have_several_contents() -> None:
    server = Server("s")
    parts = [TextResourceContents(uri="a://b/1", text="one"), BlobResourceContents(uri="a://b/2", blob="AA==")]
    server.resource("a://b")(lambda: parts)
    async with Client(server) as client:
        item, two = await client.read_resource("a://b")
    assert (item.uri, item.text, two.uri, two.blob) == ("a://b/1", "one", "a://b/2", "AA==")


@pytest.mark.parametrize("body", ["async", "thread", "inline"])
async def test_body_may_run_anywhere(body: str) -> None:
    server = Server("s")

    def plain(ctx: Context) -> str:
        return ctx.protocol_version

    async def waiting(ctx: Context) -> str:
        return ctx.protocol_version

    if body == "async":
        server.resource("a://b")(waiting)
    else:
        server.resource("a://b", run_in_thread=body != "inline")(plain)
    assert (await read(server, "a://b")).text == "2026-07-28"


# Templates


async def test_variables_arrive_typed_and_decoded() -> None:
    server = Server("s")

    @server.resource("db://{table}/{row}{?deep}")
    async def row(table: str, row: int, deep: bool = False) -> dict[str, Any]:
        return {"table": table, "row": row, "deep": deep}

    assert (await read(server, "db://a%20b/7")).text == '{"table":"a b","row":7,"deep":false}'
    assert (await read(server, "db://t/7?deep=true")).text == '{"table":"t","row":7,"deep":true}'


async def test_response_has_the_requested_uri() -> None:
    server = Server("s")
    server.resource("a://{x}")(lambda x: x)
    assert (await read(server, "a://one")).uri == "a://one"


async def test_exact_uri_wins_over_the_template_and_the_special_over_the_general() -> None:
    server = Server("s")
    server.resource("a://{+rest}")(lambda rest: "general")
    server.resource("a://x/{y}")(lambda y: "special")
    server.resource("a://x/one")(lambda: "exact")
    assert (await read(server, "a://x/one")).text == "exact"
    assert (await read(server, "a://x/two")).text == "special"
    assert (await read(server, "a://y/two")).text == "general"


@pytest.mark.requirement("resources.uris-validated")
async def test_value_of_the_wrong_type_is_named() -> None:
    server = Server("s")
    server.resource("db://{row}")(take_row)
    async with Client(server) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.read_resource("db://seven")
    assert raised.value.code == -32602
    assert "'row'" in raised.value.message
    assert "an integer" in raised.value.message
    assert '"seven"' in raised.value.message
    assert raised.value.data["uri"] == "db://seven"


def take_row(row: int) -> str:
    return str(row)


def test_variables_and_the_parameters_are_the_same_words() -> None:
    server = Server("s")
    with pytest.raises(UsageError, match="no variable for the parameter 'y'"):
        server.resource("a://{x}")(lambda x, y: "")
    with pytest.raises(UsageError, match="no parameter for the variable 'x'"):
        server.resource("a://{x}")(lambda: "")
    with pytest.raises(UsageError, match="no variable for the parameter 'x'"):
        server.resource("a://b")(lambda x: "")
    with pytest.raises(UsageError, match="requires its URI"):
        server.resource(lambda: "")  # type: ignore[arg-type]
    server.resource("a://b")(lambda: "")
    with pytest.raises(UsageError, match="resource 'a://b' is already registered"):
        server.resource("a://b")(lambda: "")


# What is not there


@pytest.mark.requirement("resources.uris-validated")
@pytest.mark.broken_frames("asks for what is no address")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("uri", ["a://nothing", "b://nowhere", "", "not-a-uri"])
async def test_missing_resource_error_contains_the_uri(revision: str, uri: str) -> None:
    server = Server("s")
    server.resource("a://{x}")(lambda x: None)
    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.read_resource(uri)
    assert raised.value.code == (-32602 if revision == "2026-07-28" else -32002)
    assert raised.value.message == f"Resource not found: {uri}"
    assert raised.value.data == {"uri": uri}


async def test_missing_file_is_a_resource_that_is_missing(tmp_path: Path) -> None:
    server = Server("s")
    server.resource("a://{name}")(lambda name: (tmp_path / name).read_text())
    async with Client(server) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.read_resource("a://gone")
    assert raised.value.message == "Resource not found: a://gone"
    assert str(tmp_path) not in raised.value.message


@pytest.mark.requirement("resources.internal")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unexpected_exception_shows_an_id_and_nothing_else(revision: str) -> None:
    server = Server("s")

    @server.resource("a://b")
    async def fail() -> str:
        raise RuntimeError("hunter2")

    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.read_resource("a://b")
    assert raised.value.code == -32603
    assert raised.value.message == f"Internal error (error id {raised.value.data['errorId']})"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_rejection_of_the_author_is_an_error_with_the_authors_words(connect: Connect, revision: str) -> None:
    """A resource has no isError: a ToolError in its body must not come back as the result of a tool."""
    server = Server("s")

    @server.resource("a://b")
    async def refuse() -> str:
        raise ToolError("The archive is closed.")

    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    response = await wire.request_as(revision, "resources/read", {"uri": "a://b"})
    assert "The archive is closed." in response["error"]["message"]


# Changes


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_subscriber_is_notified_until_it_unsubscribes(heard: Any, revision: str) -> None:
    server = Server("s")
    server.resource("a://b")(lambda: "")
    async with Client(server, protocol_version=revision, message_handler=heard) as client:
        await client.subscribe("a://b")
        server.notify_resource_updated("a://other")
        server.notify_resource_updated("a://b")
        await heard.wait_for("notifications/resources/updated")
        await client.unsubscribe("a://b")
        server.notify_resource_updated("a://b")
        server.prompt(lambda: "a change that is heard of")
        await heard.wait_for("notifications/prompts/list_changed")
    assert heard.messages == [
        ("notifications/resources/updated", {"uri": "a://b"}),
        ("notifications/prompts/list_changed", None),
    ]


async def test_subscription_covers_resources_below_the_uri(heard: Any) -> None:
    server = Server("s")
    server.resource("a://b")(lambda: "")
    async with (
        Client(server, message_handler=heard) as client,
        client.listen(SubscriptionFilter(resource_subscriptions=["a://b"])),
    ):
        server.notify_resource_updated("a://bc")
        server.notify_resource_updated("a://b/c")
        await heard.wait_for("notifications/resources/updated")
    assert [said["uri"] for method, said in heard.messages if method.endswith("updated")] == ["a://b/c"]


async def test_many_updates_in_one_go_are_informed_once(heard: Any) -> None:
    server = Server("s")
    server.resource("a://b")(lambda: "")
    server.resource("a://last")(lambda: "")
    async with (
        Client(server, message_handler=heard) as client,
        client.listen(SubscriptionFilter(resource_subscriptions=["a://b", "a://last"])),
    ):
        for _ in range(100):
            server.notify_resource_updated("a://b")
        await heard.wait_for("notifications/resources/updated")
        server.notify_resource_updated("a://last")
        await heard.wait_for("notifications/resources/updated", times=2)
    assert [said["uri"] for method, said in heard.messages if method.endswith("updated")] == ["a://b", "a://last"]


async def test_update_may_be_told_from_a_thread(heard: Any) -> None:
    server = Server("s")
    server.resource("a://b")(lambda: "")

    @server.tool
    def touch() -> str:
        server.notify_resource_updated("a://b")
        return "touched"

    async with (
        Client(server, message_handler=heard) as client,
        client.listen(SubscriptionFilter(resource_subscriptions=["a://b"])),
    ):
        await client.call_tool("touch")
        await heard.wait_for("notifications/resources/updated")


async def test_reading_in_the_middle_of_many_reads_is_not_confused() -> None:
    server = Server("s")

    @server.resource("a://{n}")
    async def number(n: int) -> str:
        return str(n)

    async with Client(server) as client:
        result = await asyncio.gather(*(client.read_resource(f"a://{n}") for n in range(50)))
    assert [contents[0].text for contents in result] == [str(n) for n in range(50)]
