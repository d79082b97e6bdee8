"""Export formats of audit records: JSON lines, OCSF and CEF. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from portico import __version__
from portico.audit.checkpoints import SignedCheckpoint
from portico.audit.jsonl import checkpoint_line, record_line
from portico.audit.records import AuditEvent
from portico.protocol.jsonrpc import to_line
from portico_gateway.audit.store import StoredRow

Format = Literal["jsonl", "ocsf", "cef"]
FORMATS: tuple[Format, ...] = get_args(Format)

_FAILED = frozenset({"error", "failed", "invalid", "unknown", "denied", "limited", "cancelled", "refused"})
_REJECTED = frozenset({"denied", "limited", "refused"})
_OCSF = "1.3.0"
_OCSF_LEVELS = {1: "Informational", 2: "Low", 3: "Medium", 4: "High"}


def format_jsonl(row: StoredRow, record: AuditEvent | None = None) -> str:
    """Format a record as JSON with its chain and hash, which `portico audit verify --input` can verify."""
    chain, _, _, body, hash = row
    return record_line(chain, hash, body)


# OCSF: https://schema.ocsf.io, API Activity and Authentication


def format_ocsf(row: StoredRow, record: AuditEvent) -> str:
    chain, _, _, _, hash = row
    event = _authentication(record) if record.kind == "login" else _api_activity(record)
    event["metadata"] = {
        "version": _OCSF,
        "product": {"name": "Portico", "vendor_name": "Portico", "version": __version__},
        "uid": f"{chain}:{record.number}",
        "log_name": "audit",
        **({"correlation_uid": record.trace} if record.trace else {}),
    }
    event["unmapped"] = _build_unmapped(record, hash)
    return to_line(msgspec.json.encode(event)).decode()


def _base_event(record: AuditEvent, class_uid: int, activity: int) -> dict[str, Any]:
    failed = record.outcome in _FAILED
    level = 3 if record.outcome in _REJECTED else 2 if failed else 1
    event: dict[str, Any] = {
        "class_uid": class_uid,
        "category_uid": class_uid // 1000,
        "activity_id": activity,
        "type_uid": class_uid * 100 + activity,
        "time": record.at // 1000,
        "severity_id": level,
        "severity": _OCSF_LEVELS[level],
        "status_id": 2 if failed else 1,
        "status": "Failure" if failed else "Success",
        "status_detail": record.outcome,
    }
    if record.error:
        event["status_code"] = record.error
    if record.micros:
        event["duration"] = record.micros // 1000
    if record.address:
        event["src_endpoint"] = {"ip": record.address}
    return event


def _user(record: AuditEvent) -> dict[str, Any]:
    user: dict[str, Any] = {"uid": record.principal} if record.principal else {"name": "anonymous", "type_id": 0}
    if record.issuer:
        user["domain"] = record.issuer
    return user


def _api_activity(record: AuditEvent) -> dict[str, Any]:
    # OCSF distinguishes create, read, update and delete; reads are certain, while a tool call could be any of them.
    reads = record.method in ("resources/read", "prompts/get", "completion/complete") or record.method.endswith("list")
    event = _base_event(record, 6003, 2 if reads else 99)
    event["activity_name"] = "Read" if reads else record.method or record.kind
    event.setdefault("src_endpoint", {"name": "stdio"})
    actor: dict[str, Any] = {"user": _user(record)}
    if record.client:
        actor["app_name"] = record.client
    if record.client_id:
        actor["app_uid"] = record.client_id
    event["actor"] = actor
    api: dict[str, Any] = {"operation": record.name or record.method or record.kind}
    if record.owner:
        api["service"] = {"name": record.owner}
    if record.revision:
        api["version"] = record.revision
    if record.request:
        api["request"] = {"uid": record.request}
    if record.error:
        api["response"] = {"error": record.error}
    event["api"] = api
    return event


def _authentication(record: AuditEvent) -> dict[str, Any]:
    event = _base_event(record, 3002, 1)
    event["activity_name"] = "Logon"
    event["user"] = _user(record)
    event["service"] = {"name": record.owner}
    event["auth_protocol_id"] = 99
    event["auth_protocol"] = "Bearer"
    return event


_MAPPED = frozenset(
    {"at", "error", "address", "principal", "issuer", "client", "client_id", "revision", "request", "trace"}
)


def _build_unmapped(record: AuditEvent, hash: str) -> dict[str, Any]:
    """Return the fields without an OCSF counterpart."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return {**{name: value for name, value in fields.items() if name not in _MAPPED}, "hash": hash}


# CEF: a header with seven fields, then key=value pairs


def format_cef(row: StoredRow, record: AuditEvent) -> str:
    chain, _, _, _, hash = row
    failed, refused = record.outcome in _FAILED, record.outcome in _REJECTED
    severity = 7 if refused else 4 if failed else 1
    event_name = record.method or record.kind
    header = [
        "CEF:0",
        "Portico",
        "Portico",
        __version__,
        event_name,
        f"{event_name} {record.name}".strip(),
        str(severity),
    ]
    pairs = {
        "rt": str(record.at // 1000),
        "src": record.address,
        "suser": record.principal,
        "requestClientApplication": record.client,
        "act": record.decision,
        "outcome": record.outcome,
        "reason": record.error,
        "request": f"{record.owner}.{record.name}" if record.name else "",
        "in": str(record.received) if record.received else "",
        "out": str(record.sent) if record.sent else "",
        "externalId": f"{chain}:{record.number}",
        "cs1Label": "rule" if record.rule else "",
        "cs1": record.rule,
        "cs2Label": "arguments" if record.digest else "",
        "cs2": record.digest,
        "cs3Label": "trace" if record.trace else "",
        "cs3": record.trace,
        "cs4Label": "actors" if record.actors else "",
        "cs4": " ".join(record.actors),
        "cs5Label": "fields" if record.fields else "",
        "cs5": msgspec.json.encode(record.fields).decode() if record.fields else "",
        "cs6Label": "hash",
        "cs6": hash,
        "cn1Label": "microseconds" if record.micros else "",
        "cn1": str(record.micros) if record.micros else "",
        "cn2Label": "inner" if record.inner else "",
        "cn2": "1" if record.inner else "",
        "deviceExternalId": record.upstream,
        "app": record.revision,
    }
    extension = " ".join(f"{key}={_escape_cef_value(value)}" for key, value in pairs.items() if value)
    return "|".join(map(_escape_cef_header, header)) + "|" + extension


def _escape_cef_header(text: str) -> str:
    return _single_line(text).replace("\\", "\\\\").replace("|", "\\|")


def _escape_cef_value(text: str) -> str:
    r"""Escape a value for CEF. Line breaks become `\\n`."""
    escaped = text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n")
    return _single_line(escaped)


def _single_line(text: str) -> str:
    """Replace line breaks and control characters, which could start a new line or affect a terminal."""
    return "".join(item if item.isprintable() else " " for item in text)


# Checkpoints as events: a receiver that has the last one can detect a rollback to an older copy


def format_checkpoint(form: Format, stored: SignedCheckpoint, at: int) -> str:
    """Format a checkpoint as an event."""
    if form == "jsonl":
        return checkpoint_line(stored)
    record = AuditEvent(
        number=stored.number, at=at, method="audit/checkpoint", name=f"{stored.number}:{stored.hash}", outcome="ok"
    )
    return FORMATTERS[form](("checkpoint", stored.number, at, stored.body, stored.hash), record)


FORMATTERS: dict[Format, Callable[[StoredRow, AuditEvent], str]] = {
    "jsonl": format_jsonl,
    "ocsf": format_ocsf,
    "cef": format_cef,
}


def format_timestamp(at: int) -> str:
    """Format microseconds since the epoch as an ISO 8601 timestamp."""
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
