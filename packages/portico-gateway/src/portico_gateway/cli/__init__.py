"""The commands of the gateway."""

from __future__ import annotations

from portico.cli.commands import CommandEntry

FORMS = "portico_gateway.cli.specs"

COMMANDS = {
    "gateway": CommandEntry(
        "portico_gateway.cli.gateway", "look at the servers behind a gateway: check, status", forms=FORMS
    ),
    "pins": CommandEntry(
        "portico_gateway.cli.pins", "what tools behind a gateway were when approved: list, diff, approve", forms=FORMS
    ),
    "audit": CommandEntry(
        "portico_gateway.cli.audit", "what was asked of a server, and whether the record of it is whole", forms=FORMS
    ),
    "policy": CommandEntry(
        "portico_gateway.cli.policy", "who may do what, by the rules of a file: explain, test", forms=FORMS
    ),
    "tokens": CommandEntry(
        "portico_gateway.cli.tokens", "tokens for programs that cannot log in: add, list, remove", forms=FORMS
    ),
}
