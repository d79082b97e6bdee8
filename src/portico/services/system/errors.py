"""What can go wrong here, drawn before it is written.

```
Trouble                everything this service says no with; its text is written for whoever asked
├── Outside            a path that is under no allowed root, or leads out of one
├── Denied             inside, but kept from everybody; or writing where only reading is allowed
├── Absent             no such file, folder, log, entry or key
├── Unreadable         there, but not to be read: a device, a pipe, another user's
├── Damaged            bytes that are not what they claim to be
├── Invalid            an argument that cannot be meant
└── Unavailable        a package or a program that this machine does not have
```

No text names a path that the asker did not name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Trouble(Exception):
    """Everything this service says no with."""

    # For programs, in the words that are usual for it.
    kind = "ToolExecutionError"


class Outside(Trouble):
    kind = "PermissionError"


class Denied(Trouble):
    kind = "PermissionError"


class Absent(Trouble):
    kind = "ResourceNotFound"


class Unreadable(Trouble):
    pass


class Damaged(Trouble):
    pass


class Invalid(Trouble):
    kind = "ValidationError"


class Unavailable(Trouble):
    pass


def package(name: str, purpose: str) -> Any:
    """An optional package, or words that say what to install."""
    try:
        return import_module(name)
    except ImportError:
        raise Unavailable(
            f"{purpose} needs the Python package {name!r}, which is not installed here: pip install 'portico[system]'"
        ) from None
