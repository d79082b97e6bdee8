"""The commands of operators: tasks and status."""

from __future__ import annotations

from portico.cli.specs.options import FORMAT, STORE, limit_option
from portico.cli.specs.parser import CommandSpec, argument, option

COMMAND_SPECS: dict[str, CommandSpec] = {
    "tasks": CommandSpec(
        "portico tasks list [options]\n       portico tasks show ID | cancel ID … | retry ID … [options]",
        "List, show, cancel or retry the tasks in a store. An ID may be abbreviated.",
        (
            argument("action", choices=("list", "show", "cancel", "retry")),
            argument("ids", nargs="*", default=[], metavar="ID", help="ID of a task"),
        ),
        {
            "": (
                *STORE,
                FORMAT,
                option(
                    "--status",
                    choices=("queued", "running", "waiting", "completed", "failed", "cancelled"),
                    help="only tasks with this status",
                ),
                limit_option(50),
                option("--watch", action="store_true", help="refresh until interrupted"),
            )
        },
        "Exit status: 0 success; 1 a task could not be changed; 2 usage error.",
        action_options={"--status": "list", "--limit": "list", "--watch": "list"},
        examples=("tasks list --status failed", "tasks show 3fb8", "tasks cancel 3fb8", "tasks retry 3fb8"),
    ),
    "status": CommandSpec(
        "portico status [options]",
        "Show the workers, sessions and leases recorded in a server's store. Without\n"
        "--store: the stores in the data directory, and this user's supervisors whose\n"
        "servers have no store.",
        (),
        {
            "": (
                *STORE,
                FORMAT,
                option("--sessions", action="store_true", help="include the most recently used sessions"),
                limit_option(50),
            )
        },
        "Exit status: 0 success; 2 usage error, or a store that does not exist.",
        examples=("status --store server.db",),
    ),
}
