"""Tracebacks for server authors, without the frames of Portico."""

from __future__ import annotations

import os
import sys
from types import TracebackType

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

# Packages whose frames do not help the author of a server. Frames of services do.
_PACKAGES = ("portico", "portico_gateway", "portico_console")
_STDLIB_DIR = os.path.dirname(os.__file__) + os.sep
_SITE_PACKAGES_DIR = os.path.join(_STDLIB_DIR, "site-packages") + os.sep


def trim_traceback(failure: BaseException) -> ExcInfo:
    """Return a value for `exc_info=`: the traceback from the first frame of user or service code, or all of it."""
    at = failure.__traceback__
    while at is not None and _is_internal_frame(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return type(failure), failure, at or failure.__traceback__


def _is_internal_frame(file: str) -> bool:
    if file.startswith(package_folders(*_PACKAGES)):
        return True
    return file.startswith("<frozen") or (file.startswith(_STDLIB_DIR) and not file.startswith(_SITE_PACKAGES_DIR))


def package_folders(*names: str) -> tuple[str, ...]:
    """Return the folders of the given packages that are imported. Only those can have frames."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in names)
    return tuple(os.path.dirname(file) + os.sep for file in files if file)
