"""Requests to the client during a call: elicitation, sampling, roots.

portico serve examples/travel.py
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from portico import Context, Server, ToolError

server = Server("travel", version="1.0.0")

reserved: list[str] = []


@dataclass
class Traveller:
    name: str
    age: Annotated[int, "In years"]
    vegetarian: bool = False


def reserve(destination: str, seat: str) -> int:
    reserved.append(f"{destination}, {seat}")
    return len(reserved)


@server.tool
async def book(destination: str, ctx: Context) -> str:
    """Book a journey. The user chooses the seat and confirms the price."""
    seat = await ctx.elicit("Which seat?", ["aisle", "window"], key="seat")
    if seat.action != "accept":
        raise ToolError("Nothing was booked: the user did not choose a seat.")
    number = await ctx.step("reserve", lambda: reserve(destination, seat.data))
    pay = await ctx.elicit(f"Reservation {number} costs 80. Pay now?", bool, key="pay")
    return f"Reservation {number} is {'paid' if pay.data else 'kept for a day'}."


@server.tool
async def plan(destination: str, ctx: Context) -> str:
    """Plan a journey with the answers of the user and the client's model."""
    traveller, idea = await asyncio.gather(
        ctx.elicit("Who travels?", Traveller),
        ctx.sample(f"One thing to see in {destination}, in three words.", max_tokens=30),
    )
    name = traveller.data.name if traveller.data else "The traveller"
    return f"{name} sees this in {destination}: {idea.text}"


@server.tool
async def summarise(text: str, ctx: Context) -> str:
    """Summarise a text with the client's model, or truncate it if the client has none."""
    if ctx.client_capabilities.sampling is None:
        return text[:40]
    summary = await ctx.sample(text, system_prompt="Summarise in one sentence.", model_preferences="small")
    return summary.text


@server.tool
async def itineraries(ctx: Context) -> str:
    """List the user's folders."""
    roots = await ctx.list_roots()
    return ", ".join(root.name or root.uri for root in roots) or "The client has no roots."


@server.tool
async def connect_account(ctx: Context) -> str:
    """Connect an account. Neither the client nor the model sees the data entered on that page."""
    answer = await ctx.elicit_url("Sign in with the airline", "https://airline.example/connect")
    return "Continue after the login." if answer.action == "accept" else "No account was connected."


@server.tool
async def about_me(ctx: Context) -> dict[str, str | None]:
    """Return information about the current call."""
    return {
        "revision": ctx.protocol_version,
        "client": ctx.client_info.name if ctx.client_info else None,
        "form": "yes" if ctx.client_capabilities.supports_elicitation("form") else "no",
        "url": "yes" if ctx.client_capabilities.supports_elicitation("url") else "no",
    }


@server.resource("travel://rules")
def rules() -> str:
    """Read the rules of the house."""
    return "One bag each."


@server.tool
async def brief(destination: str, ctx: Context) -> str:
    """Return a briefing from other components of this server."""
    [rules] = await ctx.read_resource("travel://rules")
    summary = await ctx.call_tool("summarise", {"text": f"A journey to {destination}."})
    return f"{summary.content[0].text} {rules.text}"


if __name__ == "__main__":
    server.run()
