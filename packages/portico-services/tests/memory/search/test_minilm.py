"""MiniLM compared with its formulas in double precision."""

from __future__ import annotations

import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from portico_services.memory.search import model_download, model_loader
from portico_services.memory.search.embeddings import Encoder
from portico_services.memory.search.minilm import ADAPTER, MAX_BATCH_TOKENS, MiniLM, load_safetensors
from portico_services.memory.search.minilm_int8 import Int8MiniLM
from portico_services.memory.search.wordpiece import WordPieceTokenizer
from support.paths import ROOT

np: Any = pytest.importorskip("numpy", reason="numpy is not installed: pip install 'portico-services[memory-vectors]'")

MOST = 192
# What is stored was computed once, and stays.
NEAR = 1 - 1e-3
# In whole numbers of eight bits; of one store, some may be computed this way and some that.
NEAR_INT8 = 1 - 1e-2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXT = "the store keeps a vector of each memory and looks for the nearest when somebody asks in other words"
WORDS = TEXT.split()
TEXTS = [
    "",
    "Où est 漢字",
    # Below and above what is multiplied in one part, and in parts at all.
    *[" ".join((WORDS * 4)[:length]) for length in (18, 20, 63)],
    " ".join(WORDS * 12),
    *[f"{WORDS[number % len(WORDS)]} {WORDS[number % 7]} {' '.join(WORDS[: number % 5])}" for number in range(50)],
]
# No memory is empty, and of nothing at all the eight bits make .017 less.
SAID = [text for text in TEXTS if text]
# The formulas take long.
COMPARED = 5


class Plain:
    """One text at a time, as the paper has it."""

    def __init__(self, folder: Path) -> None:
        raw = (folder / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        self._raw, self._start, self._header = raw, start, json.loads(raw[8:start])
        self._adapter = load_safetensors(ADAPTER)
        self._pieces = WordPieceTokenizer(folder / "vocab.txt")
        self._read: dict[str, Any] = {}
        self._vectors: dict[str, Any] = {}

    def encode(self, text: str) -> Any:
        if text not in self._vectors:
            self._vectors[text] = self._compute(text)
        return self._vectors[text]

    def _compute(self, text: str) -> Any:
        numbers = self._pieces.encode(text, MOST)
        states = self._of("embeddings.word_embeddings.weight")[numbers]
        states = states + self._of("embeddings.position_embeddings.weight")[: len(numbers)]
        states = self._norm(states + self._of("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for layer in range(6):
            states = self._layer(states, f"encoder.layer.{layer}.")
        mean = states.mean(0)
        return mean / np.sqrt(mean @ mean)

    def _layer(self, states: Any, name: str) -> Any:
        query, key, value = (self._linear(states, f"{name}attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for start in range(0, 384, 32):
            head = slice(start, start + 32)
            shares = np.exp(query[:, head] @ key[:, head].T / math.sqrt(32))
            heads.append(shares / shares.sum(1, keepdims=True) @ value[:, head])
        seen = self._linear(np.concatenate(heads, 1), f"{name}attention.output.dense")
        states = self._norm(states + seen, f"{name}attention.output.LayerNorm")
        wide = self._linear(states, f"{name}intermediate.dense")
        wide = wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) / 2
        return self._norm(states + self._linear(wide, f"{name}output.dense"), f"{name}output.LayerNorm")

    def _linear(self, states: Any, name: str) -> Any:
        return states @ self._of(f"{name}.weight").T + self._of(f"{name}.bias")

    def _norm(self, states: Any, name: str) -> Any:
        spread = np.sqrt(states.var(1, keepdims=True) + 1e-12)
        return (states - states.mean(1, keepdims=True)) / spread * self._of(f"{name}.weight") + self._of(f"{name}.bias")

    def _of(self, name: str) -> Any:
        if name not in self._read:
            notification = self._header[name]
            begin, end = (self._start + offset for offset in notification["data_offsets"])
            values = np.frombuffer(self._raw[begin:end], "<f4").reshape(notification["shape"]).astype(np.float64)
            layer = name.removesuffix(".weight")
            if f"{layer}.up" in self._adapter:
                values += self._adapter[f"{layer}.up"].astype(np.float64) @ self._adapter[f"{layer}.down"]
            self._read[name] = values
        return self._read[name]


def shapes(pieces: int) -> dict[str, tuple[int, ...]]:
    results: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (pieces, 384),
        "embeddings.position_embeddings.weight": (512, 384),
        "embeddings.token_type_embeddings.weight": (2, 384),
        "embeddings.LayerNorm.weight": (384,),
    }
    parts = {"attention.self.query": (384, 384), "attention.self.key": (384, 384), "attention.self.value": (384, 384)}
    parts |= {"attention.output.dense": (384, 384), "intermediate.dense": (1536, 384), "output.dense": (384, 1536)}
    for layer in range(6):
        name = f"encoder.layer.{layer}."
        results |= {f"{name}{part}.weight": shape for part, shape in parts.items()}
        results |= {f"{name}{part}.LayerNorm.weight": (384,) for part in ("attention.output", "output")}
    biases = {
        name.replace(".weight", ".bias"): shape[:1] for name, shape in results.items() if "embeddings.w" not in name
    }
    return results | {name: shape for name, shape in biases.items() if name.endswith(".bias")}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the right shape whose weights were drawn by lot, about as large as the real ones."""
    folder: Path = tmp_path_factory.mktemp("model")
    pieces = ["[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *sorted(set(WORDS))]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    draw, header, place, tensors = np.random.default_rng(7), {}, 0, []
    for name, shape in shapes(len(pieces)).items():
        tensor = draw.standard_normal(shape, np.float32) * np.float32(0.06)
        tensors.append((tensor + np.float32("LayerNorm.weight" in name)).tobytes())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + len(tensors[-1])]}
        place += len(tensors[-1])
    result = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(b"".join([len(result).to_bytes(8, "little"), result, *tensors]))
    return folder


@pytest.fixture(scope="module")
def real() -> Path:
    """The real model. It is fetched where CI is set, and never elsewhere."""
    place = ROOT / ".bench"
    match = model_loader.find_model(place)
    if match is None:
        if not os.environ.get("CI"):
            pytest.skip("The model is not here: PORTICO_DATA=.bench portico memory download-model")
        match = model_download.download_model(place)
    return match


# Two encoders are compared with the formulas of one model, which take seconds to compute.
plain_model = cache(Plain)


def agrees(folder: Path, encoder: Encoder, near: float, texts: list[str] = TEXTS) -> None:
    plain = plain_model(folder)
    together = encoder.encode(texts, MOST)
    for text, vector in zip(texts[:COMPARED], together, strict=False):
        assert float(vector @ plain.encode(text)) > near, text
    for text, vector in zip(texts[:20], together, strict=False):
        assert float(vector @ encoder.encode([text], MOST)[0]) > near, text


def test_vectors_match_the_reference_formulas(drawn: Path) -> None:
    agrees(drawn, MiniLM(drawn), NEAR)


def test_vectors_of_the_real_model_match_the_reference_formulas(real: Path) -> None:
    agrees(real, MiniLM(real), NEAR)


def test_adapter_changes_every_linear_layer(real: Path) -> None:
    adapter = load_safetensors(ADAPTER)
    layers = {name.rpartition(".")[0] for name in adapter}
    assert layers == {
        name.removesuffix(".weight") for name, shape in shapes(1).items() if "layer." in name and len(shape) == 2
    }
    assert all(np.isfinite(values).all() and values.any() for values in adapter.values())
    (vector,), (unadapted,) = MiniLM(real).encode([TEXT]), MiniLM(real, None).encode([TEXT])
    assert 0.5 < float(vector @ unadapted) < NEAR


def test_int8_vectors_are_close_to_the_reference_formulas(drawn: Path) -> None:
    pytest.importorskip("ctranslate2")
    agrees(drawn, Int8MiniLM(drawn), NEAR_INT8, SAID)


def test_int8_vectors_of_the_real_model_are_close_to_the_reference_formulas(real: Path) -> None:
    pytest.importorskip("ctranslate2")
    agrees(real, Int8MiniLM(real), NEAR_INT8, SAID)


@pytest.fixture
def installed(drawn: Path, tmp_path: Path) -> Path:
    """A data directory with that model."""
    folder = tmp_path / "models" / model_loader.MODEL_DIR
    folder.parent.mkdir()
    folder.symlink_to(drawn)
    return tmp_path


def test_eight_bits_are_used_where_their_package_is_installed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(MiniLM, "encode", None)
    result = model_loader.load_embedding_index(installed)
    assert result is not None
    assert len(result.encode_texts(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("failure", [ImportError, RuntimeError, ValueError])
def test_processor_without_eight_bits_has_the_same_vectors(
    installed: Path, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    def refused(self: Int8MiniLM, folder: Path) -> None:
        raise failure("no such instructions")

    monkeypatch.setattr(Int8MiniLM, "__init__", refused)
    result = model_loader.load_embedding_index(installed)
    assert result is not None
    (vector,), (wanted,) = (
        result.encode_texts(["hello"]),
        MiniLM(model_loader.find_model(installed) or Path()).encode(["hello"]),
    )
    assert float(vector @ wanted) > NEAR


def test_texts_are_multiplied_together_and_not_padded(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = MiniLM(drawn)
    passes: list[int] = []

    def counted(texts: Any) -> Any:
        passes.append(sum(map(len, texts)))
        return np.zeros((len(texts), 384), np.float32)

    monkeypatch.setattr(encoder, "_encode_batch", counted)
    encoder.encode(TEXTS, MOST)
    pieces = WordPieceTokenizer(drawn / "vocab.txt")
    assert sum(passes) == sum(len(pieces.encode(text, MOST)) for text in TEXTS)
    assert max(passes) <= MAX_BATCH_TOKENS
    assert len(passes) < 2 * sum(passes) / MAX_BATCH_TOKENS + 1


def test_empty_input_has_no_embeddings(drawn: Path) -> None:
    assert MiniLM(drawn).encode([], MOST) == []
