"""Notifications: messages without a response."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from portico.protocol.jsonrpc import RequestId
from portico.protocol.meta import LogLevel, ProgressToken

CANCELLED = "notifications/cancelled"
INITIALIZED = "notifications/initialized"
PROGRESS = "notifications/progress"
LOG_MESSAGE = "notifications/message"
TOOLS_LIST_CHANGED = "notifications/tools/list_changed"
PROMPTS_LIST_CHANGED = "notifications/prompts/list_changed"
RESOURCES_LIST_CHANGED = "notifications/resources/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"
ROOTS_LIST_CHANGED = "notifications/roots/list_changed"
ELICITATION_COMPLETE = "notifications/elicitation/complete"
TASK_UPDATED = "notifications/tasks"
TASK_STATUS = "notifications/tasks/status"
SUBSCRIPTIONS_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

# The lists that changed, by notification.
CHANGED_LISTS = {
    TOOLS_LIST_CHANGED: ("tools/list",),
    PROMPTS_LIST_CHANGED: ("prompts/list",),
    RESOURCES_LIST_CHANGED: ("resources/list", "resources/templates/list"),
}
# Dropped while the client does not read. Other notifications carry state and must arrive.
DROPPABLE = frozenset({LOG_MESSAGE, PROGRESS})


class NotificationParams(Struct, omit_defaults=True, kw_only=True):
    meta: dict[str, Any] | None = field(default=None, name="_meta")


class CancelledParams(NotificationParams, rename="camel", kw_only=True):
    # Optional since 2025-11-25, because tasks are cancelled differently; without it there is nothing to cancel.
    request_id: RequestId | None = None
    reason: str | None = None


class ProgressParams(NotificationParams, rename="camel", kw_only=True):
    progress_token: ProgressToken
    progress: float
    total: float | None = None
    message: str | None = None


def normalize_progress(params: Any) -> tuple[float | None, Any]:
    """Return the progress, or None if it is not a number, and the params with an invalid total removed and a text
    message.
    """
    if type(params) is Raw:
        try:
            # Decoded JSON contains only valid numbers.
            return msgspec.json.decode(params, type=ProgressParams).progress, params
        except msgspec.DecodeError:
            return None, params
    if type(params) is not ProgressParams:
        try:
            params = msgspec.convert(params, ProgressParams)
        except msgspec.ValidationError:
            return None, params
    if params.total is not None and not _is_number(params.total):
        params = replace(params, total=None)
    if params.message is not None and not isinstance(params.message, str):
        params = replace(params, message=str(params.message))
    return (params.progress if _is_number(params.progress) else None), params


def _is_number(value: Any) -> bool:
    """Return whether JSON can represent the number: finite, and within the range of a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


class LogMessageParams(NotificationParams, kw_only=True):
    level: LogLevel
    logger: str | None = None
    # No default: null is a valid log value.
    data: Any


class ResourceUpdatedParams(NotificationParams, kw_only=True):
    uri: str


class ElicitationCompleteParams(NotificationParams, rename="camel", kw_only=True):
    elicitation_id: str
