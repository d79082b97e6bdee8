"""How a tool becomes a task, and what is promised about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from portico.wire.errors import UsageError

Mode = Literal["never", "optional", "required"]

DAY = 24 * 3600.0


class TaskConfig(Struct, frozen=True, kw_only=True):
    """`@server.tool(task=TaskConfig(mode="optional", retries=3))`; a mode alone is short for it.

    `retries`: how often a body that failed unexpectedly is run again, `backoff` seconds later, then twice that, and so
    on. `priority`: higher is sooner. `concurrency`: how many of this tool run at once, in all processes together.
    `ttl`: seconds for which a task is kept; None for ever. `poll_interval`: how often clients should ask, in seconds.
    `detached`: the body begins as an ordinary call, and becomes a task where it says `await ctx.detach()`.
    """

    mode: Mode = "optional"
    retries: int = 0
    backoff: float = 1.0
    priority: int = 0
    concurrency: int | None = None
    ttl: float | None = DAY
    poll_interval: float = 0.5
    detached: bool = False


def config_of(task: Mode | TaskConfig, name: str) -> TaskConfig | None:
    """None for tools that never are tasks."""
    config = task if isinstance(task, TaskConfig) else TaskConfig(mode=task)
    if config.mode not in ("never", "optional", "required"):
        raise UsageError(f"tool {name!r}: task is 'never', 'optional' or 'required', not {config.mode!r}")
    if config.retries < 0 or config.backoff < 0 or (config.concurrency is not None and config.concurrency < 1):
        raise UsageError(f"tool {name!r}: retries and backoff are not negative, and concurrency is at least 1")
    if (config.ttl is not None and config.ttl <= 0) or config.poll_interval <= 0:
        raise UsageError(f"tool {name!r}: ttl and poll_interval are more than 0")
    return None if config.mode == "never" else config
