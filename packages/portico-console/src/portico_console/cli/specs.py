"""The arguments of `portico console`."""

from __future__ import annotations

from portico.cli.specs.options import CONNECTION, DATA, STATUS, TARGET, TARGETS, port
from portico.cli.specs.parser import CommandForm, flag

FORMS: dict[str, CommandForm] = {
    "console": CommandForm(
        "portico console TARGET [options]\n       portico console [options] -- COMMAND …",
        "Look at a server in a browser: its tools, resources and prompts, and every message. Prints a link that is\n"
        "good once. For the address of a `portico serve` of yours, without a path: a new link to its own console.",
        (TARGET,),
        {
            **CONNECTION,
            "": (flag("--port", type=port, default=0, help="of the page (default: any free one)"), *DATA),
        },
        f"{TARGETS}\n{STATUS}",
        examples=("console my_server.py",),
    ),
}
