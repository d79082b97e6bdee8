"""A FastAPI application gives equal results through MCP and directly."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from portico import Client, Server, ToolError

pytest.importorskip("fastapi")
httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("python_multipart")

from fastapi import Body, Cookie, FastAPI, Form, Header, HTTPException, Query, Request, Response, UploadFile  # noqa: E402
from pydantic import BaseModel  # noqa: E402

STARTED: list[str] = []


class Item(BaseModel):
    name: str
    price: float = 1.5
    parts: list[Item] = []


@asynccontextmanager
async def lifespan(app: FastAPI):  # type: ignore[no-untyped-def]
    STARTED.append("up")
    yield
    STARTED.append("down")


app = FastAPI(title="Shop", version="2.0.0", lifespan=lifespan)


@app.get("/items/{item_id}")
def read_item(
    item_id: int,
    q: str | None = None,
    tags: Annotated[list[str] | None, Query()] = None,
    x_token: Annotated[str | None, Header()] = None,
    seen: Annotated[str | None, Cookie()] = None,
) -> dict[str, Any]:
    return {"item_id": item_id, "q": q, "tags": tags, "x_token": x_token, "seen": seen}


@app.put("/items/{item_id}")
def write_item(item_id: int, item: Item) -> Item:
    return item


@app.get("/items")
def list_items() -> list[Item]:
    return [Item(name="a", parts=[Item(name="b")])]


@app.post("/upload")
async def upload(file: UploadFile, note: Annotated[str, Form()]) -> dict[str, Any]:
    return {"data": b64encode(await file.read()).decode(), "note": note}


@app.post("/form")
def form(a: Annotated[str, Form()], b: Annotated[int, Form()]) -> dict[str, Any]:
    return {"a": a, "b": b}


@app.post("/raw", openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}})
async def raw(request: Request) -> int:
    return len(await request.body())


@app.post("/text", openapi_extra={"requestBody": {"required": True, "content": {"text/plain": {}}}})
async def text(request: Request) -> Response:
    return Response((await request.body()).decode().upper(), media_type="text/plain")


@app.delete("/items/{item_id}", status_code=204)
def remove_item(item_id: int) -> None:
    if item_id == 404:
        raise HTTPException(404, detail="x" * 5000)


@app.get("/picture", response_class=Response, responses={200: {"content": {"image/png": {}}}})
def picture() -> Response:
    return Response(b"\x89PNG", media_type="image/png")


@app.post("/two")
def two(a: Annotated[Item, Body()], b: Annotated[int, Body()]) -> dict[str, Any]:
    return {"a": a, "b": b}


CALLS: list[tuple[str, dict[str, Any], tuple[str, str], dict[str, Any]]] = [
    ("read_item", {"item_id": 3}, ("GET", "/items/3"), {}),
    (
        "read_item",
        {"item_id": 3, "q": "a b&c=ü", "tags": ["x", "y,z"], "x-token": "t", "seen": "s"},
        ("GET", "/items/3"),
        {
            "params": [("q", "a b&c=ü"), ("tags", "x"), ("tags", "y,z")],
            "headers": {"x-token": "t"},
            "cookies": {"seen": "s"},
        },
    ),
    ("write_item", {"item_id": 1, "name": "n"}, ("PUT", "/items/1"), {"json": {"name": "n"}}),
    (
        "write_item",
        {"item_id": 1, "name": "n", "parts": [{"name": "m", "price": 2}]},
        ("PUT", "/items/1"),
        {"json": {"name": "n", "parts": [{"name": "m", "price": 2}]}},
    ),
    ("list_items", {}, ("GET", "/items"), {}),
    ("upload", {"file": "aGk=", "note": "é"}, ("POST", "/upload"), {"files": {"file": b"hi"}, "data": {"note": "é"}}),
    ("form", {"a": "x&y", "b": 2}, ("POST", "/form"), {"data": {"a": "x&y", "b": "2"}}),
    ("raw", {"body": "AAEC"}, ("POST", "/raw"), {"content": b"\0\1\2"}),
    ("two", {"a": {"name": "n"}, "b": 3}, ("POST", "/two"), {"json": {"a": {"name": "n"}, "b": 3}}),
]


@pytest.fixture(scope="module")
def server() -> Server:
    return Server.from_fastapi(app)


@pytest.mark.parametrize("name, arguments, request_line, direct", CALLS)
async def test_through_mcp_and_directly_the_answers_are_equal(
    server: Server, name: str, arguments: dict[str, Any], request_line: tuple[str, str], direct: dict[str, Any]
) -> None:
    direct = dict(direct)
    cookies = direct.pop("cookies", {})
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x", cookies=cookies) as http:
        answered = await http.request(*request_line, **direct)
    async with Client(server) as client:
        result = await client.call_tool(name, arguments)
    assert json.loads(result.content[0].text) == answered.json()
    if result.structured is not None:
        assert result.data == answered.json()
        assert isinstance(result.structured, dict)


async def test_non_json_responses_become_content(server: Server) -> None:
    async with Client(server) as client:
        result = (await client.call_tool("picture", {})).content[0]
        assert (result.mime_type, b64decode(result.data)) == ("image/png", b"\x89PNG")
        assert (await client.call_tool("text", {"body": "abc"})).content[0].text == "ABC"
        assert "204" in (await client.call_tool("remove_item", {"item_id": 1})).content[0].text


async def test_rejection_has_the_status_and_the_first_two_kilobytes(server: Server) -> None:
    async with Client(server) as client:
        result = await client.call_tool("remove_item", {"item_id": 404}, raise_on_error=False)
    assert result.is_error
    assert result.content[0].text.startswith("The API returned 404 Not Found: ")
    assert 2048 < len(result.content[0].text) < 2150


async def test_wrong_arguments_do_not_reach_the_application(server: Server) -> None:
    async with Client(server) as client:
        with pytest.raises(ToolError, match="item_id"):
            await client.call_tool("read_item", {"item_id": "three"})


async def test_hints_follow_the_method_and_names_are_those_of_the_functions(server: Server) -> None:
    async with Client(server) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
    assert tools["read_item"].annotations.read_only_hint is True
    assert tools["write_item"].annotations.idempotent_hint is True
    assert tools["remove_item"].annotations.destructive_hint is True
    assert tools["list_items"].output_schema["properties"]["result"]["type"] == "array"


async def test_application_is_started_and_stopped_with_the_server() -> None:
    STARTED.clear()
    async with Client(Server.from_fastapi(app)) as client:
        await client.call_tool("list_items", {})
        assert STARTED == ["up"]
    assert STARTED == ["up", "down"]


# Every style, by an application that says what it was asked.

ARRAY, OBJECT = ["b", "c d"], {"x": 1, "y": "z"}
STYLES = [
    ("path", "simple", False, OBJECT, "/echo/x,1,y,z"),
    ("path", "label", True, ARRAY, "/echo/.b.c%20d"),
    ("path", "matrix", True, ARRAY, "/echo/;p=b;p=c%20d"),
    ("query", "form", False, ARRAY, "/echo?p=b,c%20d"),
    ("query", "form", True, OBJECT, "/echo?x=1&y=z"),
    ("query", "spaceDelimited", False, ARRAY, "/echo?p=b%20c%20d"),
    ("query", "pipeDelimited", False, ARRAY, "/echo?p=b|c%20d"),
    ("query", "deepObject", True, OBJECT, "/echo?p[x]=1&p[y]=z"),
    ("header", "simple", True, OBJECT, "/echo"),
    ("cookie", "form", False, ARRAY, "/echo"),
    ("query", "json", False, OBJECT, "/echo?p=%7B%22x%22%3A1%2C%22y%22%3A%22z%22%7D"),
]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    message = {
        "target": scope["raw_path"].decode() + ("?" + q if (q := scope["query_string"].decode()) else ""),
        "header": headers.get("p"),
        "cookie": headers.get("cookie"),
    }
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(message).encode()})


@pytest.mark.parametrize("place, style, explode, value, target", STYLES)
async def test_every_style_arrives(place: str, style: str, explode: bool, value: Any, target: str) -> None:
    how: dict[str, Any] = {"schema": {}, "style": style, "explode": explode}
    if style == "json":
        how = {"content": {"application/json": {"schema": {}}}}
    path = "/echo/{p}" if place == "path" else "/echo"
    spec = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {path: {"get": {"operationId": "e", "parameters": [{"name": "p", "in": place, **how}]}}},
    }
    async with Client(Server.from_openapi(spec, app=echo)) as client:
        result = (await client.call_tool("e", {"p": value})).structured
    assert result["target"] == target
    if place == "header":
        assert result["header"] == "x=1,y=z"
    if place == "cookie":
        assert result["cookie"] == "p=b,c%20d"
