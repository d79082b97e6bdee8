"""What an operator sees at `LOG_LEVEL=debug`. Off, it is not there at all: no call passes through it."""

from __future__ import annotations

import logging
import time
from typing import Any

from portico.rpc.call import Call, Handler, members
from portico.wire.errors import ProtocolError, ToolError

log = logging.getLogger("portico.trace")

LONGEST = 500


class Trace:
    """A Handler around a Handler that logs what comes in, what is made of it, and how long that took."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        about = members(handler)
        self.info, self.lifespan, self.mirrored = about.info, about.lifespan, about.mirrored

    async def __call__(self, call: Call) -> Any:
        log.debug("incoming message: %s id=%r params=%s", call.method, call.id, _short(bytes(call.params)))
        began = time.perf_counter()
        try:
            log.debug("handler invocation: %s at %s", call.method, call.revision or "no revision yet")
            result = await self.handler(call)
        except (ProtocolError, ToolError) as failure:
            log.debug("validation error: %s: %s", call.method, failure)
            raise
        finally:
            log.debug("performance: %s took %.3f ms", call.method, (time.perf_counter() - began) * 1000)
        if getattr(result, "is_error", False) is True:
            log.debug("validation error: %s: %s", call.method, result.content)
        kind = "tool discovery" if call.method == "tools/list" else "execution result"
        log.debug("%s: %s gave %s", kind, call.method, type(result).__name__)
        return result


def _short(said: bytes) -> str:
    text = said[:LONGEST].decode(errors="replace")
    return text if len(said) <= LONGEST else f"{text}… ({len(said)} bytes)"
