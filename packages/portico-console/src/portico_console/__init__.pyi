# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico_console.console import Console as Console
from portico_console.session_auth import ConsoleAccess as ConsoleAccess
from portico_console.site import (
    ConsoleSite as ConsoleSite,
    attach_console as attach_console,
)
