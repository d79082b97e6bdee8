"""The runner's modules find each other as scripts do, by the folder they are in; node.py is one above."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
