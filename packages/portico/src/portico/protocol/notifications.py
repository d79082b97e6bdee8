"""Notifications: what is said without expecting an answer."""

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


def read_progress(params: Any) -> tuple[float | None, Any]:
    """How far it is, None if that is no number, and the params without a total that is none; a message is a text."""
    if type(params) is Raw:
        try:
            # What came as JSON has numbers that JSON can say.
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
    """Whether JSON has it: there is no infinity, and no integer beyond what a float can hold is a progress."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


class MessageParams(NoticeParams, kw_only=True):
    level: LogLevel
    logger: str | None = None
    # Without a default, because null is something a server may log.
    data: Any


class ResourceUpdatedParams(NoticeParams, kw_only=True):
    uri: str


class ElicitationCompleteParams(NoticeParams, rename="camel", kw_only=True):
    elicitation_id: str
