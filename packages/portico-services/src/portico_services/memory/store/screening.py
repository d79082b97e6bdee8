"""Screening of secrets and personal data before storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from portico import UsageError
from portico._lazy import LazyModule
from portico.extend import run_blocking
from portico_services.memory.errors import ContentBlocked

if TYPE_CHECKING:
    from portico import screening
else:
    # Compiles its patterns on import, so it is loaded with the first text.
    screening = LazyModule("portico.screening")

ScreeningAction = Literal["block", "redact", "allow"]

# Up to this many characters are scanned on the event loop, within a millisecond; longer texts use a thread.
MAX_INLINE_SCAN_CHARS = 4_000


class ContentScreenResult(NamedTuple):
    """Texts as they may be stored, and the names of the redacted and of the allowed findings."""

    texts: list[str]
    redacted: list[str]
    allowed: list[str]

    def notes(self) -> list[str]:
        """Return notes for the client. They never repeat a finding."""
        notes = [f"Redacted before storage: {_join_names(self.redacted)}."] if self.redacted else []
        return notes + ([f"Stored unchanged; it contains {_join_names(self.allowed)}."] if self.allowed else [])


class ContentScreen:
    """Screening policy for memories.

    `secrets` and `pii` are the actions for each category; `overrides` replaces them for single detectors, such as
    `{"ip_address": "allow"}`. `flag_placeholders` also screens obvious example values.
    """

    def __init__(
        self,
        secrets: ScreeningAction = "block",
        pii: ScreeningAction = "allow",
        overrides: Mapping[str, ScreeningAction] | None = None,
        *,
        flag_placeholders: bool = False,
    ) -> None:
        if not isinstance(overrides or {}, Mapping):
            raise UsageError(f"screening must be a table of detector names and actions, got {overrides!r}")
        self._actions, self._overrides, self._flag_placeholders = (
            (secrets, pii),
            dict(overrides or {}),
            flag_placeholders,
        )
        if self._overrides or not set(self._actions) <= set(get_args(ScreeningAction)):
            # Build the policy now to report invalid settings at startup.
            _ = self.describe

    @cached_property
    def describe(self) -> screening.ScreeningPolicy:
        """Return the screening policy, built on first use."""
        # Importing the scanner takes as long as all of a search, so it is loaded with the first text.
        return screening.ScreeningPolicy(*self._actions, self._overrides, flag_placeholders=self._flag_placeholders)

    async def screen(self, *texts: str | None) -> ContentScreenResult:
        """Screen texts without blocking the event loop; None is an empty text. Raises `ContentBlocked`."""
        values = [text or "" for text in texts]
        # A thread costs about as much as scanning a short text.
        if sum(map(len, values)) <= MAX_INLINE_SCAN_CHARS:
            return self.scan(values)
        return await run_blocking(self.scan, values)

    def scan(self, texts: Iterable[str]) -> ContentScreenResult:
        """Screen texts separately, so that adjacent texts cannot form a finding. Raises `ContentBlocked`."""
        remaining: list[str] = []
        hidden: set[str] = set()
        seen: set[str] = set()
        blocked: set[str] = set()
        for text in texts:
            if not text:
                remaining.append(text)
                continue
            screened = screening.screen(text, self.describe, count_allowed=True)
            remaining.append(screened.text or "")
            hidden |= screened.redacted.keys()
            seen |= screened.allowed.keys()
            blocked |= screened.blocked.keys()
        if blocked:
            raise ContentBlocked(
                f"Not stored: the text contains {_join_names(blocked)}. Remove it; write where the value is stored "
                "instead of the value.",
                found=sorted(blocked),
            )
        return ContentScreenResult(remaining, sorted(hidden), sorted(seen))

    def screen_text(self, text: str) -> tuple[str, list[str]]:
        """Return the text as it may be stored and the names of redacted findings. Call it in a thread, or for short
        texts.
        """
        result = screening.screen(text, self.describe)
        if not result.redacted and not result.blocked:
            return text, []
        # Scan again including allowed findings, which may overlap with the others.
        report = self.scan([text])
        return report.texts[0], report.redacted


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(name.replace("_", " ").replace("-", " ") for name in sorted(names))
