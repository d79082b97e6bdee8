"""Errors of this service.

```
SystemToolError        the message is written for the calling model
├── PathNotAllowed     a path outside the allowed paths, or leading out of them
├── NotFound           no such file, directory, log, entry or key
├── CorruptData        bytes that do not have the expected format
└── MissingDependency  a package or program that is not installed on this machine
```

The service handles the subclasses. The base class has an `outcome`: "denied" (inside the allowed paths but never
readable, or a write where only reading is allowed), "unreadable" (it exists but cannot be read: a device, a pipe,
another user's file) or "invalid" (an invalid argument).

No message contains a path that the caller did not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from portico import ToolError

_ERROR_TYPES = {"denied": "PermissionError", "invalid": "ValidationError"}


class SystemToolError(ToolError):
    error_type: str = "ToolExecutionError"
    # Outcome in the audit log.
    outcome: str = "failed"

    def __init__(self, message: str, *, outcome: Literal["denied", "unreadable", "invalid"] | None = None) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome
            self.error_type = _ERROR_TYPES.get(outcome, self.error_type)

    def redact(self, hide: Callable[[str], str]) -> None:
        """Redact user and host names in the message: it may quote a path or a log entry."""
        self.args = (hide(str(self)),)


class PathNotAllowed(SystemToolError):
    error_type = "PermissionError"
    outcome = "outside"


class NotFound(SystemToolError):
    error_type = "ResourceNotFound"
    outcome = "absent"


class CorruptData(SystemToolError):
    outcome = "damaged"


class MissingDependency(SystemToolError):
    outcome = "unavailable"


def require_package(name: str, purpose: str) -> Any:
    """Import an optional package. Raises MissingDependency with the installation command."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingDependency(
            f"{purpose} needs the Python package {name!r}, which is not installed here: "
            "pip install 'portico-services[system]'"
        ) from None
