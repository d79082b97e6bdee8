"""What tools promise: specifications, versions, typed clients, and calls that keep to a contract.

`Contracts` is the service; `portico_services.contracts.api` has the names for calling by contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

if TYPE_CHECKING:
    from portico_services.contracts.service import Contracts

__all__ = ["Contracts"]

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, {"portico_services.contracts.service": ("Contracts",)})
