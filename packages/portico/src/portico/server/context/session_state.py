"""Session state: `ctx.set_state` and `ctx.get_state`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from portico.caching import LruCache
from portico.protocol.errors import ToolError
from portico.rpc.call import Call, ClientConnection
from portico.rpc.identity import principal_id

# Limits per session.
MAX_KEYS_PER_SESSION = 1_000
MAX_VALUE_BYTES = 1024 * 1024
# State is stored per principal if requests belong to no session.
MAX_PRINCIPALS = 10_000


class SessionStateStore:
    """State values as JSON, per session, or per principal if requests are independent."""

    def __init__(self) -> None:
        # Weak keys: the state of a session ends with its connection, without a notification of the
        # end.
        self._conversations: WeakKeyDictionary[ClientConnection, dict[str, bytes]] = WeakKeyDictionary()
        self._ids: WeakKeyDictionary[ClientConnection, str] = WeakKeyDictionary()
        self._principals: LruCache[str | None, dict[str, bytes]] = LruCache(MAX_PRINCIPALS)

    def get(self, call: Call, key: str) -> Any:
        stored_state = self._get_state(call).get(key)
        return None if stored_state is None else msgspec.json.decode(stored_state)

    def set(self, call: Call, key: str, value: Any) -> None:
        """Store a value. Raises ToolError if it is too large or not JSON-serializable."""
        values = self._get_state(call)
        try:
            # Encoded at once: a later change of the object by its owner must not change the state,
            # and the size is known.
            text = msgspec.json.encode(value)
        except (TypeError, ValueError) as mistake:
            raise ToolError(f"Cannot store the state {key!r}: {mistake}.") from None
        if len(text) > MAX_VALUE_BYTES or (key not in values and len(values) >= MAX_KEYS_PER_SESSION):
            raise ToolError(f"Cannot store the state {key!r}: the value is too large, or there are too many keys.")
        values[key] = text

    def session_id(self, call: Call) -> str | None:
        """Return an opaque id for the session of a call, or None."""
        conversation = call.reply.connection
        if conversation is None:
            return None
        return self._ids.setdefault(conversation, str(uuid4()))

    def delete(self, call: Call, key: str) -> None:
        self._get_state(call).pop(key, None)

    def _get_state(self, call: Call) -> dict[str, bytes]:
        conversation = call.reply.connection
        if conversation is not None:
            return self._conversations.setdefault(conversation, {})
        # All anonymous clients would share one state and could read each other's values.
        if call.is_anonymous:
            raise ToolError(
                "State is not available: the request belongs to no session, and its sender is not authenticated."
            )
        identity = principal_id(call.principal)
        return self._principals.setdefault(identity, {})
