"""Rules: whether a finding blocks a text, is redacted or is allowed, by its kind and by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from portico import UsageError
from portico.screening.detector import scan
from portico.screening.findings import KINDS, Finding, Kind, mark
from portico.screening.personal_numbers import IDENTITY_NAMES
from portico.screening.vendor_keys import PROVIDER_NAMES

Action = Literal["block", "redact", "allow"]
ACTIONS: tuple[Action, ...] = ("block", "redact", "allow")

_SECRETS = """
    api_key aws_secret_key azure_storage_key basic_auth bearer_token credential database_url jwt okta_token password
    password_hash private_key secret session_cookie token url_password url_secret
"""
_PERSONAL = "card date_of_birth driving_licence email eu_vat iban ip_address passport phone postal_code"
NAMES: Mapping[str, Kind] = {
    **dict.fromkeys([*_SECRETS.split(), *PROVIDER_NAMES], "secret"),
    **dict.fromkeys([*_PERSONAL.split(), *IDENTITY_NAMES], "personal"),
}


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The action for each kind of finding. `names` overrides it for single names: `{"ip_address": "allow"}`; `least` is
    the lowest confidence that counts, and `examples` says whether what is plainly made up counts, too."""

    secrets: Action = "block"
    personal: Action = "allow"
    names: dict[str, Action] = {}
    least: float = 0.5
    examples: bool = False

    def __post_init__(self) -> None:
        for name, action in self.names.items():
            if name not in NAMES:
                from difflib import get_close_matches

                near = get_close_matches(name, NAMES, 1)
                raise UsageError(
                    f"nothing is found by the name {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
                )
            _check(action)
        _check(self.secrets)
        _check(self.personal)

    def action(self, finding: Finding) -> Action:
        return self.names.get(finding.name, self.secrets if finding.kind == "secret" else self.personal)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that have to be searched for: those that are not allowed anyway."""
        wanted = {kind for kind, action in (("secret", self.secrets), ("personal", self.personal)) if action != "allow"}
        wanted |= {NAMES[name] for name, action in self.names.items() if action != "allow"}
        return tuple(kind for kind in ("secret", "personal") if kind in wanted)


def _check(action: str) -> None:
    if action not in ACTIONS:
        raise UsageError(f"{action!r} is none of {', '.join(ACTIONS)}")


class Screened(NamedTuple):
    """The text as it may be stored, None if it is blocked, and the number of findings by name. The values themselves
    are never repeated."""

    text: str | None
    redacted: dict[str, int]
    blocked: dict[str, int]
    # As far as they were searched for.
    allowed: dict[str, int] = {}


def screen(text: str, rules: Rules = Rules(), *, tell: bool = False) -> Screened:
    """Apply the rules to a text. Kinds that are allowed anyway are searched for only with `tell`, to count them."""
    counts: dict[Action, Counter[str]] = {action: Counter() for action in ACTIONS}
    pieces: list[str] = []
    at = 0
    kinds = KINDS if tell else rules.kinds
    for finding in scan(text, kinds, rules.least, with_examples=rules.examples) if kinds else ():
        action = rules.action(finding)
        counts[action][finding.name] += 1
        if action == "redact":
            pieces += text[at : finding.start], mark(finding.name)
            at = finding.end
    redacted, blocked, allowed = (dict(counts[action]) for action in ("redact", "block", "allow"))
    if blocked:
        return Screened(None, redacted, blocked, allowed)
    return Screened("".join((*pieces, text[at:])) if pieces else text, redacted, {}, allowed)
