"""Every server behind one endpoint. A Gateway is a Server, and so a Handler; nothing here knows a socket."""

from __future__ import annotations
