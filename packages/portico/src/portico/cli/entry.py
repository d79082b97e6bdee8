"""Entry point of the `portico` command.

A host starts `portico connect` once for each of its servers, so that command bypasses the other commands and their
imports: only the standard library is loaded for it.
"""

import sys


def main() -> None:
    """Run the command line of this process."""
    words = sys.argv[1:]
    if words[:1] == ["connect"] and not {"-h", "--help"} & set(words[: words.index("--") if "--" in words else None]):
        try:
            # By name, like the other parts of packages that this one does not depend on (`portico.plugins`).
            bridge = __import__("portico_{}.hub.bridge".format("gateway"), fromlist=["run"])
        except ImportError:
            # Without the package the command line below reports how to install it.
            pass
        else:
            sys.exit(bridge.run(words[1:]))
    from portico.cli.main import main as run_command

    run_command()
