"""Tool contracts: specifications, versions, typed clients and validated calls.

`Contracts` is the service; `portico_services.contracts.api` exports the names for calling by contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import lazy_exports

if TYPE_CHECKING:
    from portico_services.contracts.service import Contracts

__all__ = ["Contracts"]

if not TYPE_CHECKING:  # Type checkers would otherwise accept any attribute of this module.
    __getattr__, __dir__ = lazy_exports(__name__, {"portico_services.contracts.service": ("Contracts",)})
