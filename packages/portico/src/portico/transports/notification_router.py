"""Routing of notifications to the requests they belong to."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from portico.protocol import jsonrpc, meta as metas, notifications
from portico.protocol.errors import InvalidParams
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.methods import METHODS
from portico.rpc.call import Call


class NotificationRouter:
    """Active requests of one connection that receive notifications."""

    def __init__(self) -> None:
        # Calls that requested progress, as sent, keyed by the progress token given to the server.
        self.by_progress_token: dict[Any, Call] = {}
        # Subscriptions keyed by request id, and subscriptions of a handshake session, where such ids do not exist.
        self.by_subscription_id: dict[Any, Call] = {}
        self.session_listeners: list[Call] = []

    def dispatch(self, notification: Call) -> bool:
        """Deliver a notification to its Call, or to all listeners of the session. Return whether it belonged to one
        Call.
        """
        if not (self.by_progress_token or self.by_subscription_id or self.session_listeners):
            return False
        call = self._find_call(notification)
        if call is not None:
            call.reply.notify(notification.method, self._restore_progress_token(notification, call))
            return True
        for call in self.session_listeners:
            call.reply.notify(notification.method, notification.params)
        return False

    def _find_call(self, notice: Call) -> Call | None:
        """Return the Call that a notification belongs to, or None."""
        try:
            if notice.method == notifications.PROGRESS:
                return self.by_progress_token.get(METHODS[notice.method].decode(notice.params).progress_token)
            id = metas.decode_meta_members(notice.params).get(metas.SUBSCRIPTION_ID_META_KEY)
            return None if isinstance(id, bool) else self.by_subscription_id.get(id)
        except (InvalidParams, msgspec.DecodeError, RecursionError, TypeError):
            return None

    def _restore_progress_token(self, notice: Call, call: Call) -> Raw:
        """Return the params with the progress token that the original Call used."""
        if notice.method != notifications.PROGRESS or self.by_progress_token.get(call.progress_token) is call:
            return notice.params
        members: dict[str, Any] = dict(object_decoder.decode(notice.params))
        return Raw(jsonrpc.encode({**members, "progressToken": call.progress_token}))
