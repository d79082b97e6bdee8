"""Live Python: an image that stays alive between calls, that can be questioned, and that cannot hurt the machine.

`Live` is the service; `attach` and `Attached` serve the objects of a running application. Each is imported when it is
first used: this file is also read inside the jail, where there is nothing but the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portico.services.live.attached import Attached, attach
    from portico.services.live.service import Live

_HOMES = {
    "Attached": "portico.services.live.attached",
    "Live": "portico.services.live.service",
    "attach": "portico.services.live.attached",
}

__all__ = ["Attached", "Live", "attach"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
