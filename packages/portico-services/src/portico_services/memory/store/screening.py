"""What becomes of a secret, or of personal data, before anything is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from portico import UsageError
from portico._lazy import LazyModule
from portico_services.memory.errors import Blocked

if TYPE_CHECKING:
    from portico import screening
else:
    # Its patterns are compiled with the first text that is looked through.
    screening = LazyModule("portico.screening")

Policy = Literal["block", "redact", "allow"]

# As many characters are looked through on the loop, within a millisecond; more have a thread.
QUICK = 4_000


class Passed(NamedTuple):
    """Texts as they may be stored, and the names of what was blacked out in them and of what was let through."""

    texts: list[str]
    hidden: list[str]
    seen: list[str]

    def notes(self) -> list[str]:
        """What the client is told. What was found is never repeated."""
        said = [f"Blacked out before it was stored: {_listed(self.hidden)}."] if self.hidden else []
        return said + ([f"Stored as it is, and it contains {_listed(self.seen)}."] if self.seen else [])


class Guard:
    """`secrets` and `personal`: what to do about each kind. `names` is for what a kind is too coarse for, such as
    `{"ip_address": "allow"}`. `examples` says whether what is plainly made up counts, too."""

    def __init__(
        self,
        secrets: Policy = "block",
        personal: Policy = "allow",
        names: Mapping[str, Policy] | None = None,
        *,
        examples: bool = False,
    ) -> None:
        if not isinstance(names or {}, Mapping):
            raise UsageError(f"{names!r} is no table of names and what to do about them")
        self._policies, self._names, self._examples = (secrets, personal), dict(names or {}), examples
        if self._names or not set(self._policies) <= set(get_args(Policy)):
            # What is wrong with them is said now.
            _ = self.rules

    @cached_property
    def rules(self) -> screening.Rules:
        # Loaded with the first text: what finds secrets takes as long to load as all of a search.
        return screening.Rules(*self._policies, self._names, examples=self._examples)

    async def check(self, *texts: str | None) -> Passed:
        """As `look`, without holding up the loop. None is an empty text."""
        given = [one or "" for one in texts]
        if sum(map(len, given)) <= QUICK:
            return self.look(given)
        return await asyncio.to_thread(self.look, given)

    def look(self, texts: Iterable[str]) -> Passed:
        """Each by itself: what is harmless alone does not become a secret by what stands beside it."""
        kept: list[str] = []
        hidden: set[str] = set()
        seen: set[str] = set()
        blocked: set[str] = set()
        for text in texts:
            if not text:
                kept.append(text)
                continue
            screened = screening.screen(text, self.rules, tell=True)
            kept.append(screened.text or "")
            hidden |= screened.redacted.keys()
            seen |= screened.allowed.keys()
            blocked |= screened.blocked.keys()
        if blocked:
            raise Blocked(
                f"Not stored: this contains {_listed(blocked)}. Take it out, and say where it is kept instead of "
                "what it is.",
                found=sorted(blocked),
            )
        return Passed(kept, sorted(hidden), sorted(seen))

    def passed(self, text: str) -> tuple[str, list[str]]:
        """The text as it may be stored, and the names of what was blacked out. For threads, and for short texts."""
        found = screening.screen(text, self.rules)
        if not found.redacted and not found.blocked:
            return text, []
        # What is allowed is looked for as well: it may overlap with what is not.
        whole = self.look([text])
        return whole.texts[0], whole.hidden


def _listed(names: Iterable[str]) -> str:
    return ", ".join(one.replace("_", " ").replace("-", " ") for one in sorted(names))
