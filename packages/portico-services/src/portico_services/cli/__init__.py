"""Commands of the services."""

from __future__ import annotations

from portico.cli.commands import CommandEntry

FORMS = "portico_services.cli.specs"

COMMANDS = {
    name: CommandEntry(f"portico_services.cli.{name}", summary, forms=FORMS)
    for name, summary in {
        "memory": "store, search and sync memories",
        "items": "manage work items",
        "contracts": "lint, diff, lock and check tool contracts",
        "profiles": "list or show serve profiles",
    }.items()
} | {
    # An assistant waits for a hook at every prompt, so hooks do not load the other actions.
    "memory hook": CommandEntry("portico_services.cli.memory_hooks"),
}
