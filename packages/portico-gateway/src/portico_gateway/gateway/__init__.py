"""Gateway: many servers behind one endpoint.

A Gateway is a Server whose provider are its upstreams; it is independent of transports.
"""

from __future__ import annotations
