"""The errors of this service.

```
MachineError           every refusal of this service; its text is written for the model that called
├── Outside            a path that is under no allowed root, or leads out of one
├── Denied             inside, but never shown; or writing where only reading is allowed
├── Absent             no such file, folder, log, entry or key
├── Unreadable         it exists and cannot be read: a device, a pipe, another user's file
├── DamagedData        bytes that are not what they claim to be
├── InvalidArgument    an argument that makes no sense
└── MissingDependency  a package or a program that this machine does not have
```

No text names a path that the caller did not name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from portico import ToolError


class MachineError(ToolError):
    kind: str = "ToolExecutionError"
    # The word for it in the audit trail.
    outcome = "failed"

    def redact(self, hide: Callable[[str], str]) -> None:
        """Replace the names of people and machines in the text: it may quote a path or an entry of a log."""
        self.args = (hide(str(self)),)


class Outside(MachineError):
    kind = "PermissionError"
    outcome = "outside"


class Denied(MachineError):
    kind = "PermissionError"
    outcome = "denied"


class Absent(MachineError):
    kind = "ResourceNotFound"
    outcome = "absent"


class Unreadable(MachineError):
    outcome = "unreadable"


class DamagedData(MachineError):
    outcome = "damaged"


class InvalidArgument(MachineError):
    kind = "ValidationError"
    outcome = "invalid"


class MissingDependency(MachineError):
    outcome = "unavailable"


def package(name: str, purpose: str) -> Any:
    """An optional package. Raises MissingDependency with what to install."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingDependency(
            f"{purpose} needs the Python package {name!r}, which is not installed here: "
            "pip install 'portico-services[system]'"
        ) from None
