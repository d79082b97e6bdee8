"""The refusals of the memory service.

```
MemoryRefusal              its text is written for the model
├── NoSuchMemory           -32604  memory_not_found
├── Blocked                -32605  content_blocked: a secret or personal data, and the setting is to block
├── ModelFailed            -32606  llm_error: a model was needed, and did not answer
├── NoSuchPrompt           -32607  prompt_not_found
├── InvalidInput           -32608  validation_error
│   ├── UnknownNamespace           a protocol error where wrong arguments are one
│   └── MemoryChanged              version_conflict: the memory was changed since it was read
├── MemoryStoreFailed      -32609  storage_error
└── SyncFailed             -32610  sync_error
```

The numbers are those that clients of older memory servers know. They lie in a range that JSON-RPC keeps for itself, so
they travel beside the error unless a setting says otherwise.

`kind` is one of the error types that all tools share, so that callers can switch over them; `code` says more.
"""

from __future__ import annotations

from typing import Any, ClassVar

from portico import ToolError


class MemoryRefusal(ToolError):
    number: ClassVar[int] = -32603
    code: ClassVar[str] = "internal_error"
    kind = "ToolExecutionError"

    def __init__(self, message: str, *, retryable: bool | None = None, **details: Any) -> None:
        super().__init__(message, details={"code": self.code, "number": self.number, **details}, retryable=retryable)


class NoSuchMemory(MemoryRefusal):
    number, code, kind = -32604, "memory_not_found", "ResourceNotFound"

    def __init__(self, id: str) -> None:
        super().__init__(f"There is no memory {id[:80]!r}. memory_recall finds memories by what they say.", id=id[:80])


class Blocked(MemoryRefusal):
    number, code, kind = -32605, "content_blocked", "PermissionError"


class ModelFailed(MemoryRefusal):
    number, code, kind = -32606, "llm_error", "ToolExecutionError"
    retryable = True


class NoSuchPrompt(MemoryRefusal):
    number, code, kind = -32607, "prompt_not_found", "ResourceNotFound"


class InvalidInput(MemoryRefusal):
    number, code, kind = -32608, "validation_error", "ValidationError"


class UnknownNamespace(InvalidInput):
    def __init__(self, given: str, known: tuple[str, ...]) -> None:
        self.brief = f"Invalid namespace: {given[:80]}"
        super().__init__(f"{self.brief}. Use one of {', '.join(known)}.", namespace=given[:80], valid=list(known))


class MemoryChanged(InvalidInput):
    code = "version_conflict"

    def __init__(self, id: str, expected: int, found: int) -> None:
        super().__init__(
            f"The memory {id} is at version {found}, and version {expected} was expected: it was changed since. "
            "Read it with memory_get and try again with its version.",
            id=id,
            expected=expected,
            found=found,
        )


class MemoryStoreFailed(MemoryRefusal):
    number, code, kind = -32609, "storage_error", "ToolExecutionError"


class SyncFailed(MemoryRefusal):
    number, code, kind = -32610, "sync_error", "ToolExecutionError"
