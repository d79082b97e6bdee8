"""A gateway for Model Context Protocol servers: one endpoint, with OAuth, policy and audit."""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, lazy_exports

if TYPE_CHECKING:
    from portico_gateway.gateway.gateway import Gateway as Gateway

_HOMES = {"portico_gateway.gateway.gateway": ("Gateway",)}

if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
