"""What the SDK asks of the console where it is installed (`portico.plugins`)."""

from __future__ import annotations

from portico_console.cli.console_link import announce_console, attach_console

__all__ = ["announce_console", "attach_console"]
