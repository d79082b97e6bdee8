"""The call that is being answered, for functions that are not given it; and for servers that a body asks something of,
its own or another one: they answer whom it answers."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any


class ContextType:
    """What every Context is. It is looked for in signatures, and loaded with the first one that has it."""

    __slots__ = ()


class CurrentCall:
    # The functions that give the Context: a body whose module has one of them gets one that can ask questions.
    gives_context: tuple[Callable[..., Any], ...] = ()
    # The Context of a body that has one; otherwise its Call and its Runtime.
    _answering: ContextVar[Any] = ContextVar("portico_answering", default=None)

    # From here on this is being answered, for what runs in the same context.
    enter = _answering.set
    # What is being answered; None outside of a call.
    found = _answering.get

    @classmethod
    def hold(cls) -> Token[Any]:
        """Before another server is asked in the same context: `release` gives back what is being answered now."""
        return cls._answering.set(cls._answering.get())

    # Takes what `hold` gave.
    release = _answering.reset

    @classmethod
    def call(cls) -> Any:
        """The Call itself; None outside of one."""
        found = cls.found()
        return found[0] if isinstance(found, tuple) else getattr(found, "call", None)

    @classmethod
    def is_used_by(cls, fn: Any) -> bool:
        known = getattr(fn, "__globals__", {}) if cls.gives_context else {}
        return any(value is one for value in list(known.values()) for one in cls.gives_context)
