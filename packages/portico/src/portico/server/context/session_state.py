"""What bodies keep from one call of a conversation to the next: `ctx.set_state` and `ctx.get_state`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from portico.protocol.errors import ToolError
from portico.rpc.call import Call, Conversation
from portico.rpc.identity import identity_of

# Of one conversation.
MOST_KEYS = 1_000
LONGEST_VALUE = 1024 * 1024
# Who has no conversation is known by its principal.
MOST_PRINCIPALS = 10_000


class ConversationStates:
    """The values of each conversation, as JSON; where requests stand alone, those of each principal."""

    def __init__(self) -> None:
        self._conversations: WeakKeyDictionary[Conversation, dict[str, bytes]] = WeakKeyDictionary()
        self._ids: WeakKeyDictionary[Conversation, str] = WeakKeyDictionary()
        self._principals: OrderedDict[str | None, dict[str, bytes]] = OrderedDict()

    def get(self, call: Call, key: str) -> Any:
        kept = self._of(call).get(key)
        return None if kept is None else msgspec.json.decode(kept)

    def set(self, call: Call, key: str, value: Any) -> None:
        """Raises ToolError for what is too much, or cannot be kept."""
        values = self._of(call)
        try:
            text = msgspec.json.encode(value)
        except (TypeError, ValueError) as mistake:
            raise ToolError(f"The state {key!r} cannot be kept: {mistake}.") from None
        if len(text) > LONGEST_VALUE or (key not in values and len(values) >= MOST_KEYS):
            raise ToolError(f"The state {key!r} cannot be kept: there is too much already, or it is too long.")
        values[key] = text

    def id_of(self, call: Call) -> str | None:
        """A name for the conversation of a call, which means nothing elsewhere."""
        conversation = call.reply.conversation
        if conversation is None:
            return None
        return self._ids.setdefault(conversation, str(uuid4()))

    def drop(self, call: Call, key: str) -> None:
        self._of(call).pop(key, None)

    def _of(self, call: Call) -> dict[str, bytes]:
        conversation = call.reply.conversation
        if conversation is not None:
            return self._conversations.setdefault(conversation, {})
        if call.anonymous:
            raise ToolError(
                "There is no state here: the request belongs to no conversation, and its sender has not logged in."
            )
        identity = identity_of(call.principal)
        values = self._principals.setdefault(identity, {})
        self._principals.move_to_end(identity)
        if len(self._principals) > MOST_PRINCIPALS:
            self._principals.popitem(last=False)
        return values
