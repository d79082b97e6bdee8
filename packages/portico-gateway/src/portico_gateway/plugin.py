"""What `portico` asks of this package, by the entry point `gateway` of the group `portico.plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule

if TYPE_CHECKING:
    from portico_gateway.authserver import fastmcp_providers
else:
    fastmcp_providers = LazyModule("portico_gateway.authserver.fastmcp_providers")


def get_login_provider(name: str) -> Any:
    """Return FastMCP's login provider of this name. Raises AttributeError if there is none."""
    try:
        return fastmcp_providers.PROVIDERS[name]
    except KeyError:
        raise AttributeError(f"portico.compat.fastmcp has no login provider {name!r}") from None
