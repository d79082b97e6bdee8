"""Live Python: an image that stays alive between calls, that can be questioned, and that cannot hurt the machine.

`Live` is the service; `attach` and `Attached` serve the objects of a running application. Each is imported when it is
first used: this file is also read inside the jail, where there is nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_services.livepython.attachment import Attached, attach
    from portico_services.livepython.service import Live

_HOMES = {
    "portico_services.livepython.attachment": ("Attached", "attach"),
    "portico_services.livepython.service": ("Live",),
}

__all__ = ["Attached", "Live", "attach"]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
