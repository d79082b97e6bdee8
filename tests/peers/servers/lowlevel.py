"""A server on the official Python SDK, its low-level class: `python lowlevel.py stdio|http|json PORT`.

What the high-level class keeps to itself: pages, subscriptions and log levels of the handshake revisions, questions in
two rounds, values that are no objects, and answers that break the rules.
"""

import sys

import anyio
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

MODERN = "2026-07-28"
PAGE = 7
NUMBERS = {"type": "array", "items": {"type": "integer"}}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
COLOUR = {"type": "object", "properties": {"colour": {"type": "string", "default": "blue"}}}

bus = InMemorySubscriptionBus()
levels, subscribed = {}, set()


def tool(name, schema=None, output=None):
    return types.Tool(name=name, input_schema=schema or {"type": "object"}, output_schema=output)


REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
TOOLS = [
    tool("route", REGION),
    tool("numbers", output=NUMBERS),
    tool("liar", output={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    tool("log"),
    tool("touch"),
    tool("two_rounds"),
    tool("browse"),
    *(tool(f"tool_{at}") for at in range(20)),
]


async def list_tools(ctx, params):
    at = int(params.cursor) if params is not None and params.cursor else 0
    tools = TOOLS if ctx.protocol_version >= MODERN else [tool for tool in TOOLS if tool.output_schema != NUMBERS]
    rest = at + PAGE < len(tools)
    return types.ListToolsResult(tools=tools[at : at + PAGE], next_cursor=str(at + PAGE) if rest else None)


async def list_resources(ctx, params):
    return types.ListResourcesResult(resources=[types.Resource(uri="notes://today", name="today")])


def text(said, structured=None):
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)], structured_content=structured)


async def call_tool(ctx, params):
    body = BODIES.get(params.name)
    if body is None:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}", data={"known": len(TOOLS)})
    return await body(ctx, params)


async def route(ctx, params):
    return text(f"Routed to {params.arguments['region']}.")


async def numbers(ctx, params):
    return text("[1, 2, 3]", [1, 2, 3])


async def liar(ctx, params):
    return text("{}", {"n": "many"})


async def log(ctx, params):
    for level in ("debug", "info", "warning", "error"):
        if ctx.protocol_version >= MODERN or WEIGHTS[level] >= WEIGHTS[levels.get("level", "debug")]:
            await ctx.session.send_log_message(level, level, related_request_id=ctx.request_id)
    return text("logged")


WEIGHTS = {"debug": 0, "info": 1, "warning": 2, "error": 3}


async def touch(ctx, params):
    if ctx.protocol_version >= MODERN:
        await bus.publish(ResourceUpdated(uri="notes://today"))
    elif "notes://today" in subscribed:
        await ctx.session.send_resource_updated("notes://today")
    return text(", ".join(sorted(subscribed)))


def form(message, schema):
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


async def two_rounds(ctx, params):
    """The second question depends on the first answer, which travels in the state."""
    message = params.input_responses or {}
    if params.request_state is None:
        return types.InputRequiredResult(
            input_requests={"name": form("Your name?", NAME)}, request_state='{"round": 1}'
        )
    if params.request_state == '{"round": 1}':
        name = message["name"].content["name"]
        question = form(f"Your colour, {name}?", COLOUR)
        return types.InputRequiredResult(input_requests={"colour": question}, request_state=f"2 ☂ {name}")
    return text(f"{params.request_state} likes {message['colour'].content['colour']}.")


async def browse(ctx, params):
    """Somebody has to visit a page first: an error before 2026-07-28, a question there."""
    message, url = "Please log in.", "https://example.com/login"
    if ctx.protocol_version < MODERN:
        expected = {"mode": "url", "message": message, "url": url, "elicitationId": "one"}
        raise MCPError(code=-32042, message="Log in first", data={"elicitations": [expected]})
    if params.input_responses is None:
        result = types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=url))
        return types.InputRequiredResult(input_requests={"login": result})
    answer = params.input_responses["login"]
    return text(f"{answer.action} {answer.content}")


BODIES = {body.__name__: body for body in (route, numbers, liar, log, touch, two_rounds, browse)}


async def set_level(ctx, params):
    levels["level"] = params.level
    return types.EmptyResult()


async def subscribe(ctx, params):
    subscribed.add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(ctx, params):
    subscribed.discard(str(params.uri))
    return types.EmptyResult()


server = Server(
    "lowlevel",
    version="1.2.3",
    get_tool_input_schema=lambda name: next((one.input_schema for one in TOOLS if one.name == name), None),
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_subscriptions_listen=ListenHandler(bus),
    on_set_logging_level=set_level,
)


async def serve_stdio():
    async with stdio_server() as streams:
        await server.run(*streams, server.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        anyio.run(serve_stdio)
    else:
        uvicorn.run(server.streamable_http_app(json_response=sys.argv[1] == "json"), port=int(sys.argv[2]))
