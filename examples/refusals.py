"""Who is told what, when something goes wrong.

portico serve examples/refusals.py
"""

from typing import Annotated

from msgspec import Meta

from portico import Server, ToolError, ToolResult

server = Server("refusals", version="1.0.0")

ROOMS = {"blue": 4, "green": 8}


@server.tool
def reserve_room(room: str, guests: Annotated[int, Meta(ge=1)]) -> str:
    """Reserve a room for an evening."""
    if room not in ROOMS:
        raise ToolError(f"There is no room {room!r}. There is: {', '.join(ROOMS)}.")
    if guests > ROOMS[room]:
        raise ToolError(f"The {room} room has {ROOMS[room]} seats, and {guests} guests were given.")
    return f"The {room} room is yours."


@server.tool
def count_guests() -> int:
    """Fail, in a way that its author did not foresee."""
    with open("guests-of-tonight.txt") as file:
        return len(file.readlines())


@server.tool
def check_menu() -> ToolResult:
    """Fail, and still say something for the host."""
    return ToolResult(content="The menu is not printed yet.", is_error=True, meta={"example.com/retry": 60})


@server.resource("refusals://rooms/{room}")
def seats(room: str) -> int | None:
    """How many seats a room has. None means that there is no such resource."""
    return ROOMS.get(room)


if __name__ == "__main__":
    server.run()
