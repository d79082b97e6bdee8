"""`portico profiles list|show`."""

from __future__ import annotations

import sys

from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.settings_file import read_tables
from portico_services.profiles import loader


def run(words: list[str]) -> None:
    """Run the command."""
    parser = parser_for("profiles")
    arguments = parser.parse(words)
    if arguments.action == "list":
        if arguments.name is not None:
            parser.error(f"`list` accepts no name; use `portico profiles show {arguments.name}`")
        profiles = [{"name": name, **_description(name)} for name in loader.list_profiles()]
        # The description is a key of each file, so the list needs no separate table.
        printer = Printer(arguments.format)
        printer.print_rows(
            profiles,
            ("NAME", "DESCRIPTION"),
            lambda profile: (profile["name"], profile["description"]),
            empty="no profiles",
        )
        printer.flush()
    elif arguments.name is None:
        parser.error(f"`show` needs a name: {', '.join(loader.list_profiles())}")
    else:
        sys.stdout.write(loader.read_profile(arguments.name))


def _description(name: str) -> dict[str, str]:
    return {"description": read_tables(name, loader.read_profile(name))["description"]}
