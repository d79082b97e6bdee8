"""`Context` of FastMCP."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from portico.compat.mcp_sdk import context as sdk
from portico.compat.unsupported import UnsupportedFeature, reject_options

_VISIBILITY_UNSUPPORTED = {
    "keys": UnsupportedFeature("use names=", accepted=(None, ())),
    "version": UnsupportedFeature("use names= with NAME@VERSION"),
    "components": UnsupportedFeature("use names= or tags="),
}
_STATE_UNSUPPORTED = {
    "serializable": UnsupportedFeature("store objects in the lifespan: ctx.lifespan_context", accepted=(None, True))
}
_ELICIT_UNSUPPORTED = {
    "response_title": UnsupportedFeature("put it into the message"),
    "response_description": UnsupportedFeature("put it into the message"),
}


class Context(sdk.Context):
    """A Context with the additional members of FastMCP."""

    __slots__ = ()

    @property
    def fastmcp(self) -> Any:
        return self.server

    async def elicit(
        self,
        message: str,
        response_type: Any = None,
        *,
        schema: Any = None,
        key: str | None = None,
        **unsupported: Any,
    ) -> Any:
        """Elicit input from the user and wait for the response."""
        reject_options("elicit", unsupported, _ELICIT_UNSUPPORTED)
        return await super().elicit(message, response_type, schema=schema, key=key)

    async def send_notification(self, notification: Any) -> None:
        """Send a notification of `mcp.types` about a changed list or resource."""
        root = getattr(notification, "root", notification)
        uri = getattr(getattr(root, "params", None), "uri", None)
        await self._publish_change(root.method, None if uri is None else str(uri))

    async def set_state(self, key: str, value: Any, **unsupported: Any) -> None:
        reject_options("set_state", unsupported, _STATE_UNSUPPORTED)
        await super().set_state(key, value)

    async def enable_components(
        self,
        *,
        names: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        match_all: bool = False,
        **unsupported: Any,
    ) -> None:
        reject_options("enable_components", unsupported, _VISIBILITY_UNSUPPORTED)
        await super().enable_components(names=names or (), tags=tags or (), match_all=match_all)

    async def disable_components(
        self,
        *,
        names: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        match_all: bool = False,
        **unsupported: Any,
    ) -> None:
        reject_options("disable_components", unsupported, _VISIBILITY_UNSUPPORTED)
        await super().disable_components(names=names or (), tags=tags or (), match_all=match_all)
