"""Code mode: sandboxed scripts that call a server's tools.

`CodeMode` is the service, `CodeModeServer` a server that lists little else. The exports are lazy.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
