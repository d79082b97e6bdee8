"""Commands of the gateway package."""

from __future__ import annotations

from portico.cli.commands import CommandEntry

FORMS = "portico_gateway.cli.specs"

COMMANDS = {
    name: CommandEntry(f"portico_gateway.cli.{name}", summary, forms=FORMS)
    for name, summary in {
        "gateway": "check a gateway file, or show a running gateway's upstreams",
        "hub": "run the servers of all local hosts once: start, stop, status, upgrade",
        "connect": "bridge a host to servers of the hub",
        "adopt": "make the hosts on this machine use the hub",
        "pins": "list, compare or approve pinned tool definitions",
        "audit": "verify, list or export the audit log",
        "usage": "show calls, errors, latency and estimated tokens",
        "policy": "explain or test access rules",
        "tokens": "manage static access tokens and revoke a user's grants",
    }.items()
}
