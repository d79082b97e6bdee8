"""How tools, resources and prompts speak: what they log on the way, and the codes of their refusals."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any, Literal

from portico import Context, ProtocolError
from portico.extend import V2024_11_05, V2025_11_25, InvalidParams
from portico_services.memory.errors import Blocked, MemoryRefusal, NoSuchMemory, NoSuchPrompt, UnknownNamespace

Codes = Literal["result", "protocol"]
Body = Callable[..., Awaitable[Any]]

_TOOL = re.compile(r"\bmemory_(?=[a-z])")


def speaking(body: Body, name: str, logger: str, codes: Codes, *, resource: bool = False) -> Body:
    """The body of a tool, a prompt or a resource, with messages for the client's log, and with refusals that are errors
    of the protocol to clients that expect that."""

    usual = {one.name: one.default for one in list(signature(body).parameters.values())[1:]}

    @functools.wraps(body)
    async def run(ctx: Context, /, *args: Any, **kwargs: Any) -> Any:
        # The names alone: what the arguments say may be a secret.
        said = {**dict(zip(usual, args, strict=False)), **kwargs}
        given = [word for word, value in said.items() if value != usual[word]]
        ctx.debug(f"{name} begins, with {', '.join(given) or 'no arguments'}", logger)
        began = time.perf_counter()
        try:
            result = await body(ctx, *args, **kwargs)
        except MemoryRefusal as refusal:
            # By the names that are listed here.
            ctx.log(_level(refusal), f"{name} refused: {_TOOL.sub(f'{logger}_', str(refusal))}", logger)
            # The protocol has a code of its own for a resource that is not there, and the number stands in its data.
            known = resource and isinstance(refusal, NoSuchMemory | NoSuchPrompt)
            told = None if known else _as_protocol(refusal, ctx, codes)
            raise told or refusal from None
        except ProtocolError:
            raise
        except Exception as failure:
            ctx.error(f"{name} failed: {type(failure).__name__}", logger)
            raise
        ctx.debug(f"{name} ends after {(time.perf_counter() - began) * 1000:.1f} ms", logger)
        return result

    return run


def _level(refusal: MemoryRefusal) -> Literal["error", "warning", "info"]:
    # The server failed; the request was valid.
    if refusal.kind == "ToolExecutionError":
        return "error"
    return "warning" if isinstance(refusal, Blocked) else "info"


def _as_protocol(refusal: MemoryRefusal, ctx: Context, codes: Codes) -> ProtocolError | None:
    """The refusal as an error of the protocol, where it is to be one.

    An unknown namespace is a wrong argument, and told as the server tells wrong arguments.
    """
    habit, revision = ctx.server.argument_errors, ctx.revision
    if isinstance(refusal, UnknownNamespace) and (habit == "protocol" or (habit == "auto" and revision < V2025_11_25)):
        return InvalidParams(refusal.brief, refusal.described())
    if codes == "protocol" and revision == V2024_11_05:
        return ProtocolError(str(refusal), refusal.described(), code=refusal.number)
    return None
