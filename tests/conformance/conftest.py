"""The runner's modules find each other as scripts do, by the folder they are in; node.py is one above."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from suite import Suite, install

from node import NotInstalled


@pytest.fixture(scope="session")
def suite() -> Suite:
    try:
        return install()
    except NotInstalled as why:
        reason = f"The conformance suite is not installed and cannot be: {why}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
