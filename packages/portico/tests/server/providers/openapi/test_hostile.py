"""Hostile OpenAPI documents and APIs: bounded cost, and no effect on other components."""

from __future__ import annotations

import gzip
import time
from typing import Any

import msgspec
import pytest

from portico import Client, Server, ToolError, UsageError
from portico.server.providers.openapi.document import read_document

SOUND = {"get": {"operationId": "sound", "responses": {}}}
# Of the processor, where a quadratic way would take minutes.
SECONDS = 5.0


def document(paths: dict[str, Any] | None = None, schemas: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "api", "version": "1"},
        "servers": [{"url": "https://api.example.com/v1"}],
        "paths": {"/sound": SOUND, **(paths or {})},
        "components": {"schemas": schemas or {}},
        **more,
    }


def operation(name: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    body = {} if schema is None else {"requestBody": {"content": {"multipart/form-data": {"schema": schema}}}}
    return {"operationId": name, "responses": {}, **body, **more}


def made(said: dict[str, Any], **options: Any) -> list[str]:
    """The tools of a document, within the time that a document may take."""
    began = time.process_time()
    server = Server.from_openapi(said, **options)
    names = [tool.definition.name for tool in server.tools]
    assert time.process_time() - began < SECONDS
    return names


PARAMETER = {"name": "q", "in": "query", "schema": {"type": "string"}}
MALFORMED: dict[str, Any] = {
    "an array of itself": operation("bad", {"$ref": "#/components/schemas/Array"}),
    "a choice of itself": operation("bad", {"$ref": "#/components/schemas/Choice"}),
    "a choice that is a number": operation("bad", {"properties": {"a": {"anyOf": 5}}}),
    "a parameter whose name is a list": operation("bad", parameters=[{"name": ["q"], "in": "query"}]),
    "required things that are lists": operation("bad", {"properties": {"a": {}}, "required": [["a"]]}),
    "a reference to a place in a list": operation("bad", {"$ref": f"#/components/schemas/Several/{'9' * 5000}"}),
    "a reference to nothing": operation("bad", {"$ref": "#/components/schemas/None"}),
    "more parameters than there can be": operation(
        "bad", parameters=[{**PARAMETER, "name": "q" + "é" * n} for n in range(3000)]
    ),
    "a value of two megabytes": operation("bad", {"properties": {"a": {"enum": ["x" * 2_000_000]}}}),
}
SCHEMAS = {
    "Array": {"properties": {"a": {"$ref": "#/components/schemas/Inner"}}},
    "Inner": {"type": "array", "items": {"$ref": "#/components/schemas/Inner"}},
    "Choice": {"properties": {"a": {"$ref": "#/components/schemas/Other"}}},
    "Other": {"anyOf": [{"$ref": "#/components/schemas/Other"}]},
    "Several": [],
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_operation_does_not_affect_others(what: str, caplog: pytest.LogCaptureFixture) -> None:
    names = made(document({"/bad": {"post": MALFORMED[what]}}, SCHEMAS))
    assert "sound" in names
    assert "bad" in names or "skipping bad" in caplog.text


@pytest.mark.parametrize(
    "path",
    [
        "@evil.example/x",
        ".evil.example/x",
        ":8443@evil.example/",
        "//evil.example/x",
        "/../admin",
        "/a/%2e%2e/admin",
        "/a\\..\\admin",
        "/a b",
        "/a\r\nX-Evil: 1",
        "no-slash",
    ],
)
def test_path_stays_below_the_place_of_the_api(path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert made(document({path: {"get": operation("bad")}})) == ["sound"]
    assert "skipping" in caplog.text


def test_path_that_is_elsewhere_in_the_document_is_an_object(caplog: pytest.LogCaptureFixture) -> None:
    result = document({"/bad": {"$ref": "#/components/pathItems/List"}}, {})
    result["components"]["pathItems"] = {"List": [1]}
    assert made(result) == ["sound"]


def test_credentials_go_to_one_origin(caplog: pytest.LogCaptureFixture) -> None:
    evil = operation("evil", servers=[{"url": "https://evil.example"}])
    assert made(document({"/evil": {"get": evil}})) == ["sound", "evil"]
    assert made(document({"/evil": {"get": evil}}), auth="secret") == ["sound"]
    assert made(document({"/evil": {"get": evil}}), headers={"X-Key": "secret"}) == ["sound"]
    # There the operator says where all of them are.
    assert made(document({"/evil": {"get": evil}}), auth="secret", base_url="https://api.example.com") == [
        "sound",
        "evil",
    ]


def test_many_references_to_a_large_schema_are_followed_once() -> None:
    large = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(10_000)}}
    many = {f"m{n}": {"$ref": "#/components/schemas/Large"} for n in range(3000)}
    result = document({"/many": {"post": operation("many", {"properties": many})}}, {"Large": large})
    made(result)


def test_definitions_of_huge_schemas_stay_small() -> None:
    schemas = {f"S{n}": {"type": "object", "description": "x" * 1000} for n in range(15_000)}
    root = {"properties": {"all": {"anyOf": [{"$ref": f"#/components/schemas/S{n}"} for n in range(15_000)]}}}
    server = Server.from_openapi(document({"/all": {"post": operation("all", root)}}, schemas))
    assert sum(len(msgspec.json.encode(tool.definition)) for tool in server.tools) < 1_000_000


def test_names_that_come_to_the_same_are_distinguished_in_time() -> None:
    refs = [{"$ref": f"#/components/schemas/{'é' * (n + 1)}"} for n in range(500)]
    schemas = {"é" * (n + 1): {"type": "string"} for n in range(500)}
    made(document({"/refs": {"post": operation("refs", {"properties": {"a": {"anyOf": refs}}})}}, schemas))
    same = {f"/p{n}": {"get": operation("same")} for n in range(3000)}
    assert len(set(made(document(same)))) == 3001


@pytest.mark.parametrize(
    "text",
    [
        "openapi: 3.1.0\na: " + "[" * 900 + "]" * 900,
        "openapi: 3.1.0\na: " + "[" * 100_000,
        "openapi: 3.1.0\na: &a [x, x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(24)),
        "openapi: 3.1.0\na: &a [*a]\n",
        "openapi: !!python/object/apply:os.system [true]\n",
        '{"openapi": "3.1.0", "paths": ' + '{"a":' * 100_000,
    ],
    ids=["deep", "very deep", "aliases", "itself", "an object", "deep JSON"],
)
def test_settings_error_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read_document(text.encode())
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("name", ["Host", "Transfer-Encoding", "X: y", "X\r\nY", ""])
async def test_key_is_in_no_header_that_the_connection_has(name: str) -> None:
    seen: list[Any] = []
    result = document(security=[{"key": []}])
    result["components"]["securitySchemes"] = {"key": {"type": "apiKey", "in": "header", "name": name}}
    server = Server.from_openapi(result, app=application(seen), auth="secret")
    async with Client(server) as client:
        with pytest.raises(ToolError, match="security scheme"):
            await client.call_tool("sound", {})
    assert not seen


def application(seen: list[Any], *headers: tuple[bytes, bytes], body: bytes = b"{}") -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await send({"type": "http.response.body", "body": body})

    return app


class Streaming:
    """The part of an `httpx.AsyncClient` that is used: its answers are unpacked as they are read."""

    base_url = "https://api.example.com"

    def __init__(self, chunk: bytes, chunks: int, **headers: str) -> None:
        self.chunk, self.chunks, self.read = chunk, chunks, 0
        self.headers, self.status_code = headers, 200

    def stream(self, method: str, url: str, **_: Any) -> Any:
        return self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None: ...

    async def aiter_bytes(self) -> Any:
        for _ in range(self.chunks):
            self.read += 1
            yield self.chunk


async def test_decompressed_response_size_is_bounded() -> None:
    bomb = Streaming(b"x" * 65536, 10_000_000, **{"content-type": "text/plain", "content-encoding": "gzip"})
    server = Server.from_openapi(document(), client=bomb, max_response_size=1_000_000)
    async with Client(server) as client:
        with pytest.raises(ToolError, match="at most 1000000 bytes"):
            await client.call_tool("sound", {})
    assert bomb.read < 20


async def test_response_decompressed_by_the_client_is_accepted() -> None:
    answer = Streaming(b'{"a": 1}', 1, **{"content-type": "application/json", "content-encoding": "gzip"})
    async with Client(Server.from_openapi(document(), client=answer)) as client:
        assert (await client.call_tool("sound", {})).structured == {"a": 1}


async def test_why_a_client_fails_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        async def request(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("secret at /srv/keys")

    async with Client(Server.from_openapi(document(), client=Failing())) as client:
        with pytest.raises(ToolError, match="cannot be reached") as refusal:
            await client.call_tool("sound", {})
    assert "secret" not in str(refusal.value) and "secret at" in caplog.text


async def test_unrequested_compression_is_rejected() -> None:
    packed = gzip.compress(b"x" * 10_000_000)
    app = application([], (b"content-encoding", b"gzip"), (b"content-type", b"text/plain"), body=packed)
    async with Client(Server.from_openapi(document(), app=app)) as client:
        with pytest.raises(ToolError, match="compressed"):
            await client.call_tool("sound", {})


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=(a+)+$)(a|b)*c$"])
async def test_pattern_takes_no_time_without_end(pattern: str) -> None:
    parameter = {"name": "q", "in": "query", "schema": {"type": "string", "pattern": pattern}}
    result = document({"/q": {"get": operation("look", parameters=[parameter])}})
    async with Client(Server.from_openapi(result, app=application([]))) as client:
        began = time.process_time()
        # Where it cannot be decided in time, the API judges.
        await client.call_tool("look", {"q": "a" * 40 + "!"}, raise_on_error=False)
        assert time.process_time() - began < SECONDS


async def test_arguments_that_cannot_be_checked_are_still_needed() -> None:
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"pattern": "(?<!"}}
    result = document({"/notes/{id}": {"get": operation("look", parameters=[parameter])}})
    async with Client(Server.from_openapi(result, app=application([]))) as client:
        with pytest.raises(ToolError, match="id is missing"):
            await client.call_tool("look", {})


@pytest.mark.parametrize("id", ["x/secret", "x//secret/", "x\\secret", "x/SECRET", "x;/secret"])
async def test_a_path_argument_does_not_address_an_excluded_operation(id: str) -> None:
    received: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            received.append(scope["path"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    parameters = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    paths = {
        "/items/{id}": {"get": operation("read", parameters=parameters)},
        "/items/{id}/secret": {"get": operation("secret", parameters=parameters)},
    }
    server = Server.from_openapi(document(paths), app=app, exclude_paths=["*/secret"])
    async with Client(server) as client:
        with pytest.raises(ToolError, match="another operation"):
            await client.call_tool("read", {"id": id})
        assert received == []
        # Slashes that lead nowhere else are part of the value.
        await client.call_tool("read", {"id": "group/project"})
        assert received == ["/v1/items/group/project"]
