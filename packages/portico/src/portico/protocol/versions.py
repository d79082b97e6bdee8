"""The five protocol versions.

A version is a date. Dates in this format sort as text, so `version >= "2025-06-18"` works.
"""

from __future__ import annotations

from typing import Final

ProtocolVersion = str

V2024_11_05: Final = "2024-11-05"
V2025_03_26: Final = "2025-03-26"
V2025_06_18: Final = "2025-06-18"
V2025_11_25: Final = "2025-11-25"
V2026_07_28: Final = "2026-07-28"

# The two lists are disjoint: `initialize` negotiates among HANDSHAKE_VERSIONS only, even if 2026-07-28 is requested,
# and a request with its own version is checked against MODERN_VERSIONS only.
HANDSHAKE_VERSIONS: Final = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
MODERN_VERSIONS: Final = (V2026_07_28,)
SUPPORTED_PROTOCOL_VERSIONS: Final = HANDSHAKE_VERSIONS + MODERN_VERSIONS

LATEST_HANDSHAKE_VERSION: Final = V2025_11_25
FIRST_MODERN_VERSION: Final = V2026_07_28
LATEST_PROTOCOL_VERSION: Final = V2026_07_28


def negotiate_version(requested: str) -> ProtocolVersion:
    """Return the version that a handshake agrees on: the requested one if it is supported, else our latest."""
    return requested if requested in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE_VERSION
