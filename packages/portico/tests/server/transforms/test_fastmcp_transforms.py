"""Transforms written for FastMCP."""

from __future__ import annotations

from typing import Any

import pytest

from portico import Client, ToolError
from portico.compat.fastmcp import FastMCP, Transform
from portico.protocol.errors import InternalError, InvalidParams, ResourceNotFound
from portico.types import SUPPORTED_PROTOCOL_VERSIONS

START = "my-"


class Prefixed(Transform):
    """As FastMCP's own Namespace is written."""

    def _copies(self, entries: Any, key: str) -> list[Any]:
        return [entry.model_copy(update={key: START + getattr(entry, key)}) for entry in entries]

    async def list_tools(self, tools: Any) -> Any:
        return self._copies(tools, "name")

    async def list_prompts(self, prompts: Any) -> Any:
        return self._copies(prompts, "name")

    async def list_resources(self, resources: Any) -> Any:
        return self._copies(resources, "uri")

    async def list_resource_templates(self, templates: Any) -> Any:
        return self._copies(templates, "uri_template")

    async def _got(self, name: str, call_next: Any, *, version: Any = None) -> Any:
        if not name.startswith(START):
            return None
        response = await call_next(name.removeprefix(START), version=version)
        return response and response.model_copy(update={"description": "changed"})

    get_tool = get_prompt = get_resource = get_resource_template = _got


def made(*transforms: Transform) -> FastMCP:
    inner, server = FastMCP("inner"), FastMCP("s")
    for one, name in ((server, "own"), (inner, "mounted")):
        one.tool(name=name, tags={"safe"} if name == "own" else set())(lambda: "done")
        one.prompt(name=name)(lambda: "say")
        one.resource(f"{name}://x")(lambda: "x")
        one.resource(f"{name}-each://{{id}}")(lambda id: id)
    server.mount(inner)
    for transform in transforms:
        server.add_transform(transform)
    return server


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_names_are_changed_both_ways(revision: Any) -> None:
    async with Client(made(Prefixed()), protocol_version=revision) as client:
        assert {item.name for item in await client.list_tools()} == {"my-own", "my-mounted"}
        assert {item.name for item in await client.list_prompts()} == {"my-own", "my-mounted"}
        for name in ("own", "mounted"):
            assert (await client.call_tool(f"my-{name}")).data == "done"
            assert (await client.get_prompt(f"my-{name}")).messages
            assert (await client.read_resource(f"my-{name}://x"))[0].text == "x"
            assert (await client.read_resource(f"my-{name}-each://7"))[0].text == "7"
            with pytest.raises((InvalidParams, ToolError), match="Unknown tool"):
                await client.call_tool(name)
            with pytest.raises(InvalidParams):
                await client.get_prompt(name)
            with pytest.raises(ResourceNotFound):
                await client.read_resource(f"{name}://x")


async def test_custom_transform_can_filter_by_tag() -> None:
    class Safe(Transform):
        async def list_tools(self, tools: Any) -> Any:
            return [tool for tool in tools if "safe" in tool.tags]

        async def get_tool(self, name: str, call_next: Any, *, version: Any = None) -> Any:
            response = await super().get_tool(name, call_next, version=version)
            return response if response is not None and "safe" in response.tags else None

    async with Client(made(Safe(), Prefixed())) as client:
        assert [tool.name for tool in await client.list_tools()] == ["my-own"]
        assert (await client.call_tool("my-own")).data == "done"
        with pytest.raises((InvalidParams, ToolError), match="Unknown tool"):
            await client.call_tool("my-mounted")


async def test_transform_does_not_reveal_unauthorized_tools() -> None:
    server = made(Prefixed())
    server.tool(name="secret", auth=lambda context: False)(lambda: "secret")
    async with Client(server) as client:
        assert "my-secret" not in {tool.name for tool in await client.list_tools()}
        with pytest.raises((InvalidParams, ToolError), match="Unknown tool"):
            await client.call_tool("my-secret")


async def test_transform_adds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Adding(Transform):
        async def list_tools(self, tools: Any) -> Any:
            return [*tools, object()]

    async with Client(made(Adding())) as client:
        with pytest.raises(InternalError):
            await client.list_tools()
    assert "add components with server.add" in caplog.text
