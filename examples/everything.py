"""A server with one of everything that the protocol has.

portico serve examples/everything.py

The names are those that the official conformance suite calls, so this file is both what that suite is run against
and a place to look up how a thing is written.
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

# The smallest that still are what they say: one red pixel, and a moment of silence.
PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
WAV = b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA==")


# What a tool can return


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
    """Fail, in words that a model can read."""
    raise ToolError("This tool intentionally returns an error for testing.")


# What a tool can say on the way


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Send three log messages, a little apart."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
        await asyncio.sleep(0.05)
    return "Logged three messages."


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Send a log message of each severity that Context has a word for; the client's level decides what it hears."""
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
    """Let go of the connection in the middle; a client of 2025-11-25 over HTTP comes back for the answer."""
    ctx.close_stream()
    await asyncio.sleep(0.1)
    return "Here it is, on another connection."


# What a tool can ask: the same words on every revision. A `key` names the question where 2026-07-28 sends it.


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


# A form can also be written down as its schema; the answer is then a plain dict.
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
    """Ask the user with a form that is already filled in."""
    answer = await ctx.elicit("Please review and update the form fields with defaults", Profile)
    return f"Elicitation completed: action={answer.action}, content={answer.data}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask the user to choose: one or many, with titles and without."""
    answer = await ctx.elicit("Please select options from the enum fields", CHOICES)
    return f"Elicitation completed: action={answer.action}, content={answer.data}"


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Say something, then ask something."""
    await ctx.info("About to ask")
    answer = await ctx.elicit("Please confirm", Confirmation)
    return f"Answered: {answer.action}"


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Need sampling, whether the client has it or not."""
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
    """Ask which folders the user works in."""
    roots = await ctx.list_roots(key="client_roots")
    return f"{len(roots)} roots: {', '.join(root.uri for root in roots)}"


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Ask, and carry a state that comes back with the answer."""
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    # We would not be here with a state that is not ours: it is sealed, and verified before a body runs again.
    return f"state-ok: {answer.action}"


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Ask, and refuse an answer whose state was changed on the way."""
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    return f"state-ok: {answer.action}"


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Ask three things at once."""
    name, greeting, roots = await asyncio.gather(
        ctx.elicit("What is your name?", Name, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.list_roots(key="client_roots"),
    )
    return f"{greeting.text} {name.data.name if name.data else 'stranger'}, you have {len(roots)} roots."


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask one thing, then another."""
    name = await ctx.elicit("Step 1: What is your name?", Name, key="step1")
    color = await ctx.elicit("Step 2: What is your favorite color?", Color, key="step2")
    return f"{name.data.name if name.data else 'Somebody'} likes {color.data.color if color.data else 'no color'}."


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask only for what the client says it can answer."""
    said = []
    if ctx.client_capabilities.supports_elicitation("form"):
        answer = await ctx.elicit("What is your name?", Name, key="user_name")
        said.append(f"elicitation: {answer.action}")
    if ctx.client_capabilities.sampling is not None:
        sample = await ctx.sample("Generate a greeting", max_tokens=50, key="greeting")
        said.append(f"sampling: {sample.text}")
    return ", ".join(said) or "This client cannot be asked anything."


# What a schema can say

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
    """Take arguments by a schema of the author's own, with keywords that no type hint has."""
    return f"{arguments.get('name', 'Somebody')} prefers {arguments.get('contactMethod', 'email')}."


Region = Annotated[str, Meta(description="Where to run", extra_json_schema={"x-mcp-header": "Region"})]


@server.tool
def test_x_mcp_header(region: Region) -> str:
    """Take an argument that HTTP clients repeat in the header Mcp-Param-Region, for whoever routes the request."""
    return f"Routed to {region}."


# What can change while the server runs: listeners are told. `run_in_thread=False` keeps a quick `def` out of the worker
# threads, so that the lists are changed by the thread that also reads them.


def test_added_tool() -> str:
    """Be there at times, and at other times not."""
    return "I am here."


def test_added_prompt() -> str:
    """Be there at times, and at other times not."""
    return "I am here."


@server.tool(run_in_thread=False)
def test_trigger_tool_change() -> str:
    """Add a tool, or remove it again."""
    if "test_added_tool" in server.tools:
        server.remove("test_added_tool")
        return "Removed test_added_tool."
    server.add(test_added_tool)
    return "Added test_added_tool."


@server.tool(run_in_thread=False)
def test_trigger_prompt_change() -> str:
    """Add a prompt, or remove it again."""
    if "test_added_prompt" in server.prompts:
        server.remove("test_added_prompt")
        return "Removed test_added_prompt."
    server.prompt(test_added_prompt)
    return "Added test_added_prompt."


# Resources

# Work that takes longer than a call: tasks, where the client can deal with them


@server.tool
def greet(name: str) -> str:
    """Say hello. Too quick to be a task."""
    return f"Hello, {name}!"


@server.tool(task="optional")
async def slow_compute(ctx: Context, seconds: float = 1.0, label: str = "work") -> str:
    """Take a while, and say how far it is."""
    for step in range(10):
        ctx.report_progress(step, 10, label)
        await asyncio.sleep(seconds / 10)
    return f"{label}: done in {seconds:g} s"


@server.tool(task="required")
async def failing_job() -> str:
    """A task whose tool says no."""
    raise ToolError("This job fails, as it should.")


@server.tool(task="required")
async def protocol_error_job() -> str:
    """A task that ends with an error of the protocol."""
    raise ProtocolError("This job ends with an error, as it should.")


@server.tool(task="required")
async def confirm_delete(ctx: Context, filename: str = "file.txt") -> str:
    """A task that asks in the middle."""
    sure = await ctx.elicit(f"Delete {filename}?", bool)
    return f"{filename} deleted" if sure.data else f"{filename} kept"


@server.tool(task="required")
async def multi_input(ctx: Context) -> str:
    """A task that asks two things at once."""
    one, other = await asyncio.gather(ctx.elicit("Your name?", Name), ctx.elicit("And your friend's?", Name))
    return f"{one.data.name if one.data else 'Somebody'} and {other.data.name if other.data else 'somebody'}"


@server.tool(task=TaskConfig(detachable=True))
async def test_tool_with_task(ctx: Context) -> str:
    """Asks first, and then becomes a task."""
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
    """A resource to subscribe to; `server.notify_resource_updated(uri)` is how subscribers would hear of a change."""
    return "Watch this space."


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, Any]:
    """A family of resources."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts


@server.prompt
def test_simple_prompt() -> str:
    """A prompt that is always the same."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(
    arg1: Annotated[str, "First test argument"], arg2: Annotated[str, "Second test argument"]
) -> str:
    """A prompt that repeats what it is given."""
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
    """A prompt with a resource in it."""
    resource = TextResourceContents(
        uri=resourceUri, mime_type="text/plain", text="Embedded resource content for testing."
    )
    return [
        PromptMessage("user", EmbeddedResource(resource=resource)),
        PromptMessage("user", TextContent(text="Please process the embedded resource above.")),
    ]


@server.prompt
def test_prompt_with_image() -> list[Image | str]:
    """A prompt with an image in it."""
    return [Image(data=PNG, format="png"), "Please analyze the image above."]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks before it is written."""
    answer = await ctx.elicit("What context should the prompt use?", Background, key="user_context")
    return f"Use this context: {answer.data.context if answer.data else 'none'}"


# Skills, of the extension io.modelcontextprotocol/skills

server.add(Skills(Path(__file__).parent / "skills"))

if __name__ == "__main__":
    server.run()
