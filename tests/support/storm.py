"""Choose the number of repetitions of a test that kills or loads servers: few, or with STORM=1 many."""

from __future__ import annotations

import os


def times(usually: int, in_a_storm: int) -> int:
    return in_a_storm if os.environ.get("STORM") == "1" else usually
