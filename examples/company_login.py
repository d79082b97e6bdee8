"""A server behind a company's login, with permissions from the access token.

portico serve examples/company_login.py --transport http --host 0.0.0.0
"""

from __future__ import annotations

from typing import Any

from portico import Context, Server
from portico.auth import InvalidToken, Principal, RequestCredentials, ResourceServer
from portico.extend import Call

server = Server(
    "orders",
    auth=ResourceServer(
        "https://login.acme.example",
        public_url="https://mcp.acme.example",
        required_scopes=["orders:read"],
        implied_scopes={"orders:write": ["orders:read"]},
    ),
    request_headers=["x-tenant"],
)


@server.tool
async def list_my_orders(ctx: Context) -> str:
    """List the caller's orders."""
    return f"orders of {ctx.principal.id} at {ctx.headers.get('x-tenant', 'acme')}"


@server.tool(scopes=["orders:write"])
async def cancel(number: int) -> str:
    """Cancel an order."""
    return f"{number} is cancelled"


async def is_on_duty(call: Call) -> bool:
    return "on-duty" in call.principal.groups


@server.tool(auth=is_on_duty)
async def refund(number: int) -> str:
    """Refund an order."""
    return f"{number} is refunded"


KEYS = {"3f9a": "billing"}


async def verify_api_key(credentials: RequestCredentials) -> Principal:
    """Verify an API key: a custom token verifier."""
    if credentials.token not in KEYS:
        raise InvalidToken("unknown key")
    return Principal(KEYS[credentials.token], frozenset({"orders:read"}))


def create_key_server(**options: Any) -> Server:
    """Create a server that authenticates programs by API key."""
    return Server("orders", auth=ResourceServer(verify_api_key), **options)


if __name__ == "__main__":
    server.run()
