"""Calls that hear something before their result: which of them a notification belongs to."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol import meta as metas
from portico.protocol.errors import InvalidParams
from portico.protocol.methods import METHODS
from portico.rpc.call import Call

_members = msgspec.json.Decoder(dict[str, Raw])


class NotifiedCalls:
    """Those that are under way on one connection."""

    def __init__(self) -> None:
        # Those that want to hear of their progress, as they were sent, by the token that the server was given.
        self.progressing: dict[Any, Call] = {}
        # Those that listen for changes, by their ids on the wire; and in a session, where there are no such ids.
        self.subscribed: dict[Any, Call] = {}
        self.listening: list[Call] = []

    def tell(self, notice: Call) -> bool:
        """Tell the Call that a notification belongs to, or all that listen in the session. Whether it was one's."""
        if not (self.progressing or self.subscribed or self.listening):
            return False
        call = self._call_of(notice)
        if call is not None:
            call.reply.emit(notice.method, self._as_asked(notice, call))
            return True
        for call in self.listening:
            call.reply.emit(notice.method, notice.params)
        return False

    def _call_of(self, notice: Call) -> Call | None:
        """The Call that a notification says it belongs to."""
        try:
            if notice.method == notifications.PROGRESS:
                return self.progressing.get(METHODS[notice.method].decode(notice.params).progress_token)
            id = metas.members(notice.params).get(metas.SUBSCRIPTION_ID)
            return None if isinstance(id, bool) else self.subscribed.get(id)
        except (InvalidParams, msgspec.DecodeError, RecursionError, TypeError):
            return None

    def _as_asked(self, notice: Call, call: Call) -> Raw:
        """The params with the progress token that the Call came with."""
        if notice.method != notifications.PROGRESS or self.progressing.get(call.progress_token) is call:
            return notice.params
        members: dict[str, Any] = dict(_members.decode(notice.params))
        return Raw(jsonrpc.encode({**members, "progressToken": call.progress_token}))
