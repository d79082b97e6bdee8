"""A record as others read it: a line of JSON, an event of OCSF, or one of CEF. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from portico import __version__
from portico.audit.checkpoints import StoredCheckpoint
from portico.audit.jsonl import checkpoint_line, record_line
from portico.audit.records import CallRecord
from portico.protocol.jsonrpc import to_line
from portico_gateway.audit.store import StoredRow

Format = Literal["jsonl", "ocsf", "cef"]
FORMATS: tuple[Format, ...] = get_args(Format)

_FAILED = frozenset({"error", "failed", "invalid", "unknown", "denied", "limited", "cancelled", "refused"})
_REFUSED = frozenset({"denied", "limited", "refused"})
_OCSF = "1.3.0"
_OCSF_LEVELS = {1: "Informational", 2: "Low", 3: "Medium", 4: "High"}


def jsonl(row: StoredRow, record: CallRecord | None = None) -> str:
    """All of it, with its place in its chain: what `portico audit verify --file` can verify."""
    chain, _, _, body, hash = row
    return record_line(chain, hash, body)


# OCSF: https://schema.ocsf.io, API Activity and Authentication


def ocsf(row: StoredRow, record: CallRecord) -> str:
    chain, _, _, _, hash = row
    event = _authentication(record) if record.kind == "login" else _api_activity(record)
    event["metadata"] = {
        "version": _OCSF,
        "product": {"name": "Portico", "vendor_name": "Portico", "version": __version__},
        "uid": f"{chain}:{record.number}",
        "log_name": "audit",
        **({"correlation_uid": record.trace} if record.trace else {}),
    }
    event["unmapped"] = _unmapped(record, hash)
    return to_line(msgspec.json.encode(event)).decode()


def _common(record: CallRecord, class_uid: int, activity: int) -> dict[str, Any]:
    failed = record.outcome in _FAILED
    level = 3 if record.outcome in _REFUSED else 2 if failed else 1
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


def _user(record: CallRecord) -> dict[str, Any]:
    user: dict[str, Any] = {"uid": record.principal} if record.principal else {"name": "anonymous", "type_id": 0}
    if record.issuer:
        user["domain"] = record.issuer
    return user


def _api_activity(record: CallRecord) -> dict[str, Any]:
    # Create, read, update, delete: a tool says none of them for certain, and a read is one.
    reads = record.method in ("resources/read", "prompts/get", "completion/complete") or record.method.endswith("list")
    event = _common(record, 6003, 2 if reads else 99)
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


def _authentication(record: CallRecord) -> dict[str, Any]:
    event = _common(record, 3002, 1)
    event["activity_name"] = "Logon"
    event["user"] = _user(record)
    event["service"] = {"name": record.owner}
    event["auth_protocol_id"] = 99
    event["auth_protocol"] = "Bearer"
    return event


_MAPPED = frozenset(
    {"at", "error", "address", "principal", "issuer", "client", "client_id", "revision", "request", "trace"}
)


def _unmapped(record: CallRecord, hash: str) -> dict[str, Any]:
    """What OCSF has no place for."""
    said: dict[str, Any] = msgspec.to_builtins(record)
    return {**{name: value for name, value in said.items() if name not in _MAPPED}, "hash": hash}


# CEF: a header of seven parts, then key=value


def cef(row: StoredRow, record: CallRecord) -> str:
    chain, _, _, _, hash = row
    failed, refused = record.outcome in _FAILED, record.outcome in _REFUSED
    severity = 7 if refused else 4 if failed else 1
    what = record.method or record.kind
    header = ["CEF:0", "Portico", "Portico", __version__, what, f"{what} {record.name}".strip(), str(severity)]
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
    said = " ".join(f"{key}={_cef_value(value)}" for key, value in pairs.items() if value)
    return "|".join(map(_cef_header, header)) + "|" + said


def _cef_header(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace("|", "\\|")


def _cef_value(text: str) -> str:
    """Line ends may stand in a value, as `\\n`."""
    escaped = text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n")
    return _one_line(escaped)


def _one_line(text: str) -> str:
    """Nothing that would begin another line, or that a terminal would obey."""
    return "".join(one if one.isprintable() else " " for one in text)


# A checkpoint, as an event of its own: a receiver that has the last one can say that an older copy was put back


def written_checkpoint(form: Format, stored: StoredCheckpoint, at: int) -> str:
    if form == "jsonl":
        return checkpoint_line(stored)
    record = CallRecord(
        number=stored.number, at=at, method="audit/checkpoint", name=f"{stored.number}:{stored.hash}", outcome="ok"
    )
    return WRITERS[form](("checkpoint", stored.number, at, stored.body, stored.hash), record)


WRITERS: dict[Format, Callable[[StoredRow, CallRecord], str]] = {"jsonl": jsonl, "ocsf": ocsf, "cef": cef}


def moment(at: int) -> str:
    """Microseconds as people and programs read them."""
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
