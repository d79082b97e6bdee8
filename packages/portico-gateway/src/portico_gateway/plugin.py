"""The functions of the gateway that the SDK finds by the entry point `portico.plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portico_gateway.gateway.gateway import Gateway


def load_gateway_for_client(path: str) -> Gateway:
    """Return the gateway of a gateway file for a client of its operator: errors contain the full reason of a failure.

    Raises UsageError for an invalid file.
    """
    # The other functions of this module do not need a gateway.
    from portico_gateway.gateway.gateway import Gateway

    gateway = Gateway.load(path)
    gateway.serve_operator()
    return gateway
