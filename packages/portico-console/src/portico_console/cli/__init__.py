"""Commands of portico-console."""

from __future__ import annotations

from portico.cli.commands import CommandEntry

FORMS = "portico_console.cli.specs"

COMMANDS = {"console": CommandEntry("portico_console.cli.console", "inspect a server in a browser", forms=FORMS)}
