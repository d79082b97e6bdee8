"""Generated reference pages equal what the code generates."""

from __future__ import annotations

import pytest

from support.paths import ROOT
from support.scripts import load_script

generator = load_script(ROOT / "docs" / "generate.py")


@pytest.mark.parametrize("name", generator.PAGES)
def test_generated_page_is_current(name: str) -> None:
    written = (generator.REFERENCE / name).read_text(encoding="utf-8")
    assert written == generator.PAGES[name](), "run: python docs/generate.py"
