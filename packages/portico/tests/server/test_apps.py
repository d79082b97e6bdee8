"""MCP Apps (SEP-1865, 2026-01-26): pages of tools, their permissions, and tool visibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from msgspec import Raw, json

from portico import AppPage, Client, Server, UsageError
from portico.extend import Call
from portico.protocol.apps import APP_MIME_TYPE, APPS_CLIENT_CAPABILITY, APPS_EXTENSION, supports_apps
from portico.types import ClientCapabilities
from portico_gateway import Gateway
from support import ext_apps, node

HTML = "<!doctype html><p>Cart</p>"
HOST = ClientCapabilities(extensions={APPS_EXTENSION: {"mimeTypes": [APP_MIME_TYPE]}})


def shop() -> Server:
    server = Server("shop")

    @server.tool(
        ui=AppPage(
            HTML,
            uri="ui://shop/cart",
            connect_domains=["https://api.example.com"],
            resource_domains=["https://*.cdn.example.com"],
            permissions=["clipboard_write"],
            prefers_border=False,
        )
    )
    def cart() -> str:
        return "Two books."

    @server.tool(ui="ui://shop/cart", visibility=["app"])
    def add_to_cart(book: str) -> str:
        return f"{book} added."

    @server.tool(visibility=["model"])
    def search() -> str:
        return "none"

    return server


async def listed(server: Any, able: ClientCapabilities, revision: str = "2026-07-28") -> list[str]:

    call = Call(method="tools/list", params=Raw(b"{}"), id=1, protocol_version=revision, capabilities=able)  # type: ignore[arg-type]
    async with server.lifespan():
        return [tool["name"] for tool in json.decode(await server(call))["tools"]]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_tool_meta_has_page_uri_and_page_has_permissions(revision: Any) -> None:
    wishes = {
        "csp": {"connectDomains": ["https://api.example.com"], "resourceDomains": ["https://*.cdn.example.com"]},
        "permissions": {"clipboardWrite": {}},
        "prefersBorder": False,
    }
    async with Client(shop(), protocol_version=revision) as client:
        tool = next(one for one in await client.list_tools() if one.name == "cart")
        assert tool.meta["ui"] == {"resourceUri": "ui://shop/cart"}
        (entry,) = await client.list_resources()
        assert (str(entry.uri), entry.mime_type, entry.meta["ui"]) == ("ui://shop/cart", APP_MIME_TYPE, wishes)
        (page,) = await client.read_resource("ui://shop/cart")
        assert (page.text, page.mime_type, page.meta["ui"]) == (HTML, APP_MIME_TYPE, wishes)
        # What a host without pages shows.
        assert (await client.call_tool("cart", {})).content[0].text == "Two books."


async def test_app_only_tools_are_hidden_but_callable() -> None:
    server = shop()
    assert await listed(server, ClientCapabilities()) == ["cart", "search"]
    assert await listed(server, HOST) == ["cart", "add_to_cart", "search"]
    assert await listed(server, ClientCapabilities(extensions={APPS_EXTENSION: {"mimeTypes": ["text/x"]}})) == [
        "cart",
        "search",
    ]
    async with Client(server) as client:
        assert (await client.call_tool("add_to_cart", {"book": "Emma"})).content[0].text == "Emma added."


async def test_extension_is_declared_where_there_are_pages() -> None:
    assert APPS_EXTENSION in (shop().capabilities.extensions or {})
    assert APPS_EXTENSION not in (Server("plain").capabilities.extensions or {})
    assert shop().services == ()


async def test_gateway_shows_pages_as_their_servers_do() -> None:
    gateway = Gateway({"one": shop(), "two": shop()}, max_result_tokens=0)
    assert await listed(gateway, ClientCapabilities()) == ["one_cart", "one_search", "two_cart", "two_search"]
    assert await listed(gateway, HOST) == [
        *["one_cart", "one_add_to_cart", "one_search"],
        *["two_cart", "two_add_to_cart", "two_search"],
    ]
    async with Client(gateway) as client:
        pages = {tool.name: tool.meta["ui"].get("resourceUri") for tool in await client.list_tools()}
        assert pages["two_cart"] == "ui://two/shop/cart"
        (page,) = await client.read_resource("ui://two/shop/cart")
        assert page.text == HTML and page.meta["ui"]["prefersBorder"] is False
        assert (await client.call_tool("two_add_to_cart", {"book": "Emma"})).content[0].text == "Emma added."


async def test_file_is_read_again_for_each_host(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(HTML)
    server = Server("s")
    server.tool(name="show", ui=file)(lambda: "shown")
    async with Client(server) as client:
        assert (await client.read_resource("ui://show/page.html"))[0].text == HTML
        file.write_text("<p>Another")
        assert (await client.read_resource("ui://show/page.html"))[0].text == "<p>Another"


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: AppPage(HTML, connect_domains=["https://a.example; script-src *"]), "expected an origin"),
        (lambda: AppPage(HTML, permissions=["usb"]), "unknown app page permission"),
        (lambda: Server().tool(name="t", ui="no-such-page.html")(lambda: None), "app page not found"),
        (lambda: Server().tool(name="t", ui=AppPage(HTML, uri="https://x"))(lambda: None), "must start with ui://"),
        (lambda: Server().tool(name="t", visibility=["users"])(lambda: None), "visibility of the tool"),
    ],
)
def test_invalid_app_pages_raise_usage_error(make: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make()


def test_client_shows_pages_of_the_types_that_it_names() -> None:
    assert supports_apps(HOST)
    # The types are required.
    assert not supports_apps(ClientCapabilities(extensions={APPS_EXTENSION: {}}))
    assert not supports_apps(ClientCapabilities())


async def test_app_metadata_matches_the_extension_schemas() -> None:
    try:
        check = ext_apps.checker()
    except node.NotInstalled as why:
        pytest.skip(str(why))
    server = Server("all")
    page = AppPage(
        "<!doctype html><p>All",
        uri="ui://all/page",
        connect_domains=["https://api.example.com", "wss://live.example.com"],
        resource_domains=["https://*.example.com"],
        frame_domains=["https://player.example.com"],
        base_uri_domains=["https://cdn.example.com"],
        permissions=["camera", "microphone", "geolocation", "clipboard_write"],
        domain="a904794854a047f6.example.com",
        prefers_border=True,
    )
    server.tool(name="both", ui=page, visibility=["model", "app"])(lambda: "both")
    server.tool(name="app", ui="ui://all/page", visibility=["app"])(lambda: "app")
    server.resource("ui://all/by-hand", meta={"ui": {"prefersBorder": False}})(lambda: "<!doctype html><p>By hand")
    async with Client(server, extensions=APPS_CLIENT_CAPABILITY) as client:
        for tool in await client.list_tools():
            check("McpUiToolMeta", tool.meta["ui"])
        for entry in await client.list_resources():
            (read,) = await client.read_resource(str(entry.uri))
            assert (read.mime_type, entry.mime_type) == (APP_MIME_TYPE, APP_MIME_TYPE)
            for item in (entry, read):
                check("McpUiResourceMeta", item.meta["ui"])
    check("McpUiClientCapabilities", APPS_CLIENT_CAPABILITY[APPS_EXTENSION])
    with pytest.raises(jsonschema_rs.ValidationError):
        check("McpUiResourceMeta", {"csp": {"connect": []}})
