"""The request paths in docs/explanation/architecture.md match profiles and stay within their limits."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from support.paths import ROOT

# Own files, and entries into own functions, of one call with an `async def` body.
MOST = {"stdio": (11, 50), "http": (15, 60), "client": (12, 90), "gateway": (14, 80)}


@pytest.fixture(scope="module")
def walking() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walks", ROOT / "docs" / "walks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MOST)
async def test_walk_on_the_page_is_the_one_a_call_takes(name: str, walking: ModuleType) -> None:
    profile = await walking.WALKS[name]()
    assert walking.written(walking.PAGE.read_text())[name] == profile.lines(), "python docs/walks.py writes them anew"


@pytest.mark.parametrize("name", MOST)
async def test_call_does_not_travel_far(name: str, walking: ModuleType) -> None:
    profile = await walking.WALKS[name]()
    files, calls = len({code.co_filename for code in profile.codes}), len(profile.codes)
    most_files, most_calls = MOST[name]
    assert files <= most_files
    assert calls <= most_calls
