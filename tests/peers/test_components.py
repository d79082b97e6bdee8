"""Tools, resources, templates and prompts: lists, reads and completion. conformance.md 2.1 and 2.3."""

import runpy
from base64 import b64decode

import pytest

from support.paths import ROOT

EVERYTHING = runpy.run_path(str(ROOT / "examples" / "everything.py"))


async def test_tools_are_listed_with_their_schemas_and_always_in_one_order(connect):
    async with connect() as peer:
        tools = await peer.tools()
        assert [tool.name for tool in tools] == [tool.name for tool in EVERYTHING["server"].tools]
        assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools)
        assert [tool.name for tool in await peer.tools()] == [tool.name for tool in tools]
        # An author's own schema arrives as it was written, whatever is in it.
        (foreign,) = [tool for tool in tools if tool.name == "json_schema_2020_12_tool"]
        assert foreign.input_schema == EVERYTHING["SCHEMA"]


async def test_list_of_several_pages_is_whole(connect):
    async with connect("paged") as peer:
        assert [tool.name for tool in await peer.tools()] == [f"tool_{number}" for number in range(10)]


async def test_tool_definition_has_the_members_of_the_protocol_version(connect):
    async with connect("small") as peer:
        (tool,) = [tool for tool in await peer.tools() if tool.name == "weather"]
        assert (tool.annotations is not None) == (peer.revision >= "2025-03-26")
        assert (tool.title == "The weather") == (peer.revision >= "2025-06-18")
        assert (tool.output_schema is not None) == (peer.revision >= "2025-06-18")


async def test_resources_and_templates_are_listed(connect):
    async with connect() as peer:
        resources = {str(resource.uri): resource for resource in await peer.resources()}
        assert list(resources) == [
            "test://static-text",
            "test://static-binary",
            "test://watched-resource",
            "skill://commit-messages/SKILL.md",
        ]
        assert resources["test://static-binary"].mime_type == "image/png"
        templates = [template.uri_template for template in await peer.templates()]
        assert templates[0] == "test://template/{id}/data"


async def test_resource_is_read_as_text_as_bytes_and_by_its_template(connect):
    async with connect() as peer:
        (text,) = await peer.read("test://static-text")
        assert text.text == "This is the content of the static text resource."
        (blob,) = await peer.read("test://static-binary")
        assert (blob.mime_type, b64decode(blob.blob)) == ("image/png", EVERYTHING["PNG"])
        (made,) = await peer.read("test://template/123/data")
        assert "123" in made.text


async def test_missing_resource_is_an_error(connect):
    async with connect() as peer:
        with pytest.raises(Exception, match="Resource not found: test://nothing") as raised:
            await peer.read("test://nothing")
        assert raised.value.error.code == (-32602 if peer.modern else -32002)
        assert raised.value.error.data == {"uri": "test://nothing"}


async def test_prompts_are_listed_with_their_arguments(connect):
    async with connect() as peer:
        prompts = {prompt.name: prompt for prompt in await peer.prompts()}
        assert all(prompt.description for prompt in prompts.values())
        arguments = prompts["test_prompt_with_arguments"].arguments
        assert [(argument.name, argument.description, argument.required) for argument in arguments] == [
            ("arg1", "First test argument", True),
            ("arg2", "Second test argument", True),
        ]


async def test_prompt_is_text_or_an_image_or_a_resource(connect):
    async with connect() as peer:
        (message,) = (await peer.prompt("test_prompt_with_arguments", {"arg1": "hello", "arg2": "world"})).messages
        assert message.content.text == "Prompt with arguments: arg1='hello', arg2='world'"
        image, _ = (await peer.prompt("test_prompt_with_image")).messages
        assert b64decode(image.content.data) == EVERYTHING["PNG"]
        embedded, _ = (await peer.prompt("test_prompt_with_embedded_resource", {"resourceUri": "test://x"})).messages
        assert str(embedded.content.resource.uri) == "test://x"


async def test_prompt_without_its_argument_is_an_error(connect):
    async with connect() as peer:
        with pytest.raises(Exception, match="arg2") as raised:
            await peer.prompt("test_prompt_with_arguments", {"arg1": "hello"})
        assert raised.value.error.code == -32602


async def test_arguments_of_prompts_and_templates_are_completed(connect):
    import mcp_types as types

    async with connect() as peer:
        prompt = types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
        assert await peer.complete(prompt, "arg1", "par") == ["paris", "park", "party"]
        template = types.ResourceTemplateReference(type="ref/resource", uri="test://template/{id}/data")
        assert await peer.complete(template, "id", "12") == ["123", "124"]
