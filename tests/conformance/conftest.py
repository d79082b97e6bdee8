"""Import paths of the conformance runner, which is also a script."""

from __future__ import annotations

import os

import pytest

from support.conformance.suite import Suite, install
from support.node import NotInstalled


@pytest.fixture(scope="session")
def suite() -> Suite:
    try:
        return install()
    except NotInstalled as why:
        reason = f"The conformance suite is not installed and cannot be: {why}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
