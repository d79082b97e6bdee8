"""`portico connect`, for callers that do not start it through `portico.cli.entry`."""

from __future__ import annotations

from portico.cli.specs import parser_for
from portico_gateway.hub import bridge


def run(words: list[str]) -> int:
    options = words[: words.index("--")] if "--" in words else words
    if "-h" in options or "--help" in options:
        # Prints the help and exits. The bridge parses its options itself, because argparse is slow to import.
        parser_for("connect").parse(["--help"])
    return bridge.run(words)
