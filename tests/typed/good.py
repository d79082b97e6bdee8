"""Typical usage and its types; type checkers must report nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from portico import (
    Client,
    Context,
    Prompt,
    Resource,
    Server,
    Service,
    SyncClient,
    TaskConfig,
    Tool,
    ToolError,
    prompt,
    resource,
    tool,
)
from portico.extend import Call, Database, Handler, HandlerMiddleware, Transaction, serve_http
from portico.jsonschema import validate
from portico.types import Elicitation, Icon, PromptMessage, TextContent, ToolAnnotations
from portico_services.contracts import Contracts
from portico_services.livepython import LivePython
from portico_services.memory import Memory
from portico_services.system import System
from portico_services.workitems import Tasks


@dataclass
class Trip:
    to: str
    days: int


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    yield


def counting(handler: Handler) -> Handler:
    async def count(call: Call) -> Any:
        return await handler(call)

    return count


counted: HandlerMiddleware = counting
server = Server(
    "shop", version="1.0.0", instructions="…", icons=[Icon("a.png")], middleware=[counted], lifespan=lifespan
)


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool("minus", title="Take away", run_in_thread=False, annotations=ToolAnnotations(read_only_hint=True))
def take_away(a: int, b: int) -> int:
    return a - b


@server.tool(
    name="buy", timeout=3, aliases=["purchase"], scopes={"shop"}, task="optional", annotations={"idempotentHint": True}
)
async def buy(product: str, ctx: Context) -> str:
    await ctx.info("…")
    assert_type(await ctx.elicit("How many?", int), Elicitation[int])
    assert_type(await ctx.elicit("Your name?", str), Elicitation[str])
    assert_type(await ctx.elicit("Where to?", Trip), Elicitation[Trip])
    assert_type(await ctx.elicit("Which?", ["shirt", "sock"]), Elicitation[str])
    assert_type(await ctx.elicit("Really?"), Elicitation[None])
    assert_type(await ctx.elicit("The form", {"type": "object"}), Elicitation[dict[str, Any]])
    unit = await ctx.elicit("Which unit?", Literal["celsius", "fahrenheit"])
    if unit.action != "accept":
        raise ToolError("Nothing was said.", error_type="Declined", details={"product": product})
    return str(unit.data)


@server.tool(task=TaskConfig(max_retries=3))
async def report() -> str:
    return "…"


@server.resource("shop://{product}", mime_type="application/json", size=3)
async def product(product: str) -> dict[str, str]:
    return {"name": product}


@server.prompt(title="Advice")
def advice(about: str) -> list[PromptMessage]:
    return [PromptMessage("user", TextContent(text=about))]


@server.completion("advice", "about")
def about(begun: str) -> list[str]:
    return [begun]


class Notes(Service):
    @tool
    def note(self, text: str) -> str:
        return text

    @tool(title="Forget", timeout=1.5)
    def forget(self, text: str) -> None: ...

    @resource("notes://all")
    def notes(self) -> str:
        return ""

    @prompt("remind")
    def remind(self) -> str:
        return ""


server.add(Notes())
server.add(Tool(add, name="plus", run_in_thread=False))
server.add(Resource(lambda: "", "a://b", title="B"))
server.add(Prompt(advice, description="…"))
for service in (Memory(), Tasks(), System(), LivePython(), Contracts()):
    server.add(service)
assert_type(add(1, 2), int)


async def ask() -> None:
    async with Client("http://127.0.0.1:8080/mcp", timeout=3, headers={"a": "b"}) as client:
        assert_type((await client.call_tool("add", {"a": 1, "b": 2}, result_type=int)).data, int)
        assert_type((await client.call_tool("trip", result_type=Trip, timeout=30)).data, Trip)
        assert_type((await client.call_tool("trips", result_type=list[Trip])).data, list[Trip])
        task = await client.start_task("report", ttl=60)
        assert_type((await task.result(result_type=str)).data, str)
    with SyncClient(server, timeout=3, log_level="debug") as sync:
        assert_type(sync.call_tool("add", {"a": 1, "b": 2}, result_type=int).data, int)
        sync.call_tool("add").data.anything_goes()


async def keep(database: Database) -> None:
    def write(tx: Transaction) -> int:
        return tx.execute("delete from notes")

    await database.write(write)
    print(validate({"type": "string"}, 3))


async def serve() -> None:
    await serve_http(server, host="127.0.0.1", port=0, on_ready=print)
    scope: dict[str, Any] = {"type": "http"}

    async def receive() -> dict[str, Any]:
        return {}

    async def send(message: Any) -> None: ...

    await server.http_app(path="/mcp", token="…")(scope, receive, send)


if __name__ == "__main__":
    server.run()
    server.run("http", host="0.0.0.0", port=8080, insecure=True, max_concurrent_requests=100)
    server.run("stdio", shutdown_timeout=3.0)
