"""The runner's modules find each other as scripts do, by the folder they are in."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
