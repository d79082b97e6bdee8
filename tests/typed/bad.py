"""Misspelled names. Type checkers report exactly the lines with `# error`."""

from __future__ import annotations

from portico import Client, Context, Server, SyncClient, tool
from portico import Serverr  # error
from portico.extend import Handlerr  # error
from portico import Tool
from portico.extend import serve_http
from portico.jsonschema import complaintz  # error
from portico_services.memory import Memori  # error

server = Server("shop", instruction="…")  # error
Server("shop", version=1)  # error


def hello() -> str:
    return "hello"


server.tool(titel="Hello", timout=3)  # error
server.tool("hello", run_in_thread="yes")  # error
server.tool(timeout="3")  # error
server.tool(task="sometimes")  # error
tool(alias=["b"])  # error
Tool(hello, scope=["a"])  # error
server.prompt(icon=[])  # error
server.resource("a://b", mimetype="text/html")  # error
server.resource(3)  # error
server.completion("advice")  # error
server.run("http", prot=8080)  # error
server.run("htttp")  # error
server.run(port=8080)  # error
server.run("http", port="8080")  # error
server.http_app(host="127.0.0.1")  # error
server.http_app().no_such_member()  # error
Client(server, timout=3)  # error
Client(server, timeout="3")  # error
SyncClient(server, timout=3)  # error
SyncClient(server, timeout="3")  # error


async def ask(ctx: Context, client: Client) -> None:
    number = await ctx.elicit("How many?", int)
    print((number.data or 0).no_such_member())  # error
    choice = await ctx.elicit("Which?", ["shirt", "sock"])
    print((choice.data or "").no_such_member())  # error
    await ctx.elicit("How many?", int, kye="a")  # error
    result = await client.call_tool("add", result_type=int)
    print(result.data.no_such_member())  # error
    await client.call_tool("add", return_type=int)  # error
    await serve_http(server, prot=1)  # error
