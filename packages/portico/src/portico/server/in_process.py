"""Requests to a server from its own process: methods of Server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from portico._lazy import LazyModule, loaded_module
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import ListToolsResult
from portico.protocol.versions import LATEST
from portico.rpc.call import Call
from portico.server.context.current import CurrentCall

if TYPE_CHECKING:
    from portico.server.context import context
    from portico.server.server import Server
else:
    context = LazyModule("portico.server.context.context")


async def list_tools(self: Server) -> list[Any]:
    """Return the tools that a client would be shown."""
    return await _list_all(self, "tools/list", ListToolsResult, "tools")


async def list_prompts(self: Server) -> list[Any]:
    """Return the prompts that a client would be shown."""
    return await _list_all(self, "prompts/list", ListPromptsResult, "prompts")


async def list_resources(self: Server) -> list[Any]:
    """Return the resources that a client would be shown."""
    return await _list_all(self, "resources/list", ListResourcesResult, "resources")


async def list_resource_templates(self: Server) -> list[Any]:
    """Return the resource templates that a client would be shown."""
    return await _list_all(self, "resources/templates/list", ListResourceTemplatesResult, "resource_templates")


async def get_tool(self: Server, name: str) -> Any:
    """Return one of the tools that a client would be shown, or None."""
    return next((tool for tool in await list_tools(self) if tool.name == name), None)


async def call_tool(self: Server, name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Call a tool and return its result. Inside a call, policy applies to the caller of that call."""
    return await self(_create_call("tools/call", {"name": name, "arguments": arguments or {}}))


async def read_resource(self: Server, uri: Any) -> Any:
    """Read a resource and return the result."""
    return await self(_create_call("resources/read", {"uri": str(uri)}))


async def get_prompt(self: Server, name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Return the messages of a prompt, filled in with arguments."""
    return await self(_create_call("prompts/get", {"name": name, "arguments": arguments or {}}))


async def _list_all(server: Server, method: str, kind: Any, member: str) -> list[Any]:
    return await context.fetch_all_pages(lambda params: server(_create_call(method, params)), kind, member)


def _create_call(method: str, params: dict[str, Any]) -> Call:
    call = Call(method=method, params=Raw(msgspec.json.encode(params)), id=0, revision=LATEST)
    policy = loaded_module("portico.server.policy.interfaces")
    passage = None if policy is None else policy.current.get()
    # A tool that passes on the name of another tool must not lend its client more than the client may do itself.
    outer = CurrentCall.call() if passage is None else passage.call
    if outer is None:
        return call
    caller = {"principal": outer.principal, "client": outer.client, "address": outer.address, "headers": outer.headers}
    return msgspec.structs.replace(call, **caller, facet=outer.facet)
