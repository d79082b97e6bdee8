"""Arguments of `portico console`."""

from __future__ import annotations

from portico.cli.specs.options import CONNECTION, DATA, EXIT_STATUS_HELP, TARGET, TARGET_HELP, parse_port
from portico.cli.specs.parser import CommandSpec, option

FORMS: dict[str, CommandSpec] = {
    "console": CommandSpec(
        "portico console TARGET [options]\n       portico console [options] -- COMMAND …",
        "Inspect a server in a browser: its tools, resources, prompts and messages.\n"
        "Prints a link that can be used once. For the URL of your own `portico serve`\n"
        "without a path, prints a new link to its console.",
        (TARGET,),
        {
            **CONNECTION,
            "": (
                option(
                    "--port",
                    type=parse_port,
                    default=0,
                    metavar="PORT",
                    help="port of the console page (default: any free port)",
                ),
                *DATA,
            ),
        },
        f"{TARGET_HELP}\n{EXIT_STATUS_HELP}",
        examples=("console my_server.py",),
    ),
}
