"""Chooses how code is isolated: in a Linux sandbox, in WebAssembly, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from portico.services.live.forking import Forking
from portico.services.live.jail import obstacle
from portico.services.live.kernel import SandboxUnavailable
from portico.services.live.limits import MIB, Limits
from portico.services.live.pool import Key, SessionInfo, SessionPool, Starter
from portico.services.live.spawning import Spawning
from portico.services.live.workers import WorkerReply

# What Python takes by itself.
SMALLEST_MEMORY = 64 * MIB


class Interpreters(Protocol):
    """Where code runs: sessions in workers, or the application itself."""

    async def open(self) -> None: ...

    async def ready(self) -> None: ...

    async def close(self) -> None: ...

    async def ask(self, key: Key, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply: ...

    def sessions(self, owner: str | None) -> list[SessionInfo]: ...

    def reset(self, key: Key) -> bool: ...

    def info(self) -> dict[str, Any]: ...


class Isolation:
    """A choice of how to keep code. `images` raises Unavailable with the reason where it cannot be done."""

    def __init__(
        self,
        python: str,
        limits: Limits,
        *,
        strict: bool = False,
        unsafe: bool = False,
        readable: Sequence[str] = (),
        preload: Sequence[str] = (),
    ) -> None:
        self.limits = limits
        self.strict, self.unsafe = strict, unsafe
        self.mode = "strict: in WebAssembly" if strict else "UNSAFE: in no jail" if unsafe else "in a jail"
        self._starter: Starter = (
            Spawning(python, limits)
            if strict
            else Forking(python, limits, readable=readable, preload=preload, jailed=not unsafe)
        )

    def interpreters(self, sessions: int, *, spare: int, idle: float) -> SessionPool:
        if self.strict and self.unsafe:
            raise SandboxUnavailable("live Python is strict or unsafe, not both")
        if self.limits.memory < SMALLEST_MEMORY:
            raise SandboxUnavailable(f"Python itself needs {SMALLEST_MEMORY // MIB} MiB of memory")
        reason = None if self.strict or self.unsafe else obstacle(self.limits)
        if reason is not None:
            raise SandboxUnavailable(f"{reason}. Use strict=True, or unsafe=True if code may do whatever you may do")
        return SessionPool(self._starter, most=sessions, spare=spare, idle=idle)
