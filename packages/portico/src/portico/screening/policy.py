"""Screening policy: whether a finding blocks a text, is redacted or allowed, by kind and name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from portico import UsageError
from portico.screening.detector import iter_findings
from portico.screening.findings import KINDS, Finding, Kind, redaction_mark
from portico.screening.personal_numbers import NATIONAL_ID_NAMES
from portico.screening.vendor_keys import VENDOR_KEY_NAMES

Action = Literal["block", "redact", "allow"]
ACTIONS: tuple[Action, ...] = ("block", "redact", "allow")

_SECRETS = """
    api_key aws_secret_key azure_storage_key basic_auth bearer_token credential database_url jwt okta_token password
    password_hash private_key secret session_cookie token url_password url_secret
"""
_PII = "card date_of_birth driving_licence email eu_vat iban ip_address passport phone postal_code"
FINDING_NAMES: Mapping[str, Kind] = {
    **dict.fromkeys([*_SECRETS.split(), *VENDOR_KEY_NAMES], "secret"),
    **dict.fromkeys([*_PII.split(), *NATIONAL_ID_NAMES], "personal"),
}


class ScreeningPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Action for each kind of finding.

    `overrides` sets the action by name: `{"ip_address": "allow"}`. `min_confidence` is the minimum confidence of a
    finding, and `flag_placeholders` whether obvious examples count.
    """

    secrets: Action = "block"
    pii: Action = "allow"
    overrides: dict[str, Action] = {}
    min_confidence: float = 0.5
    flag_placeholders: bool = False

    def __post_init__(self) -> None:
        for name, action in self.overrides.items():
            # Rejected when it is loaded: with a misspelled name the override would silently never apply.
            if name not in FINDING_NAMES:
                # Deferred: needed only to explain a mistake in the settings.
                from difflib import get_close_matches

                suggestions = get_close_matches(name, FINDING_NAMES, 1)
                raise UsageError(
                    f"unknown finding {name!r}" + (f" (did you mean {suggestions[0]!r}?)" if suggestions else "")
                )
            _validate_action(action)
        _validate_action(self.secrets)
        _validate_action(self.pii)

    def action_for(self, finding: Finding) -> Action:
        return self.overrides.get(finding.name, self.secrets if finding.kind == "secret" else self.pii)

    @property
    def searched_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds to search for: those that are not allowed anyway."""
        kinds = {kind for kind, action in (("secret", self.secrets), ("personal", self.pii)) if action != "allow"}
        # A kind that is allowed as a whole may have single names that are not.
        kinds |= {FINDING_NAMES[name] for name, action in self.overrides.items() if action != "allow"}
        return tuple(kind for kind in ("secret", "personal") if kind in kinds)


def _validate_action(action: str) -> None:
    if action not in ACTIONS:
        raise UsageError(f"action must be one of {', '.join(ACTIONS)}, got {action!r}")


class ScreeningResult(NamedTuple):
    """The text to store, or None if it is blocked, and the number of findings by name. Values are never included."""

    text: str | None
    redacted: dict[str, int]
    blocked: dict[str, int]
    # Only if they were searched for.
    allowed: dict[str, int] = {}


def screen(text: str, policy: ScreeningPolicy = ScreeningPolicy(), *, count_allowed: bool = False) -> ScreeningResult:
    """Apply a policy to a text. Allowed kinds are searched only with `count_allowed`."""
    counts: dict[Action, Counter[str]] = {action: Counter() for action in ACTIONS}
    pieces: list[str] = []
    at = 0
    kinds = KINDS if count_allowed else policy.searched_kinds
    for finding in (
        iter_findings(text, kinds, policy.min_confidence, include_placeholders=policy.flag_placeholders)
        if kinds
        else ()
    ):
        action = policy.action_for(finding)
        counts[action][finding.name] += 1
        if action == "redact":
            # Positions refer to the original text, because normalization keeps every position.
            pieces += text[at : finding.start], redaction_mark(finding.name)
            at = finding.end
    redacted, blocked, allowed = (dict(counts[action]) for action in ("redact", "block", "allow"))
    # A blocked text is not returned at all, so that no caller stores it by mistake.
    if blocked:
        return ScreeningResult(None, redacted, blocked, allowed)
    return ScreeningResult("".join((*pieces, text[at:])) if pieces else text, redacted, {}, allowed)
