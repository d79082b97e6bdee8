"""A server with every feature of the protocol.

portico serve examples/everything.py

The official conformance suite prescribes the names. Use this file as a target of that suite and as a reference for
each feature.
"""

import asyncio
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico import Audio, Context, File, Image, ProtocolError, Server, Skills, TaskConfig, ToolError
from portico.types import EmbeddedResource, PromptMessage, TextContent, TextResourceContents

server = Server(
    "everything",
    version="1.0.0",
    title="Everything",
    instructions="Every feature of the protocol, one tool, resource or prompt for each. Nothing here has effects.",
)

# Minimal valid files: one red pixel, and a moment of silence.
PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
WAV = b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA==")


# Results of tools


@server.tool
def test_simple_text() -> str:
    """Return one line of text."""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> Image:
    """Return an image."""
    return Image(data=PNG, format="png")


@server.tool
def test_audio_content() -> Audio:
    """Return a sound."""
    return Audio(data=WAV, format="wav")


@server.tool
def test_embedded_resource() -> File:
    """Return a resource inside the result."""
    return File(data=b"This is an embedded resource.", mime_type="text/plain", uri="test://embedded-resource")


@server.tool
def test_multiple_content_types() -> list[str | Image | File]:
    """Return text, an image and a resource together."""
    return [
        "Multiple content types test:",
        Image(data=PNG, format="png"),
        File(data=b'{"test": "data", "value": 123}', mime_type="application/json", uri="test://mixed-content-resource"),
    ]


@server.tool
def test_error_handling() -> str:
    """Fail with a message for the model."""
    raise ToolError("This tool intentionally returns an error for testing.")


# Notifications during a call


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Send three log messages with short pauses."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
        await asyncio.sleep(0.05)
    return "Logged three messages."


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Send a log message of each severity; the client receives those of its level."""
    await ctx.debug("This is for developers.")
    await ctx.info("This is for the curious.")
    await ctx.warning("This is for the careful.")
    await ctx.error("This is for everybody.")
    return "Logged at four levels."


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress: none, half, all."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    return "Completed all steps."


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Close the stream during the call; a client of 2025-11-25 over HTTP reconnects for the response."""
    ctx.close_stream()
    await asyncio.sleep(0.1)
    return "Here it is, on another connection."


# Server-to-client requests, equal on every protocol version. In 2026-07-28 a `key` names the request.


@dataclass
class User:
    username: Annotated[str, "User's response"]
    email: Annotated[str, "User's email address"]


@dataclass
class Profile:
    name: Annotated[str, "User name"] = "John Doe"
    age: Annotated[int, "User age"] = 30
    score: Annotated[float, "User score"] = 95.5
    status: Annotated[Literal["active", "inactive", "pending"], "User status"] = "active"
    verified: Annotated[bool, "Verification status"] = True


@dataclass
class Name:
    name: str


@dataclass
class Color:
    color: str


@dataclass
class Confirmation:
    ok: bool


@dataclass
class Background:
    context: str


# A form can also be given as its schema; the answer is then a dict.
CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [
                {"const": "value1", "title": "First Option"},
                {"const": "value2", "title": "Second Option"},
                {"const": "value3", "title": "Third Option"},
            ],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {
            "type": "array",
            "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
        },
        "titledMulti": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"const": "value1", "title": "First Choice"},
                    {"const": "value2", "title": "Second Choice"},
                    {"const": "value3", "title": "Third Choice"},
                ]
            },
        },
    },
    "required": ["untitledSingle", "titledSingle", "legacyEnum", "untitledMulti", "titledMulti"],
}


@server.tool
async def test_sampling(prompt: Annotated[str, "The prompt to send to the model"], ctx: Context) -> str:
    """Ask the client's model."""
    sample = await ctx.sample(prompt, max_tokens=100)
    return f"LLM response: {sample.text}"


@server.tool
async def test_elicitation(message: Annotated[str, "The message to show to the user"], ctx: Context) -> str:
    """Ask the user who they are."""
    answer = await ctx.elicit(message, User)
    return f"User response: action={answer.action}, content={answer.data}"


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask the user with a form that has defaults."""
    answer = await ctx.elicit("Please review and update the form fields with defaults", Profile)
    return f"Elicitation completed: action={answer.action}, content={answer.data}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask the user to choose one or several values, with and without titles."""
    answer = await ctx.elicit("Please select options from the enum fields", CHOICES)
    return f"Elicitation completed: action={answer.action}, content={answer.data}"


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Send a notification, then ask the user."""
    await ctx.info("About to ask")
    answer = await ctx.elicit("Please confirm", Confirmation)
    return f"Answered: {answer.action}"


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Require sampling, even if the client does not support it."""
    return (await ctx.sample("Hello")).text


@server.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Ask the user for a name."""
    answer = await ctx.elicit("What is your name?", Name, key="user_name")
    return f"Hello, {answer.data.name}!" if answer.data else "Hello, whoever you are!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Ask the client's model a question."""
    sample = await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")
    return f"The model says: {sample.text}"


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """List the client's roots."""
    roots = await ctx.list_roots(key="client_roots")
    return f"{len(roots)} roots: {', '.join(root.uri for root in roots)}"


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Ask with a request state that returns with the answer."""
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    # The state is sealed and verified before the function runs again, so a foreign state never arrives here.
    return f"state-ok: {answer.action}"


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Ask, and reject an answer with a modified state."""
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    return f"state-ok: {answer.action}"


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Send three requests concurrently."""
    name, greeting, roots = await asyncio.gather(
        ctx.elicit("What is your name?", Name, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.list_roots(key="client_roots"),
    )
    return f"{greeting.text} {name.data.name if name.data else 'stranger'}, you have {len(roots)} roots."


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Send two requests in sequence."""
    name = await ctx.elicit("Step 1: What is your name?", Name, key="step1")
    color = await ctx.elicit("Step 2: What is your favorite color?", Color, key="step2")
    return f"{name.data.name if name.data else 'Somebody'} likes {color.data.color if color.data else 'no color'}."


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Send only requests that the client supports."""
    messages = []
    if ctx.client_capabilities.supports_elicitation("form"):
        answer = await ctx.elicit("What is your name?", Name, key="user_name")
        messages.append(f"elicitation: {answer.action}")
    if ctx.client_capabilities.sampling is not None:
        sample = await ctx.sample("Generate a greeting", max_tokens=50, key="greeting")
        messages.append(f"sampling: {sample.text}")
    return ", ".join(messages) or "This client cannot be asked anything."


# Schemas

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        },
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool(input_schema=SCHEMA)
def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Accept arguments by an explicit schema with keywords that type hints cannot express."""
    return f"{arguments.get('name', 'Somebody')} prefers {arguments.get('contactMethod', 'email')}."


Region = Annotated[str, Meta(description="Where to run", extra_json_schema={"x-mcp-header": "Region"})]


@server.tool
def test_x_mcp_header(region: Region) -> str:
    """Accept an argument that HTTP clients repeat in the header Mcp-Param-Region, for routing."""
    return f"Routed to {region}."


# Changes at run time, which notify subscribers. `run_in_thread=False` runs a fast `def` on the event loop, so that the
# same thread changes and reads the lists.


def test_added_tool() -> str:
    """Exist only some of the time."""
    return "I am here."


def test_added_prompt() -> str:
    """Exist only some of the time."""
    return "I am here."


@server.tool(run_in_thread=False)
def test_trigger_tool_change() -> str:
    """Add or remove a tool."""
    if "test_added_tool" in server.tools:
        server.remove("test_added_tool")
        return "Removed test_added_tool."
    server.add(test_added_tool)
    return "Added test_added_tool."


@server.tool(run_in_thread=False)
def test_trigger_prompt_change() -> str:
    """Add or remove a prompt."""
    if "test_added_prompt" in server.prompts:
        server.remove("test_added_prompt")
        return "Removed test_added_prompt."
    server.prompt(test_added_prompt)
    return "Added test_added_prompt."


# Resources

# Tasks: long-running work, for clients that support them


@server.tool
def greet(name: str) -> str:
    """Greet the caller; too fast for a task."""
    return f"Hello, {name}!"


@server.tool(task="optional")
async def slow_compute(ctx: Context, seconds: float = 1.0, label: str = "work") -> str:
    """Run for a while and report progress."""
    for step in range(10):
        ctx.report_progress(step, 10, label)
        await asyncio.sleep(seconds / 10)
    return f"{label}: done in {seconds:g} s"


@server.tool(task="required")
async def failing_job() -> str:
    """Fail with a tool error in a task."""
    raise ToolError("This job fails, as it should.")


@server.tool(task="required")
async def protocol_error_job() -> str:
    """Fail with a protocol error in a task."""
    raise ProtocolError("This job ends with an error, as it should.")


@server.tool(task="required")
async def confirm_delete(ctx: Context, filename: str = "file.txt") -> str:
    """Send a request to the client from a task."""
    sure = await ctx.elicit(f"Delete {filename}?", bool)
    return f"{filename} deleted" if sure.data else f"{filename} kept"


@server.tool(task="required")
async def multi_input(ctx: Context) -> str:
    """Send two concurrent requests from a task."""
    item, other = await asyncio.gather(ctx.elicit("Your name?", Name), ctx.elicit("And your friend's?", Name))
    return f"{item.data.name if item.data else 'Somebody'} and {other.data.name if other.data else 'somebody'}"


@server.tool(task=TaskConfig(detachable=True))
async def test_tool_with_task(ctx: Context) -> str:
    """Ask the user, then continue as a task."""
    answer = await ctx.elicit("What is your name?", Name, key="user_name")
    await ctx.continue_as_task()
    await asyncio.sleep(0.1)
    return f"Done, {answer.data.name if answer.data else 'somebody'}."


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A resource of text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A resource of bytes."""
    return PNG


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A resource to subscribe to; `server.notify_resource_updated(uri)` notifies its subscribers."""
    return "Watch this space."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, Any]:
    """A resource template."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts


@server.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(
    arg1: Annotated[str, "First test argument"], arg2: Annotated[str, "Second test argument"]
) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.completion("test_prompt_with_arguments", "arg1")
def complete_arg1(typed: str) -> list[str]:
    return [word for word in ("paris", "park", "party", "test") if word.startswith(typed)]


@server.completion("test://template/{id}/data", "id")
def complete_id(typed: str) -> list[str]:
    return [number for number in ("123", "124", "456") if number.startswith(typed)]


@server.prompt
def test_prompt_with_embedded_resource(
    resourceUri: Annotated[str, "URI of the resource to embed"],
) -> list[PromptMessage]:
    """A prompt with an embedded resource."""
    resource = TextResourceContents(
        uri=resourceUri, mime_type="text/plain", text="Embedded resource content for testing."
    )
    return [
        PromptMessage("user", EmbeddedResource(resource=resource)),
        PromptMessage("user", TextContent(text="Please process the embedded resource above.")),
    ]


@server.prompt
def test_prompt_with_image() -> list[Image | str]:
    """A prompt with an image."""
    return [Image(data=PNG, format="png"), "Please analyze the image above."]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks the user first."""
    answer = await ctx.elicit("What context should the prompt use?", Background, key="user_context")
    return f"Use this context: {answer.data.context if answer.data else 'none'}"


# Skills, of the extension io.modelcontextprotocol/skills

server.add(Skills(Path(__file__).parent / "skills"))

if __name__ == "__main__":
    server.run()
