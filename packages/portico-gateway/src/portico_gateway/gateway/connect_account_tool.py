"""Tool that connects a user's account at an upstream, available before the upstream can be listed for the user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from portico.protocol.errors import MissingClientCapability, PorticoError, ToolError
from portico.rpc.call import Call
from portico.server.context.context import Context
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.upstream_auth import ConnectedAccountAuth, not_connected_error
from portico_gateway.gateway.upstream import UpstreamProvider

CONNECT_ACCOUNT_TOOL = "connect_account"


def describe_tool(auth: ConnectedAccountAuth) -> str:
    """Return the description of the tool."""
    name = auth.account.title or auth.account.alias
    return (
        f"Connect the user's account at {name}, so that its tools can be used on their behalf. Returns the number "
        "of tools."
    )


def find_account(upstream: UpstreamProvider) -> UpstreamAccount:
    assert isinstance(upstream.auth, ConnectedAccountAuth)
    return upstream.auth.account


def make_connect_tool(upstream: UpstreamProvider) -> Callable[[Context], Awaitable[str]]:
    """Return the function of the tool."""
    auth = upstream.auth
    assert isinstance(auth, ConnectedAccountAuth)
    name = auth.account.title or auth.account.alias

    async def connect_account(ctx: Context) -> str:
        by = Call(method="tools/list", id=0, **ctx.caller_fields)
        if not await auth.is_connected(by):
            link = auth.connect_url(by)
            try:
                answer = await ctx.elicit_url(
                    f"Connect your account at {name} to use it here.", link, key=CONNECT_ACCOUNT_TOOL
                )
            # A client without URL elicitation gets the link in the error, so that its user can still open it.
            except MissingClientCapability:
                raise not_connected_error(auth.account, link) from None
            if answer.action != "accept" or not await auth.wait_until_connected(by):
                raise ToolError(f"The account at {name} was not connected.", error_type="PermissionError")
        try:
            # Before the account was connected, the upstream could not be listed for this user.
            await upstream.refresh(by=by)
        except PorticoError as failure:
            raise ToolError(f"The account is connected, but {name} is not available: {failure}") from None
        tools = upstream.catalog.get(by).entries.get("tools/list", ())
        return f"The account at {name} is connected. It has {len(tools)} tools."

    return connect_account
