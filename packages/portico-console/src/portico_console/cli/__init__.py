"""The command of the console."""

from __future__ import annotations

from portico.cli.commands import CommandEntry

FORMS = "portico_console.cli.specs"

COMMANDS = {
    "console": CommandEntry(
        "portico_console.cli.console", "look at any server in a browser: try it, watch it", forms=FORMS
    ),
}
