"""The commands of the services."""

from __future__ import annotations

from portico.cli.commands import CommandEntry

FORMS = "portico_services.cli.specs"

COMMANDS = {
    "contracts": CommandEntry(
        "portico_services.cli.contracts", "what tools promise: render, lint, diff, codegen, lock, check", forms=FORMS
    ),
    "memory": CommandEntry(
        "portico_services.cli.memory", "store and find memories; answer the hooks of assistants", forms=FORMS
    ),
    "tasks": CommandEntry("portico_services.cli.items", "work items: add, list, next, done, tree, …", forms=FORMS),
    "profiles": CommandEntry(
        "portico_services.cli.profiles", "files that make `serve` look like another server: list, show", forms=FORMS
    ),
    # An assistant waits for a hook each time its user says something, so it does not load the other actions.
    "memory hook": CommandEntry("portico_services.cli.memory_hooks"),
}
