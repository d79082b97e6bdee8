"""`portico profiles list|show`"""

from __future__ import annotations

import sys
import tomllib

from portico.cli.forms import parser_for
from portico.cli.printer import plain_table
from portico.services import profiles


def run(words: list[str]) -> None:
    parser = parser_for("profiles")
    arguments = parser.read(words)
    if arguments.action == "list":
        if arguments.name is not None:
            parser.error(f"`list` takes no name; `portico profiles show {arguments.name}` shows one")
        rows = [(name, tomllib.loads(profiles.read(name))["about"]) for name in profiles.names()]
        sys.stdout.write(plain_table(("NAME", "WHAT IT LOOKS LIKE"), rows))
    elif arguments.name is None:
        parser.error(f"`show` needs a name: {', '.join(profiles.names())}")
    else:
        sys.stdout.write(profiles.read(arguments.name))
