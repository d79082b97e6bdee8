"""Schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12, with the reachable `$defs`."""

from __future__ import annotations

from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico.server.providers import MCPType, RouteMap
from portico.server.providers.openapi import binding
from portico.server.providers.openapi.document import MAX_NODES, read_document
from portico.server.providers.openapi.schemas import SchemaConverter


def document(schemas: dict[str, Any], version: str = "3.0.3", **operation: Any) -> dict[str, Any]:
    answered = {"responses": {"200": {"description": "ok"}}, **operation}
    return {
        "openapi": version,
        "info": {"title": "t", "version": "1"},
        "servers": [{"url": "https://api.example.com"}],
        "paths": {"/x": {"post": {"operationId": "x", **answered}}},
        "components": {"schemas": schemas},
    }


def body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def answer(schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}


async def tool(spec: dict[str, Any]) -> Any:
    async with Client(Server.from_openapi(spec)) as client:
        return (await client.list_tools())[0]


@pytest.mark.parametrize(
    "said, meant",
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "example": 3}, {"type": "integer", "examples": [3]}),
        (
            {"nullable": True, "description": "d", "allOf": [{"type": "object"}]},
            {"description": "d", "anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]},
        ),
        ({"type": "string", "x-note": 1, "xml": {}, "discriminator": {}}, {"type": "string"}),
    ],
)
def test_openapi_3_0_keywords_are_converted_to_2020_12(said: dict[str, Any], meant: dict[str, Any]) -> None:
    assert SchemaConverter(read_document(document({}))).convert(said, "in") == meant


def test_3_1_is_left_unchanged() -> None:
    message = {"type": ["string", "null"], "exclusiveMinimum": 1, "examples": ["a"]}
    assert SchemaConverter(read_document(document({}, "3.1.0"))).convert(message, "in") == message


async def test_recursive_schemas_remain_references_and_unused_are_omitted() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}}
    spec = document(
        {"Node": node, "Other": {"type": "string"}},
        requestBody=body({"type": "array", "items": {"$ref": "#/components/schemas/Node"}}),
        responses=answer({"$ref": "#/components/schemas/Node"}),
    )
    result = await tool(spec)
    assert result.input_schema["properties"]["body"]["items"] == {"$ref": "#/$defs/Node"}
    assert result.input_schema["$defs"] == {
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    }
    # Older clients look for an object at the root.
    assert result.output_schema["type"] == "object"
    assert set(result.output_schema["$defs"]) == {"Node"}


async def test_read_only_is_not_requested_and_write_only_not_promised() -> None:
    user = {
        "type": "object",
        "required": ["id", "name", "password"],
        "properties": {
            "id": {"type": "integer", "readOnly": True},
            "name": {"type": "string"},
            "password": {"type": "string", "writeOnly": True},
        },
    }
    ref = {"$ref": "#/components/schemas/User"}
    result = await tool(document({"User": user}, requestBody=body(ref), responses=answer(ref)))
    assert set(result.input_schema["properties"]) == {"name", "password"}
    assert result.input_schema["required"] == ["name", "password"]
    assert set(result.output_schema["properties"]) == {"id", "name"}


async def test_body_is_flattened_only_where_no_name_clashes() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    flat = await tool(document({}, requestBody=body(schema)))
    assert set(flat.input_schema["properties"]) == {"id", "name"}
    id_of_query = [{"name": "id", "in": "query", "schema": {"type": "string"}}]
    whole = await tool(document({}, requestBody=body(schema), parameters=id_of_query))
    assert set(whole.input_schema["properties"]) == {"id", "body"}
    assert whole.input_schema["required"] == ["body"]


async def test_output_definitions_over_the_size_limit_are_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "MAX_OUTPUT_DEFS_BYTES", 2000)
    schemas = {
        f"S{n}": {
            "type": "object",
            "description": "d" * 300,
            "properties": {"next": {"$ref": f"#/components/schemas/S{n + 1}"}},
        }
        for n in range(50)
    }
    schemas["S50"] = {"type": "object"}
    result = await tool(document(schemas, responses=answer({"$ref": "#/components/schemas/S0"})))
    assert list(result.output_schema["$defs"].values())[-1] == {"type": "object"}
    assert len(result.output_schema["$defs"]) < 10


async def test_operation_that_cannot_be_read_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    spec = document({})
    spec["paths"]["/y"] = {"get": {"operationId": "y", "parameters": [{"$ref": "other.yaml#/P"}], "responses": {}}}
    async with Client(Server.from_openapi(spec)) as client:
        assert [tool.name for tool in await client.list_tools()] == ["x"]
    assert "skipping y: the reference 'other.yaml#/P' points outside the document" in caplog.text


@pytest.mark.parametrize(
    "spec, reason",
    [
        ({"swagger": "2.0", "paths": {}}, "convert it to OpenAPI 3"),
        ({"info": {}}, "expected an 'openapi' member"),
        ({"openapi": "3.1.0", "paths": []}, "invalid OpenAPI document"),
        ({"openapi": "3.1.0", "paths": {}}, "has no operations"),
        ("https://example.com/openapi.json", "are not fetched"),
        ("/nowhere/at/all.yaml", "cannot read"),
        (b"a: [", "cannot decode"),
        (7, "must be a dict, the path of a file"),
        (b"a: &a [" + b"1," * 50_000 + b"]\nb: [" + b"*a," * 200 + b"]\n", "too many values through its aliases"),
        (b"a: &a\n  b: *a\n", "too many values through its aliases"),
    ],
)
def test_invalid_documents_raise_usage_error(spec: Any, reason: str) -> None:
    assert MAX_NODES < 50_000 * 200
    with pytest.raises(UsageError, match=reason):
        Server.from_openapi(spec)


def operation(id: str | None, *tags: str) -> dict[str, Any]:
    return {"tags": list(tags), "responses": {}, **({} if id is None else {"operationId": id})}


@pytest.mark.parametrize(
    "options, names",
    [
        ({}, ["repos_get", "list_all_pets_get", "list_all_dogs_get", "get_cats", "delete_cats"]),
        ({"tags": ["pets"]}, ["list_all"]),
        ({"methods": ["DELETE"]}, ["delete_cats"]),
        ({"paths": ["/c*"], "exclude_methods": ["get"]}, ["delete_cats"]),
        ({"exclude_paths": ["/cats", "/dogs"], "rename": {"repos/get": "repo"}}, ["repo", "list_all"]),
    ],
)
def test_operations_are_chosen_and_their_names_are_distinct(options: dict[str, Any], names: list[str]) -> None:
    spec = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {
            "/repos": {"get": operation("repos/get", "repos")},
            "/pets": {"get": operation("list_all_pets_get", "pets")},
            "/dogs": {"get": operation("list_all_dogs_get", "dogs")},
            "/cats": {"get": operation(None), "delete": operation(None)},
        },
    }
    server = Server.from_openapi(spec, base_url="http://127.0.0.1:1", **options)
    assert [tool.name for tool in server.registry.tools] == names


def test_route_maps_select_operations() -> None:
    spec = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {
            "/repos": {"get": operation("read", "repos"), "delete": operation("remove", "repos")},
            "/admin/repos": {"get": operation("audit", "repos", "secret")},
            "/pets": {"get": operation("pets")},
        },
    }
    maps = [
        RouteMap(methods=["GET"], pattern=r"^/repos"),
        RouteMap(tags={"repos", "secret"}, mcp_type=MCPType.EXCLUDE),
        RouteMap(methods=["DELETE"], mcp_type=MCPType.EXCLUDE),
    ]
    server = Server.from_openapi(spec, base_url="http://127.0.0.1:1", route_maps=maps)
    assert [tool.name for tool in server.registry.tools] == ["read", "pets"]
    with pytest.raises(UsageError, match="mcp_type must be"):
        RouteMap(methods=["GET"], mcp_type=MCPType.RESOURCE)
    with pytest.raises(UsageError, match="must contain portico's RouteMap"):
        Server.from_openapi(spec, base_url="http://127.0.0.1:1", route_maps=[{"methods": ["GET"]}])
