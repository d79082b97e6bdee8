"""Tracebacks for the people whose code it is: without the frames through which we came to it."""

from __future__ import annotations

import os
from types import TracebackType

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SERVICES = os.path.join(_OURS, "services") + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = os.path.join(_STANDARD, "site-packages") + os.sep


def from_their_frame(failure: BaseException) -> ExcInfo:
    """For `exc_info=`: the traceback from the first frame of the user's, or of a service; all of it if it has none."""
    at = failure.__traceback__
    while at is not None and _is_between(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return type(failure), failure, at or failure.__traceback__


def _is_between(file: str) -> bool:
    if file.startswith(_OURS):
        return not file.startswith(_SERVICES)
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and not file.startswith(_INSTALLED))
