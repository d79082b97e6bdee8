"""Functions that other packages of Portico call if portico-console is installed (`portico.plugins`)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from portico_console.cli.console_link import (
    announce_console as announce_console,
    attach_console as attach_console,
    describe_link as describe_link,
)

if TYPE_CHECKING:
    from portico.cli.reloader import Reloader
    from portico.server.server import Server
    from portico_console.console import Console


def attach_dev_console(server: Server, reloader: Reloader, arguments: argparse.Namespace) -> Any:
    """Attach a console that shows the state of a reloaded file and can open other servers; return its ConsoleSite.

    The caller enters the lifespan of the site, because the server's lifespan ends with each version of the file.
    """
    from portico.cli import local_token
    from portico.store.data_directory import resolve_data_directory
    from portico_console.cli.console_link import HOW_TO_ENTER, session_secret
    from portico_console.session_auth import ConsoleAccess
    from portico_console.site import SAVED_CALLS_FILE, attach_console

    def make() -> Console:
        # Imported only after a browser has signed in.
        from portico_console.console import Console

        saved = resolve_data_directory(arguments.data) / SAVED_CALLS_FILE
        return Console(
            server,
            mode="dev",
            can_open_targets=True,
            token_for=local_token.token_for_url,
            reloader=reloader,
            saved_calls_file=saved,
        )

    key = session_secret(arguments.port, arguments.data)
    return attach_console(server, ConsoleAccess(), key, login_hint=HOW_TO_ENTER, make=make, manage_lifespan=False)
