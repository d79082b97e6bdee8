"""`portico profiles list|show`"""

from __future__ import annotations

import sys
import tomllib

from portico.cli.forms import profiles_form
from portico.cli.printable import plain_table
from portico.services import profiles


def run(words: list[str]) -> None:
    form = profiles_form()
    arguments = form.parse_args(words)
    if arguments.errand == "list":
        if arguments.name is not None:
            form.error(f"`list` takes no name; `portico profiles show {arguments.name}` shows one")
        rows = [(name, tomllib.loads(profiles.read(name))["about"]) for name in profiles.names()]
        sys.stdout.write(plain_table(("NAME", "WHAT IT LOOKS LIKE"), rows))
    elif arguments.name is None:
        form.error(f"which one? There are {', '.join(profiles.names())}")
    else:
        sys.stdout.write(profiles.read(arguments.name))
