"""Imported by scripts that start processes to measure them: these use cached bytecode, whatever the environment says.

With PYTHONDONTWRITEBYTECODE each of them would compile all of its modules again, and a start would take twice as long.
The Makefile takes it off as well.
"""

from __future__ import annotations

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
