"""JSON with random whitespace, for echo_upstream.py and the clients that talk to it."""

from __future__ import annotations

import json
import random
from typing import Any


def lay_out(value: Any, chance: random.Random, blanks: str) -> str:
    """Encode JSON with random whitespace between all tokens, and random escapes in strings."""

    def gap() -> str:
        return "".join(chance.choice(blanks) for _ in range(chance.randrange(3)))

    def put(value: Any) -> str:
        if isinstance(value, dict):
            inside = ",".join(f"{gap()}{put(name)}{gap()}:{gap()}{put(item)}{gap()}" for name, item in value.items())
            return "{" + (inside or gap()) + "}"
        if isinstance(value, list):
            return "[" + (",".join(f"{gap()}{put(item)}{gap()}" for item in value) or gap()) + "]"
        return json.dumps(value, ensure_ascii=chance.random() < 0.5)

    return gap() + put(value) + gap()
