"""The five revisions of the protocol, and when each feature appeared.

A revision is its date. Dates in this form sort as text, so `revision >= "2025-06-18"` means what it says.
"""

from __future__ import annotations

from typing import Final

Revision = str

V2024_11_05: Final = "2024-11-05"
V2025_03_26: Final = "2025-03-26"
V2025_06_18: Final = "2025-06-18"
V2025_11_25: Final = "2025-11-25"
V2026_07_28: Final = "2026-07-28"

# The two lists never mix: `initialize` negotiates among HANDSHAKE only, even when it is asked for 2026-07-28,
# and a request that carries its own version is measured against MODERN_REVISIONS only.
HANDSHAKE: Final = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
MODERN_REVISIONS: Final = (V2026_07_28,)
REVISIONS: Final = HANDSHAKE + MODERN_REVISIONS

NEWEST_HANDSHAKE: Final = V2025_11_25
MODERN: Final = V2026_07_28
LATEST: Final = V2026_07_28


def negotiate(requested: str) -> Revision:
    """The revision a handshake settles on: the one asked for when we know it, our newest otherwise."""
    return requested if requested in HANDSHAKE else NEWEST_HANDSHAKE
