"""The tool of the console that follows a server's OAuth discovery step by step."""

from __future__ import annotations

from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.transports.http_client.oauth_debugger import debug_discovery
from portico_console.tool_responses import shown


class OAuthService(Service):
    """OAuth discovery, for a client that has no token yet."""

    name = "oauth"

    @tool(annotations={"readOnlyHint": True, "openWorldHint": True})
    async def oauth_chain(self, url: str) -> ToolResult:
        """Run OAuth discovery against a server and report the findings of each step."""
        steps = await debug_discovery(url)
        return shown({"url": url, "steps": steps, "ok": all(step.ok for step in steps)})
