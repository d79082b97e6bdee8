"""What becomes of a secret, or of personal data, before anything is stored."""

from __future__ import annotations

from typing import Literal

from portico.services.memory.errors import Blocked
from portico.services.memory.screening import find, redact
from portico.services.memory.screening.findings import Kind

Policy = Literal["block", "redact", "allow"]
POLICIES: tuple[Policy, ...] = ("block", "redact", "allow")


class Guard:
    """`secrets` and `personal`: what to do about each kind."""

    def __init__(self, secrets: Policy = "block", personal: Policy = "allow") -> None:
        self.secrets = secrets
        self.personal = personal
        policies: tuple[tuple[Kind, Policy], ...] = (("secret", secrets), ("personal", personal))
        self._policies = dict(policies)
        self._kinds = tuple(kind for kind, policy in policies if policy != "allow")

    def passed(self, text: str) -> tuple[str, list[str]]:
        """The text as it may be stored, and the kinds of what was blacked out. What was found is never repeated."""
        found = find(text, self._kinds) if self._kinds else []
        if not found:
            return text, []
        blocked = sorted({one.name for one in found if self._policies[one.kind] == "block"})
        if blocked:
            raise Blocked(
                f"Not stored: this contains {_listed(blocked)}. Take it out, and say where it is kept instead of "
                "what it "
                "is.",
                found=blocked,
            )
        return redact(text, found), sorted({one.name for one in found})

    @staticmethod
    def note(names: list[str]) -> list[str]:
        return [f"Blacked out before it was stored: {_listed(names)}."] if names else []


def _listed(names: list[str]) -> str:
    return ", ".join(one.replace("_", " ").replace("-", " ") for one in names)
