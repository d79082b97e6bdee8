"""The names and behavior of FastMCP, for servers that move to Portico.

Options and arguments that Portico does not support raise UsageError, with the alternative.
"""

from portico._lazy import attach_stub

# The login providers need portico-gateway, and `import *` works without it.
__getattr__, __dir__ = attach_stub(__name__, optional="portico.compat.fastmcp.login_providers")
