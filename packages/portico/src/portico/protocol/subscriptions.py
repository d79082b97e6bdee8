"""subscriptions/listen, the only way to receive change notifications on 2026-07-28."""

from __future__ import annotations

from msgspec import Struct

from portico.protocol.meta import BoundedName, RequestParams
from portico.protocol.notifications import NotificationParams


class SubscriptionFilter(Struct, omit_defaults=True, rename="camel"):
    """Notifications that a listener requests. Nothing else may be sent to it."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[BoundedName] | None = None
    # From the extension io.modelcontextprotocol/tasks.
    task_ids: list[BoundedName] | None = None


class SubscriptionsListenParams(RequestParams):
    notifications: SubscriptionFilter


class SubscriptionsAcknowledgedParams(NotificationParams, kw_only=True):
    notifications: SubscriptionFilter
