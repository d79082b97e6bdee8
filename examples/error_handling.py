"""Error handling: tool errors for the model, unexpected exceptions for the log.

portico serve examples/error_handling.py
"""

from typing import Annotated

from msgspec import Meta

from portico import Server, ToolError, ToolResult

server = Server("restaurant", version="1.0.0")

ROOMS = {"blue": 4, "green": 8}


@server.tool
def reserve_room(room: str, guests: Annotated[int, Meta(ge=1)]) -> str:
    """Reserve a room for an evening."""
    if room not in ROOMS:
        raise ToolError(f"Unknown room {room!r}: expected one of {', '.join(ROOMS)}.")
    if guests > ROOMS[room]:
        raise ToolError(f"The {room} room has {ROOMS[room]} seats, got {guests} guests.")
    return f"The {room} room is yours."


@server.tool
def count_guests() -> int:
    """Raise an unexpected exception."""
    with open("guests-of-tonight.txt") as file:
        return len(file.readlines())


@server.tool
def check_menu() -> ToolResult:
    """Return an error with metadata for the host."""
    return ToolResult(content="The menu is not printed yet.", is_error=True, meta={"example.com/retry": 60})


@server.resource("restaurant://rooms/{room}")
def seats(room: str) -> int | None:
    """Read the number of seats of a room. None reports an unknown resource."""
    return ROOMS.get(room)


if __name__ == "__main__":
    server.run()
