"""The audit record, and the masking of secrets in the texts that it holds."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from portico import screening

Kind = Literal["call", "login", "begin", "end", "dropped", "restored"]


class CallRecord(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One record. What is not known is left out."""

    number: int
    # Microseconds since 1970, when it began.
    at: int
    kind: Kind = "call"
    method: str = ""
    # Whose it is and what it is called there: an upstream's alias, a service, a mount, or the server itself.
    owner: str = ""
    name: str = ""
    # What the client called it, where that is something else.
    shown: str = ""
    principal: str = ""
    issuer: str = ""
    # On whose behalf the principal acts, the nearest first.
    actors: tuple[str, ...] = ()
    client: str = ""
    client_id: str = ""
    address: str = ""
    revision: str = ""
    request: str = ""
    # HMAC-SHA256 of the arguments as they came.
    digest: str = ""
    fields: dict[str, Any] = {}
    decision: str = ""
    rule: str = ""
    # What rules that are only tried out would have said.
    shadow: str = ""
    outcome: str = ""
    # The code of an error, or its kind; never its words.
    error: str = ""
    micros: int = 0
    received: int = 0
    sent: int = 0
    upstream: str = ""
    trace: str = ""
    # A body called it, and no client.
    inner: bool = False
    # The task that ran it.
    job: str = ""
    # Of records that are about the audit itself.
    note: dict[str, Any] = {}


_SECRETS: tuple[Literal["secret"], ...] = ("secret",)


def redact_secrets(text: str) -> str:
    """Return the text with its secrets masked."""
    found = screening.find(text, _SECRETS)
    return screening.redact(text, found) if found else text
