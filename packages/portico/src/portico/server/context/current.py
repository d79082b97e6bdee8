"""The call that is being answered in the current context.

For functions that do not receive it as an argument, and for nested requests to this or another server, which answer the
same caller.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from portico.protocol.client_features import InputRequiredResult
    from portico.server.components.results import DetachedCall
    from portico.server.context.input_rounds import InputRounds

T = TypeVar("T")


class ContextMarker:
    """Base class of Context, with the methods that running a function needs.

    Signatures are searched for it, so that Context is only imported when needed.
    """

    __slots__ = ()

    def bind_task(self) -> None:
        """Bind the Context to the task that runs the function."""
        raise NotImplementedError

    def enter_thread(self) -> None:
        """Record that the function runs in a thread."""
        raise NotImplementedError

    def get_rounds(self) -> InputRounds:
        """Return the input rounds of the call."""
        raise NotImplementedError

    def input_required_result(self) -> InputRequiredResult | DetachedCall | None:
        """Return the result that carries the input requests of a suspended function, or None if there are none."""
        raise NotImplementedError


class CurrentCall:
    """Access to the call that is being answered in the current context."""

    # Functions that return the Context: a tool whose module imports one of them gets a Context with input requests.
    context_factories: tuple[Callable[..., Any], ...] = ()
    # The Context of the running function; without one, its Call and Runtime.
    _answering: ContextVar[Any] = ContextVar("portico_answering", default=None)

    # Set the current call for the rest of this context.
    enter = _answering.set
    # Return the current Context or call; None outside of a call.
    get = _answering.get

    @classmethod
    def save(cls) -> Token[Any]:
        """Return a token with which `restore` resets the current call after a nested request."""
        # A token can be reset only in the context where it was created, so `save` sets the same
        # value again to obtain one.
        return cls._answering.set(cls._answering.get())

    # Takes the token that `save` returned.
    restore = _answering.reset

    @classmethod
    def call(cls) -> Any:
        """Return the current Call, or None outside of one."""
        result = cls.get()
        return result[0] if isinstance(result, tuple) else getattr(result, "call", None)

    @classmethod
    def is_context_factory(cls, fn: Any) -> bool:
        """Return whether a function's module imports one of the functions that return the Context."""
        # Looking at the module's globals finds `get_context` even if a helper calls it. A false
        # positive costs one Context per call, a false negative would break elicitation.
        namespace = getattr(fn, "__globals__", {}) if cls.context_factories else {}
        return any(
            value is context_factory for value in list(namespace.values()) for context_factory in cls.context_factories
        )


async def run_blocking(fn: Callable[..., T], *args: Any) -> T:
    """Run a blocking function in the thread pool of the server that answers the current call, in its caller's turn.

    Outside of a call, it runs in a thread of the event loop. Those threads also resolve host names and write the audit
    log, so work that a caller can multiply must not occupy them.
    """
    current: Any = CurrentCall.get()
    if current is None:
        # Imported here because hooks, which have no event loop, load this module.
        import asyncio

        return await asyncio.to_thread(fn, *args)
    if not isinstance(current, tuple):
        result: T = await current.run_in_thread(fn, *args)
        return result
    from portico.rpc.fair_queue import get_caller_key

    call, runtime = current
    result = await runtime.thread_pool.run(fn, args, get_caller_key(call))
    return result
