"""Notifications: what is said without expecting an answer."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from portico.wire.jsonrpc import RequestId
from portico.wire.meta import LogLevel, ProgressToken

CANCELLED = "notifications/cancelled"
INITIALIZED = "notifications/initialized"
PROGRESS = "notifications/progress"
MESSAGE = "notifications/message"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"
ROOTS_CHANGED = "notifications/roots/list_changed"
ELICITATION_COMPLETE = "notifications/elicitation/complete"
TASK = "notifications/tasks"
TASK_STATUS = "notifications/tasks/status"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class NoticeParams(Struct, omit_defaults=True, kw_only=True):
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class CancelledParams(NoticeParams, rename="camel", kw_only=True):
    # 2025-11-25 lets it be absent, because tasks are cancelled otherwise; then there is nothing to do.
    request_id: RequestId | None = None
    reason: str | None = None


class ProgressParams(NoticeParams, rename="camel", kw_only=True):
    progress_token: ProgressToken
    progress: float
    total: float | None = None
    message: str | None = None


class MessageParams(NoticeParams, kw_only=True):
    level: LogLevel
    logger: str | None = None
    # Without a default, because null is something a server may log.
    data: Any


class ResourceUpdatedParams(NoticeParams, kw_only=True):
    uri: str


class ElicitationCompleteParams(NoticeParams, rename="camel", kw_only=True):
    elicitation_id: str
