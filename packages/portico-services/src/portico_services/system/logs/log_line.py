"""What a line of a text log says."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from portico_services.system.logs.entries import Guess


class LogLine(Struct):
    """What a line says. `time` is None where it has none, and `grammar` says how it was read."""

    grammar: str
    time: int | None
    level: int
    source: str
    message: str
    computer: str = ""
    event_id: int | None = None
    fields: dict[str, Any] = {}
    time_guess: Guess | None = None
    level_guessed: bool = False
