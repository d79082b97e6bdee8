"""A tool that connects a person's account at an upstream, for when nothing of it is known to them yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from portico.protocol.errors import Error, MissingCapability, ToolError
from portico.rpc.call import Call
from portico.server.context.context import Context
from portico_gateway.credentials.upstream_accounts import UpstreamAccount
from portico_gateway.credentials.upstream_auth import UserAuth, refusal
from portico_gateway.gateway.upstream import GatewayUpstream

CONNECT = "connect_account"


def described(auth: UserAuth) -> str:
    name = auth.account.title or auth.account.alias
    return f"Connect the account of the person at {name}, so that its tools can be used in their name."


def account_at(upstream: GatewayUpstream) -> UpstreamAccount:
    assert isinstance(upstream.auth, UserAuth)
    return upstream.auth.account


def body(upstream: GatewayUpstream) -> Callable[[Context], Awaitable[str]]:
    auth = upstream.auth
    assert isinstance(auth, UserAuth)
    name = auth.account.title or auth.account.alias

    async def connect_account(ctx: Context) -> str:
        by = Call(method="tools/list", id=0, principal=ctx.principal)
        if not await auth.is_connected(by):
            link = auth.link(by)
            try:
                answer = await ctx.elicit_url(
                    f"Connect your account at {name}, to use it from here.", link, key=CONNECT
                )
            except MissingCapability:
                raise refusal(auth.account, link) from None
            if answer.action != "accept" or not await auth.wait(by):
                raise ToolError(f"The account at {name} was not connected.", kind="PermissionError")
        try:
            await upstream.refresh(by=by)
        except Error as failure:
            raise ToolError(f"The account is connected, and {name} does not answer: {failure}") from None
        tools = upstream.lists.find(by).entries.get("tools/list", ())
        return f"The account at {name} is connected. There are {len(tools)} tools."

    return connect_account
