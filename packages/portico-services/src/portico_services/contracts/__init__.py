"""Tool contracts: specifications, versions, typed clients and validated calls.

`Contracts` is the service; `portico_services.contracts.api` exports the names for calling by contract.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
