# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico_services.livepython.attachment import (
    AttachedPython as AttachedPython,
    attach as attach,
)
from portico_services.livepython.service import LivePython as LivePython
