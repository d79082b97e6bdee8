# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico_services.contracts.client import call as call
from portico_services.contracts.definitions import (
    CONTRACT_VERSION as CONTRACT_VERSION,
    is_compatible as is_compatible,
)
from portico_services.contracts.models import (
    ContractContext as ContractContext,
    MCPErrorDetail as MCPErrorDetail,
    MCPToolCall as MCPToolCall,
    MCPToolResult as MCPToolResult,
)
from portico_services.contracts.schemas import ERROR_TYPES as ERROR_TYPES
from portico_services.contracts.service import (
    Contracts as Contracts,
    typed_error as typed_error,
)
