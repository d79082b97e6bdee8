"""Exceptions of the memory service.

    MemoryToolError            message written for the model
    ├── MemoryNotFound         -32604  memory_not_found
    ├── ContentBlocked         -32605  content_blocked: a secret or personal data, and the policy is to block
    ├── ModelError             -32606  llm_error: a required model did not respond
    ├── SavedPromptNotFound    -32607  prompt_not_found
    ├── InvalidInput           -32608  validation_error
    │   └── UnknownNamespace           a protocol error where invalid arguments are one
    └── SyncError              -32610  sync_error

The base class itself has -32609 storage_error; InvalidInput also has the code version_conflict.

The numbers are known to clients of older memory servers. They lie in a range that JSON-RPC reserves, so they are sent
as error details unless a setting makes them JSON-RPC codes.

`error_type` is one of the error types that all tools share, so that callers can switch on it; `error_code` is more
specific.
"""

from __future__ import annotations

from typing import Any, ClassVar

from portico import ToolError

STORAGE_ERROR = -32609


class MemoryToolError(ToolError):
    """Base class of errors that a memory tool reports to the model."""

    # JSON-RPC 2.0, section 5.1: internal error.
    jsonrpc_code: ClassVar[int] = -32603
    error_code: ClassVar[str] = "internal_error"
    error_type = "ToolExecutionError"

    def __init__(
        self, message: str, *, error_type: str | None = None, retryable: bool | None = None, **details: Any
    ) -> None:
        # `code` and `number` may be among the details.
        super().__init__(
            message,
            error_type=error_type,
            details={"code": self.error_code, "number": self.jsonrpc_code, **details},
            retryable=retryable,
        )


class MemoryNotFound(MemoryToolError):
    jsonrpc_code, error_code, error_type = -32604, "memory_not_found", "ResourceNotFound"

    def __init__(self, id: str) -> None:
        super().__init__(f"Memory {id[:80]!r} not found. Use memory_recall to search by content.", id=id[:80])


class ContentBlocked(MemoryToolError):
    jsonrpc_code, error_code, error_type = -32605, "content_blocked", "PermissionError"


class ModelError(MemoryToolError):
    jsonrpc_code, error_code, error_type = -32606, "llm_error", "ToolExecutionError"
    # A model may be busy or starting, so a later call can succeed.
    retryable = True


class SavedPromptNotFound(MemoryToolError):
    jsonrpc_code, error_code, error_type = -32607, "prompt_not_found", "ResourceNotFound"


class InvalidInput(MemoryToolError):
    jsonrpc_code, error_code, error_type = -32608, "validation_error", "ValidationError"


class UnknownNamespace(InvalidInput):
    def __init__(self, namespace: str, choices: tuple[str, ...]) -> None:
        # Short form: the message of the protocol error.
        self.brief = f"Invalid namespace: {namespace[:80]}"
        super().__init__(
            f"{self.brief}. Use one of {', '.join(choices)}.", namespace=namespace[:80], valid=list(choices)
        )


class SyncError(MemoryToolError):
    jsonrpc_code, error_code, error_type = -32610, "sync_error", "ToolExecutionError"
