"""Live Python: sandboxed Python sessions that keep their state between calls and can be inspected.

`LivePython` is the service; `attach` and `AttachedPython` serve the objects of a running application. The exports are
lazy: this module is also imported inside the sandbox, where only the standard library is available.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
