"""The official conformance suite against examples/everything.py and examples/everything_client.py: one table.

    PYTHONPATH=tests python tests/conformance/run.py [--leg NAME] [--url URL] [--command COMMAND] [--strict] [--keep]

The suite and its Node are installed under `.conformance/` on first use, at the versions pinned here. What must pass
is in runs.py; what is known to fail, leg by leg, in expected/. Ends with 0 if all is as it must be, and with 1 if not.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from support.conformance.runs import AUTHORIZATION_LEGS, CLIENT_LEGS, GATEWAY_LEGS, LEGS, SERVER_LEGS, Leg
from support.conformance.suite import install
from support.conformance.targets import Client, NotServing, Server, facing, our_client, reached, serving
from support.conformance.verdict import report, table
from support.node import NotInstalled

NOTHING_EXPECTED = "server: []\nclient: []\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leg", metavar="NAME", action="append", choices=LEGS, help=f"one of {', '.join(LEGS)}")
    parser.add_argument("--url", help="test the server there, instead of starting ours; and no client")
    parser.add_argument("--command", help="test this client, instead of ours; and no server")
    parser.add_argument("--strict", action="store_true", help="expect nothing to fail, whatever is in expected/")
    parser.add_argument("--keep", action="store_true", help="keep what the suite and the server wrote")
    return parser.parse_args()


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds the table and what was wrong."""
    print(text, file=sys.stderr, flush=True)


def chosen(options: argparse.Namespace) -> list[Leg]:
    if options.leg:
        return [LEGS[name] for name in options.leg]
    servers = [] if options.command and not options.url else SERVER_LEGS
    clients = [] if options.url and not options.command else CLIENT_LEGS
    others = [] if options.command or options.url else [*GATEWAY_LEGS, *AUTHORIZATION_LEGS]
    return [*servers, *others, *clients]


def run(options: argparse.Namespace, folder: Path) -> int:
    suite = install()
    nothing = folder / "nothing.yml"
    nothing.write_text(NOTHING_EXPECTED, encoding="utf-8")
    client = Client(options.command) if options.command else our_client()
    # By the revision of what is behind a gateway, or ""; and the authorization server.
    servers: dict[str, Server] = {}
    outcomes = []
    with ExitStack() as stack:
        for leg in chosen(options):
            say(f"running {leg.name}")
            if leg.side == "authorization" and leg.side not in servers:
                servers[leg.side] = stack.enter_context(facing(folder / "face.log"))
            if leg.side == "server" and leg.upstream not in servers:
                log = folder / f"server{leg.upstream}.log"
                started = reached(options.url) if options.url else stack.enter_context(serving(log, leg.upstream))
                servers[leg.upstream] = started
            place = leg.side if leg.side == "authorization" else leg.upstream
            tested = client if leg.side == "client" else servers[place]
            expected = nothing if options.strict else leg.expected_file
            outcomes.append(suite.run(leg, tested.target, folder / leg.name, expected))
        wrong = [outcome for outcome in outcomes if outcome.complaints]
        for outcome in wrong:
            print(report(outcome), end="\n\n")
        for upstream in {outcome.leg.upstream for outcome in wrong if outcome.leg.side == "server"}:
            print(servers[upstream].output_tail(), end="\n\n")
    print(table(outcomes))
    return 1 if wrong else 0


def main() -> int:
    # A terminated run unwinds as an interrupted one does, and takes its server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="portico-conformance-"))
    try:
        return run(options, folder)
    except (NotInstalled, NotServing) as why:
        say(f"{why}")
        return 1
    finally:
        if options.keep:
            say(f"results are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
