"""A server for the people of a company: they log in as they do everywhere, and what they may do is in their tokens.

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
async def mine(ctx: Context) -> str:
    """The orders of whoever asks."""
    return f"orders of {ctx.principal.id} at {ctx.headers.get('x-tenant', 'acme')}"


@server.tool(scopes=["orders:write"])
async def cancel(number: int) -> str:
    """Cancel an order."""
    return f"{number} is cancelled"


async def is_on_duty(call: Call) -> bool:
    return "on-duty" in call.principal.groups


@server.tool(auth=is_on_duty)
async def refund(number: int) -> str:
    """Give the money back."""
    return f"{number} is paid back"


KEYS = {"3f9a": "billing"}


async def by_key(credentials: RequestCredentials) -> Principal:
    """A verifier of one's own: from what a request shows to who that is."""
    if credentials.token not in KEYS:
        raise InvalidToken("there is no such key")
    return Principal(KEYS[credentials.token], frozenset({"orders:read"}))


def for_programs(**options: Any) -> Server:
    """The same tools, for programs with keys."""
    return Server("orders", auth=ResourceServer(by_key), **options)


if __name__ == "__main__":
    server.run()
