"""Load scripts that are not part of a package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


def load_script(path: Path) -> ModuleType:
    """Return the module of a script that imports nothing from its own folder."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def load_scripts(names: Iterable[str], *folders: Path) -> Iterator[SimpleNamespace]:
    """Import scripts that import each other by bare name, and remove them from `sys.modules` afterwards.

    The names of scripts (`run`, `table`) are too common to stay there.
    """
    ours = {path.stem for folder in folders for path in folder.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in ours if name in sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        for folder in reversed(folders):
            patch.syspath_prepend(str(folder))
        try:
            yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        finally:
            for name in ours:
                sys.modules.pop(name, None)
            sys.modules.update(before)
