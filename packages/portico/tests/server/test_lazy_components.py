"""Lazy tools, resources and prompts import their module on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Annotated, Any

import pytest
from msgspec import Meta
from msgspec.structs import replace

from portico import Client, Prompt, Resource, Server, Service, Tool, UsageError
from portico.extend import Component, LazyPrompt, LazyResource, LazyTool


async def add(a: int, b: Annotated[int, "The other one"] = 1) -> int:
    """Add two numbers."""
    return a + b


async def page(number: int) -> str:
    """One page."""
    return f"page {number}"


async def greet(name: str) -> str:
    """Say hello."""
    return f"Hello, {name}."


class Late(Service):
    """Offers the three late, and notes which of them were loaded."""

    name = "late"
    requires_scopes = True

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def _loading(self, fn: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
        def load() -> Callable[..., Any]:
            self.loaded.append(fn.__name__)
            return fn

        return load

    def components(self) -> Iterator[Component]:
        yield LazyTool(self._loading(add), name="add", aliases=["plus"], annotations={"readOnlyHint": True})
        yield LazyTool(self._loading(greet), name="welcome")
        yield LazyResource(self._loading(page), "book://{number}", name="A page", mime_type="text/plain")
        yield LazyPrompt(self._loading(greet), name="greet")


class Early(Service):
    name = "late"
    requires_scopes = True

    def components(self) -> Iterator[Component]:
        yield Tool(add, name="add", aliases=["plus"], annotations={"readOnlyHint": True})
        yield Tool(greet, name="welcome")
        yield Resource(page, "book://{number}", name="A page", mime_type="text/plain")
        yield Prompt(greet, name="greet")


def serving(service: Service) -> Server:
    server = Server("books")
    server.add(service)
    return server


async def test_call_loads_the_one_function_that_it_is_for() -> None:
    service = Late()
    # One that held results against their schemas would list all tools.
    async with Client(serving(service), validate_results=False) as client:
        assert service.loaded == []
        assert (await client.call_tool("plus", {"a": 2}, result_type=int)).data == 3
        assert (await client.call_tool("add", {"a": 2, "b": 2}, result_type=int)).data == 4
        assert service.loaded == ["add"]
        assert (await client.read_resource("book://7"))[0].text == "page 7"
        assert (await client.get_prompt("greet", {"name": "Ann"})).messages[0].content.text == "Hello, Ann."
        assert service.loaded == ["add", "page", "greet"]


async def test_lazy_components_are_listed_like_eager_ones() -> None:
    async with Client(serving(Late())) as late, Client(serving(Early())) as early:
        assert await late.list_tools() == await early.list_tools()
        assert await late.list_resource_templates() == await early.list_resource_templates()
        assert await late.list_prompts() == await early.list_prompts()


def test_lazy_and_eager_components_have_the_same_scopes() -> None:
    for service in (Late(), Early()):
        add, welcome, page, greet = service.scoped_components()
        assert add.required_scopes == {"late:read"} and welcome.required_scopes == {"late:write"}  # type: ignore[union-attr]
        assert page.runner.service_scopes == greet.runner.service_scopes == {"late:read"}  # type: ignore[union-attr]


def test_decoded_request_equals_a_created_one() -> None:
    for late, kind in zip(Late().components(), (Tool, Tool, Resource, Prompt), strict=True):
        assert type(late) is not kind
        assert isinstance(late, kind) and late.definition.name
        assert type(late) is kind


def test_copied_tool_has_a_separate_definition() -> None:
    first = LazyTool(lambda: add, name="add")
    other = copy(first)
    other.name = "sum"
    other.update_definition(lambda message: replace(message, name="sum"))
    assert (first.definition.name, other.definition.name) == ("add", "sum")
    assert (first.name, other.name) == ("add", "sum")
    other.update_definition(lambda message: replace(message, title="Sum"))
    assert other.definition.title == "Sum"


def test_lazy_tool_with_mirrored_arguments_raises_usage_error() -> None:
    async def mirrored(region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
        return region

    with pytest.raises(UsageError, match="a lazy tool must not have arguments that are mirrored"):
        _ = LazyTool(lambda: mirrored, name="mirrored").definition


def test_attribute_lookup_and_copy_do_not_load_a_lazy_tool() -> None:
    def load() -> Any:
        raise AssertionError("loaded")

    tool = LazyTool(load, name="add")
    assert not hasattr(tool, "__wrapped__")
    assert copy(tool).name == "add"
