"""The audit record, and redaction of secrets in its texts."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from portico import screening

Kind = Literal["call", "login", "begin", "end", "dropped", "restored"]


class AuditEvent(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One audit record. Unknown members are omitted."""

    number: int
    # Start time, in microseconds since 1970.
    at: int
    kind: Kind = "call"
    method: str = ""
    # Owner and name of the component: an upstream's alias, a service, a mount, or the server itself.
    owner: str = ""
    name: str = ""
    # The name that the client used, if it differs.
    shown: str = ""
    principal: str = ""
    issuer: str = ""
    # The parties acting for the principal, the nearest first.
    actors: tuple[str, ...] = ()
    client: str = ""
    client_id: str = ""
    address: str = ""
    revision: str = ""
    request: str = ""
    # HMAC-SHA256 of the arguments as received.
    digest: str = ""
    fields: dict[str, Any] = {}
    decision: str = ""
    rule: str = ""
    # Decision of rules in shadow mode.
    shadow: str = ""
    outcome: str = ""
    # Error code or type; never the message, which may contain data.
    error: str = ""
    micros: int = 0
    received: int = 0
    sent: int = 0
    upstream: str = ""
    trace: str = ""
    # Called by a handler rather than by a client.
    inner: bool = False
    # The id of the task that ran it.
    job: str = ""
    # For records about the audit itself.
    note: dict[str, Any] = {}


# Personal data is not redacted here: an audit has to name the principals.
_SECRETS: tuple[Literal["secret"], ...] = ("secret",)


def redact_secrets(text: str) -> str:
    """Return the text with its secrets redacted."""
    result = screening.find(text, _SECRETS)
    return screening.redact(text, result) if result else text
