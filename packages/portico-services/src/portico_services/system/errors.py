"""Errors of this service.

```
SystemToolError        base class; the message is written for the calling model
├── PathNotAllowed     a path outside the allowed paths, or leading out of them
├── AccessDenied       inside, but never readable; or a write where only reading is allowed
├── NotFound           no such file, directory, log, entry or key
├── ReadFailed         it exists but cannot be read: a device, a pipe, another user's file
├── CorruptData        bytes that do not have the expected format
├── InvalidArgument    an invalid argument
└── MissingDependency  a package or program that is not installed on this machine
```

No message contains a path that the caller did not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from portico import ToolError


class SystemToolError(ToolError):
    error_type: str = "ToolExecutionError"
    # Outcome in the audit log.
    outcome = "failed"

    def redact(self, hide: Callable[[str], str]) -> None:
        """Redact user and host names in the message: it may quote a path or a log entry."""
        self.args = (hide(str(self)),)


class PathNotAllowed(SystemToolError):
    error_type = "PermissionError"
    outcome = "outside"


class AccessDenied(SystemToolError):
    error_type = "PermissionError"
    outcome = "denied"


class NotFound(SystemToolError):
    error_type = "ResourceNotFound"
    outcome = "absent"


class ReadFailed(SystemToolError):
    outcome = "unreadable"


class CorruptData(SystemToolError):
    outcome = "damaged"


class InvalidArgument(SystemToolError):
    error_type = "ValidationError"
    outcome = "invalid"


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
