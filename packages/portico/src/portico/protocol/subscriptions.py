"""subscriptions/listen: the one way to hear of changes on 2026-07-28."""

from __future__ import annotations

from msgspec import Struct

from portico.protocol.meta import Name, Params
from portico.protocol.notifications import NoticeParams


class Filter(Struct, omit_defaults=True, rename="camel"):
    """What a listener wants to hear of. Nothing else may be sent to it."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[Name] | None = None
    # Of the extension io.modelcontextprotocol/tasks.
    task_ids: list[Name] | None = None


class ListenParams(Params):
    notifications: Filter


class AcknowledgedParams(NoticeParams, kw_only=True):
    notifications: Filter
