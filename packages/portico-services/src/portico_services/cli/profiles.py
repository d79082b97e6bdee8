"""`portico profiles list|show`"""

from __future__ import annotations

import sys
import tomllib

from portico.cli.output import plain_table
from portico.cli.specs import parser_for
from portico_services.profiles import loader


def run(words: list[str]) -> None:
    parser = parser_for("profiles")
    arguments = parser.read(words)
    if arguments.action == "list":
        if arguments.name is not None:
            parser.error(f"`list` takes no name; `portico profiles show {arguments.name}` shows one")
        rows = [(name, tomllib.loads(loader.read(name))["about"]) for name in loader.names()]
        sys.stdout.write(plain_table(("NAME", "WHAT IT LOOKS LIKE"), rows))
    elif arguments.name is None:
        parser.error(f"`show` needs a name: {', '.join(loader.names())}")
    else:
        sys.stdout.write(loader.read(arguments.name))
