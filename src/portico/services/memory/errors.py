"""What can go wrong here, drawn before it is written.

```
Trouble                everything this service says no with; its text is written for whoever asked
├── NoSuchMemory       -32604  memory_not_found
├── Blocked            -32605  content_blocked: a secret or personal data, and the setting is to block
├── ModelFailed        -32606  llm_error
├── NoSuchPrompt       -32607  prompt_not_found
├── Invalid            -32608  validation_error: an argument that cannot be meant
│   ├── UnknownNamespace       an error of the protocol where arguments are one
│   └── VersionConflict        somebody else was quicker
├── StorageFailed      -32609  storage_error
└── SyncFailed         -32610  sync_error
```

The numbers are those that clients of older memory servers know. They lie in a range that JSON-RPC keeps for itself, so
they travel beside the error unless a setting says otherwise.
"""

from __future__ import annotations

from typing import Any, ClassVar

from portico.wire.errors import Error


class Trouble(Error):
    """Everything this service says no with."""

    number: ClassVar[int] = -32603
    code: ClassVar[str] = "internal_error"
    kind: ClassVar[str] = "Internal"
    # Whether the same call may work in a moment.
    retryable: bool = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    def described(self) -> dict[str, Any]:
        """The same for a program."""
        return {
            "code": self.code,
            "number": self.number,
            "error_type": self.kind,
            "retryable": self.retryable,
            **self.details,
        }


class NoSuchMemory(Trouble):
    number, code, kind = -32604, "memory_not_found", "ResourceNotFound"

    def __init__(self, id: str, why: str = "") -> None:
        super().__init__(
            f"There is no memory {id[:80]!r}{why}. memory_recall finds memories by what they say.", id=id[:80]
        )


class Blocked(Trouble):
    number, code, kind = -32605, "content_blocked", "SecurityViolation"


class ModelFailed(Trouble):
    number, code, kind = -32606, "llm_error", "Upstream"
    retryable = True


class NoSuchPrompt(Trouble):
    number, code, kind = -32607, "prompt_not_found", "ResourceNotFound"


class Invalid(Trouble):
    number, code, kind = -32608, "validation_error", "Validation"


class UnknownNamespace(Invalid):
    def __init__(self, given: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"Invalid namespace: {given[:80]}. Use one of {', '.join(known)}.", namespace=given[:80], valid=list(known)
        )
        self.brief = f"Invalid namespace: {given[:80]}"


class VersionConflict(Invalid):
    code = "version_conflict"

    def __init__(self, id: str, expected: int, found: int) -> None:
        super().__init__(
            f"The memory {id} is at version {found}, and version {expected} was expected: somebody changed it since. "
            "Read it with memory_get and try again with its version.",
            id=id,
            expected=expected,
            found=found,
        )


class StorageFailed(Trouble):
    number, code, kind = -32609, "storage_error", "Storage"
    retryable = True


class SyncFailed(Trouble):
    number, code, kind = -32610, "sync_error", "Sync"
