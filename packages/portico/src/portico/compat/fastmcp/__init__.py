"""The names and behavior of FastMCP, for servers that move to Portico.

Options and arguments that Portico does not support raise UsageError, with the alternative.
"""

from portico._lazy import attach_stub
from portico.compat.missing_names import explain_missing_names

# The login providers need portico-gateway, and `import *` works without it.
_get, __dir__ = attach_stub(__name__, optional="portico.compat.fastmcp.login_providers")
__getattr__ = explain_missing_names(__name__, _get)
