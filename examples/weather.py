"""A tool that asks the user a question, on every protocol version with elicitation.

portico serve examples/weather.py
"""

from portico import Context, Server

server = Server("weather", version="1.0.0")


@server.tool
async def forecast(ctx: Context, city: str, days: int = 3) -> dict[str, str]:
    """Forecast the weather of the next days."""
    unit = await ctx.elicit("Which unit?", ["celsius", "fahrenheit"])
    return {"city": city, "summary": f"{days} days of sun", "unit": unit.data or "celsius"}


if __name__ == "__main__":
    server.run()
