"""The functions that other packages of Portico call where portico-console is installed (`portico.plugins`)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from portico_console.cli.console_link import announce_console as announce_console
from portico_console.cli.console_link import attach_console as attach_console
from portico_console.cli.console_link import describe_link as describe_link

if TYPE_CHECKING:
    from portico.cli.reloader import Reloader
    from portico.server.server import Server
    from portico_console.console import Console


def attach_dev_console(server: Server, reloader: Reloader, arguments: argparse.Namespace) -> Any:
    """Attach a console that shows the state of a reloaded file and may open other servers; return its ConsoleSite.

    The caller enters the lifespan of the site: that of the server ends with each version of the file.
    """
    from portico.cli import local_token
    from portico.store.data_directory import data_directory
    from portico_console.cli.console_link import HOW_TO_ENTER, secret
    from portico_console.session_auth import ConsoleAccess
    from portico_console.site import SAVED, attach

    def make() -> Console:
        # Not before a browser has signed in.
        from portico_console.console import Console

        saved = data_directory(arguments.data) / SAVED
        return Console(server, mode="dev", opens=True, auth_for=local_token.for_url, reloader=reloader, saved=saved)

    key = secret(arguments.port, arguments.data)
    return attach(server, ConsoleAccess(), key, how=HOW_TO_ENTER, make=make, held=False)
