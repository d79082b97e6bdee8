"""Tools with contracts: version, annotations, input, output and error types.

portico serve examples/contracts_weather.py
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

from portico import Context, Server
from portico_services.contracts.api import ContractContext, Contracts, MCPToolResult, typed_error

server = Server("weather", version="1.3.0")
server.add(Contracts(rate_limit=5, rate_burst=20))

RAIN = {"Oslo": 3.2, "Rome": 0.0}


@dataclass
class Rain:
    """How much it rains."""

    city: Annotated[str, "Where"]
    millimetres: Annotated[float, "How much, in a day"]


NOTES = {
    "use_cases": ["To decide whether somebody needs an umbrella."],
    "errors": [{"type": "ResourceNotFound", "when": "Nothing is known about the city.", "details": "`city`, `known`"}],
    "examples": [{"arguments": {"city": "Oslo"}, "data": {"city": "Oslo", "millimetres": 3.2}}],
}


@server.tool(version="2.0.1", annotations={"readOnlyHint": True}, meta={"portico/spec": NOTES})
async def rain(city: Annotated[str, "A city, by its English name"], ctx: Context) -> Rain:
    """How much it rains somewhere today."""
    if city not in RAIN:
        return typed_error("ResourceNotFound", f"Nothing is known about {city}.", {"city": city, "known": list(RAIN)})
    about = ContractContext.from_meta(ctx.meta)
    if about is not None:
        await ctx.info(f"asked by {about.caller}, as part of {about.correlation_id}")
    return Rain(city, RAIN[city])


class Cities(BaseModel):
    """The data of a tool that says itself how a call ended."""

    cities: list[str] = Field(description="Their English names", examples=[["Oslo", "Rome"]])


@server.tool(
    version="1.0.0",
    annotations={"readOnlyHint": True, "openWorldHint": False},
    meta={"portico/spec": {"use_cases": ["To find out which cities `rain` knows."]}},
)
async def cities() -> MCPToolResult[Cities]:
    """The cities that something is known about."""
    return MCPToolResult[Cities](data=Cities(cities=sorted(RAIN)), explanation=f"{len(RAIN)} cities.")


if __name__ == "__main__":
    server.run()
