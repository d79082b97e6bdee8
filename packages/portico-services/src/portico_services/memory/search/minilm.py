"""all-MiniLM-L6-v2, a small BERT sentence embedding model, computed with numpy alone.

Six attention layers over WordPiece tokens (Devlin et al., 2018), mean pooling, and normalization to unit length. The
weights stay in their file and are memory-mapped, so nothing is loaded before it is used and processes share the pages.

The model is downloaded. An adapter in this package (LoRA, Hu et al., 2021) tunes it to questions about conversations:
it is the product of two narrow matrices that is added to each weight matrix. `benchmarks/train_adapter.py` trains it.

Nearly all time goes into multiplying by the weights: 21 million operations per token. Texts are therefore encoded in
batches, concatenated without padding; only attention treats each text separately.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico_services.memory.search.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float32]]

EMBEDDING_DIM = 384
LAYERS, HEADS = 6, 12
EPSILON = 1e-12
# The model was trained on sequences of this length.
MAX_SEQUENCE_TOKENS = 256
# Tokens per batch: enough for the full speed of a matrix multiplication, and still within the CPU cache.
MAX_BATCH_TOKENS = 512
_SAFETENSORS_DTYPES = {"F16": "<f2", "F32": "<f4", "I64": "<i8"}
ADAPTER = Path(__file__).with_name("adapter.safetensors")

# A query has few tokens, and rearranging the weights for one large multiplication would take as long as the
# multiplication itself. OpenBLAS skips that step for small products (up to a million operations, with AVX-512), so up
# to `_SMALL_BATCH_ROWS` rows are multiplied in blocks of `_ROWS` by `_COLUMNS`.
_SMALL_BATCH_ROWS, _ROWS, _COLUMNS = 64, 20, 32
_GELU_ROWS = 64


class MiniLM:
    """The model with float32 weights."""

    # Stored with each vector. Another adapter needs another name, so that memories are embedded again.
    name = "all-MiniLM-L6-v2+conversations-1"

    def __init__(self, folder: Path, adapter: Path | None = ADAPTER) -> None:
        tensors = load_tensors(folder, adapter)
        self._pieces = WordPieceTokenizer(folder / "vocab.txt")
        self._words = tensors["embeddings.word_embeddings.weight"]
        self._position_embeddings = position_embeddings(tensors)
        self._norm = _Norm(tensors, "embeddings.LayerNorm")
        self._layers = [_Layer(tensors, f"encoder.layer.{number}.") for number in range(LAYERS)]

    def encode(self, texts: Sequence[str], limit: int = MAX_SEQUENCE_TOKENS) -> list[Array]:
        """Return the embeddings of texts, in order."""
        return encode_in_batches([self._pieces.encode(text, limit) for text in texts], self._encode_batch)

    def _encode_batch(self, texts: Sequence[list[int]]) -> Iterator[Array]:
        """Yield the embeddings of token sequences sorted by length."""
        import numpy as np

        runs = _equal_length_runs([len(text) for text in texts])
        states = self._words[[number for text in texts for number in text]]
        states += self._position_embeddings[[position for text in texts for position in range(len(text))]]
        states = self._norm(states)
        for layer in self._layers:
            states = layer(states, runs)
        for start, count, length in runs:
            means = states[start : start + count * length].reshape(count, length, EMBEDDING_DIM).mean(1)
            means /= np.sqrt(np.einsum("ij,ij->i", means, means))[:, None]
            yield from means


# A run is a series of adjacent texts of equal length: first row, number of texts, rows per text.
Run = tuple[int, int, int]


def _equal_length_runs(lengths: Sequence[int]) -> list[Run]:
    runs, start = [], 0
    for length, same in groupby(lengths):
        count = len(list(same))
        runs.append((start, count, length))
        start += count * length
    return runs


def encode_in_batches(
    numbers: Sequence[list[int]], encoded: Callable[[Sequence[list[int]]], Iterable[Array]]
) -> list[Array]:
    """Return embeddings in the order of `numbers`; `encoded` receives batches sorted by length."""
    order = sorted(range(len(numbers)), key=lambda position: len(numbers[position]))
    result: dict[int, Array] = {}
    for lot in _batches(order, numbers):
        result.update(zip(lot, encoded([numbers[position] for position in lot]), strict=True))
    return [result[position] for position in range(len(numbers))]


def position_embeddings(tensors: dict[str, Array]) -> Array:
    """Return the sum of the position and token type embeddings. All tokens have the first of the two types."""
    result: Array = (
        tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    )
    return result


def _batches(order: Sequence[int], numbers: Sequence[list[int]]) -> Iterator[list[int]]:
    """Yield the texts to encode together, as positions in `numbers`."""
    lot: list[int] = []
    size = 0
    for position in order:
        if lot and size + len(numbers[position]) > MAX_BATCH_TOKENS:
            yield lot
            lot, size = [], 0
        lot.append(position)
        size += len(numbers[position])
    if lot:
        yield lot


class _Layer:
    def __init__(self, tensors: dict[str, Array], name: str) -> None:
        self._query = _Linear(tensors, f"{name}attention.self.query")
        self._key = _Linear(tensors, f"{name}attention.self.key")
        self._value = _Linear(tensors, f"{name}attention.self.value")
        self._mixed = _Linear(tensors, f"{name}attention.output.dense")
        self._mixed_norm = _Norm(tensors, f"{name}attention.output.LayerNorm")
        self._wide = _Linear(tensors, f"{name}intermediate.dense")
        self._narrow = _Linear(tensors, f"{name}output.dense")
        self._norm = _Norm(tensors, f"{name}output.LayerNorm")

    def __call__(self, states: Array, runs: Sequence[Run]) -> Array:
        mixed = self._mixed(self._attention(states, runs))
        mixed += states
        states = self._mixed_norm(mixed)
        wide = self._wide(states)
        _gelu(wide)
        narrow = self._narrow(wide)
        narrow += states
        return self._norm(narrow)

    def _attention(self, states: Array, runs: Sequence[Run]) -> Array:
        import numpy as np

        query, key, value = self._query(states), self._key(states), self._value(states)
        query *= 1 / math.sqrt(EMBEDDING_DIM // HEADS)
        seen = np.empty_like(states)
        for run in runs:
            shares = _heads(query, run) @ _heads(key, run).swapaxes(2, 3)
            # Subtract the maximum before exp to avoid overflow (softmax is invariant to it).
            shares -= shares.max(-1, keepdims=True)
            np.exp(shares, out=shares)
            shares /= shares.sum(-1, keepdims=True)
            np.matmul(shares, _heads(value, run), out=_heads(seen, run))
        return seen


def _heads(states: Array, run: Run) -> Array:
    """Return a view of a run with the axes text, head, row, dimension."""
    start, count, length = run
    rows = states[start : start + count * length]
    return rows.reshape(count, length, HEADS, EMBEDDING_DIM // HEADS).swapaxes(1, 2)


class _Linear:
    def __init__(self, tensors: dict[str, Array], name: str) -> None:
        self._tensors, self._name, self._bias = tensors, name, tensors[f"{name}.bias"]
        # The weight with its adapter, for many rows and for few. Computed when needed: each takes 42 MB in all layers.
        self._weight: Array | None = None
        self._blocks: Array | None = None

    def __call__(self, states: Array) -> Array:
        import numpy as np

        result = np.empty((len(states), len(self._bias)), np.float32)
        if len(states) > _SMALL_BATCH_ROWS:
            if self._weight is None:
                self._weight = adapted_weight(self._tensors, self._name)
            np.matmul(states, self._weight.T, out=result)
        else:
            self._multiply_small(states, result)
        result += self._bias
        return result

    def _multiply_small(self, states: Array, output: Array) -> None:
        import numpy as np

        if self._blocks is None:
            weight = adapted_weight(self._tensors, self._name)
            self._blocks = np.ascontiguousarray(weight.reshape(-1, _COLUMNS, weight.shape[1]).swapaxes(1, 2))
        for start in range(0, len(states), _ROWS):
            part = output[start : start + _ROWS]
            columns = part.reshape(len(part), -1, _COLUMNS).swapaxes(0, 1)
            np.matmul(states[start : start + _ROWS], self._blocks, out=columns)


class _Norm:
    def __init__(self, tensors: dict[str, Array], name: str) -> None:
        self._weight, self._bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    def __call__(self, states: Array) -> Array:
        """Normalize the array in place and return it."""
        import numpy as np

        states -= np.add.reduce(states, 1, keepdims=True) * 1 / EMBEDDING_DIM
        squares = np.einsum("ij,ij->i", states, states)
        states /= np.sqrt(squares * 1 / EMBEDDING_DIM + EPSILON)[:, None]
        states *= self._weight
        states += self._bias
        return states


def _gelu(states: Array) -> None:
    """Apply GELU, x·Φ(x), in place, with the tanh approximation of Φ (Hendrycks and Gimpel, 2016). The error is below
    0.0005.
    """
    import numpy as np

    for start in range(0, len(states), _GELU_ROWS):
        part = states[start : start + _GELU_ROWS]
        bent = part * part
        bent *= 0.044715 * math.sqrt(2 / math.pi)
        bent += math.sqrt(2 / math.pi)
        bent *= part
        np.tanh(bent, out=bent)
        bent += 1
        bent *= 0.5
        part *= bent


def load_tensors(folder: Path, adapter: Path | None) -> dict[str, Array]:
    """Return the tensors of the model in the given folder and those of the adapter."""
    return load_safetensors(folder / "model.safetensors") | (load_safetensors(adapter) if adapter is not None else {})


def adapted_weight(tensors: dict[str, Array], name: str) -> Array:
    """Return the weight of a linear layer with its adapter added."""
    weight = tensors[f"{name}.weight"]
    if f"{name}.up" not in tensors:
        return weight
    adapted: Array = weight + tensors[f"{name}.up"].astype("f4") @ tensors[f"{name}.down"].astype("f4")
    return adapted


def load_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file: header length, JSON header, data. The data is memory-mapped."""
    import numpy as np

    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]])
            flat = np.frombuffer(mapped, kind, (end - begin) // kind.itemsize, start + begin)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors
