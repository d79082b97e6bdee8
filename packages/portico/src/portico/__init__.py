"""Portico: the Model Context Protocol for Python, every protocol version.

The names below are public. Each is imported on first use, so that `import portico` is cheap. Protocol types are in
`portico.types`, exceptions in `portico.errors`, the APIs of FastMCP and the official SDK in `portico.compat`.
"""

from portico._lazy import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__ = attach_stub(__name__)
