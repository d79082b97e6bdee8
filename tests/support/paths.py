"""Locate the folders that tests read."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent
PROGRAMS = SUPPORT / "programs"
# Corpora that are too large for the repository; tests that read them are skipped where the folder is missing.
DATA = ROOT.parent / "shared" / "data"
TEST_FOLDERS = [ROOT / "tests", *sorted(ROOT.glob("packages/*/tests"))]


def find_test_files() -> list[Path]:
    """Return every test file of the repository."""
    return sorted(path for folder in TEST_FOLDERS for path in folder.rglob("test_*.py"))
