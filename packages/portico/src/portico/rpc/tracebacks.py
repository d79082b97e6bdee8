"""Tracebacks for the people whose code it is: without the frames through which we came to it."""

from __future__ import annotations

import os
import sys
from types import TracebackType

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

# The packages whose frames are of no use to the author of a server. Those of services are.
_PACKAGES = ("portico", "portico_gateway", "portico_console")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = os.path.join(_STANDARD, "site-packages") + os.sep


def from_their_frame(failure: BaseException) -> ExcInfo:
    """For `exc_info=`: the traceback from the first frame of the user's, or of a service; all of it if it has none."""
    at = failure.__traceback__
    while at is not None and _is_between(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return type(failure), failure, at or failure.__traceback__


def _is_between(file: str) -> bool:
    if file.startswith(package_folders(*_PACKAGES)):
        return True
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and not file.startswith(_INSTALLED))


def package_folders(*names: str) -> tuple[str, ...]:
    """Return the folders of those packages that are imported: no other can have frames."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in names)
    return tuple(os.path.dirname(file) + os.sep for file in files if file)
