"""`portico read`"""

from __future__ import annotations

import argparse

from portico.cli.forms import parse, read_form
from portico.cli.printer import Printer, Show
from portico.cli.running import run_errand
from portico.client.client import Client


def run(words: list[str]) -> int:
    arguments = parse(read_form, words)
    return run_errand(arguments, lambda client, printer: _read(client, printer, arguments))


async def _read(client: Client, printer: Printer, options: argparse.Namespace) -> int:
    contents = await client.read_resource(options.uri)
    show = Show(printer, options.save, "resource")
    for one in contents:
        if printer.form == "json":
            printer.json(one)
            continue
        if printer.form == "table" and len(contents) > 1:
            printer.line(f"── {one.uri} {one.mime_type or ''}")
        # A resource that is a file can be saved as that file.
        show.contents(one, to_the_letter=len(contents) == 1)
    if printer.form == "json":
        show.save(list(contents))
    return 0
