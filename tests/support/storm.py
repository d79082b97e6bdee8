"""How often to kill: what finds a mistake nearly always, or with `STORM=1` what finds it always."""

from __future__ import annotations

import os


def times(usually: int, in_a_storm: int) -> int:
    return in_a_storm if os.environ.get("STORM") == "1" else usually
