"""The call that is being answered, for functions that are not given it. It is kept only where a program has
asked for such a function: `wanted` is set by importing `ambient.py`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class CurrentCall:
    wanted = False
    context: ContextVar[Any] = ContextVar("portico_context")
