"""Gateway: many servers behind one endpoint.

A Gateway is a Server and thus a Handler; it is independent of transports.
"""

from __future__ import annotations
