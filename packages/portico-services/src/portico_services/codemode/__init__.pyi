# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico_services.codemode.server import CodeModeServer as CodeModeServer
from portico_services.codemode.service import CodeMode as CodeMode
