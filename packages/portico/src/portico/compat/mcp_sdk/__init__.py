"""The names and behavior of the official SDK, for servers that move to Portico.

Options and arguments that Portico does not support raise UsageError, with the alternative.
"""

from portico._lazy import attach_stub
from portico.compat.missing_names import explain_missing_names

_get, __dir__ = attach_stub(__name__)
__getattr__ = explain_missing_names(__name__, _get)
