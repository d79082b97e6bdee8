# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico_services.workitems.service import Tasks as Tasks
