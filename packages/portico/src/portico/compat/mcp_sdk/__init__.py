"""The names and behavior of the official SDK, for servers that move to Portico.

Options and arguments that Portico does not support raise UsageError, with the alternative.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
