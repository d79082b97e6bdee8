"""The commands of operators: what is behind a server, what it has done, and who may do what."""

from __future__ import annotations

from portico.cli.specs.options import JSON, OUTPUT, SHORT_OUTPUT, STORE, limit
from portico.cli.specs.parser import CommandForm, flag, word

FORMS: dict[str, CommandForm] = {
    "jobs": CommandForm(
        "portico jobs list [options]\n       portico jobs show ID | cancel ID … | retry ID … [options]",
        "Look at the tasks in a store. An ID may be abbreviated.",
        (word("action", choices=("list", "show", "cancel", "retry")), word("ids", nargs="*", default=[], metavar="ID")),
        {
            "": (
                *STORE,
                OUTPUT,
                JSON,
                flag("--status", choices=("queued", "running", "waiting", "completed", "failed", "cancelled")),
                limit(50),
                flag("--watch", action="store_true", help="on a terminal: keep running and show changes"),
            )
        },
        "Exit status: 0; 1 when something could not be changed; 2 for a mistake on this line.",
        action_options={"--status": "list", "--limit": "list", "--watch": "list"},
        examples=("jobs list --status failed", "jobs show 3fb8", "jobs cancel 3fb8", "jobs retry 3fb8"),
    ),
    "status": CommandForm(
        "portico status [options]",
        "The processes that are one server, by the store that they share: workers, how many sessions each has, and\n"
        "what is held for a time. Without --store: the stores of the data directory, and the supervisors of this\n"
        "user on this machine whose servers have no store.",
        (),
        {
            "": (
                *STORE,
                SHORT_OUTPUT,
                JSON,
                flag("--sessions", action="store_true", help="the sessions too, those that were written last first"),
                limit(50),
            )
        },
        "Exit status: 0; 2 for a mistake on this line, or a store that is not there.",
        examples=("status --store server.db",),
    ),
}
