"""all-MiniLM-L6-v2, a small BERT that turns a text into a vector of its meaning, computed with numpy alone.

Six layers of attention over pieces of words (Devlin et al., 2018), and the mean of what comes out, of length one. The
weights stay in their file and are mapped into memory, so nothing is loaded before it is used, and processes share it.

Nearly all of the time goes into multiplying by the weights: 21 million operations for each piece. Many texts are
therefore encoded together, one below the other and without padding; only attention looks at one text at a time.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico_services.memory.search.wordpiece import WordPieces

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float32]]

WIDTH = 384
LAYERS, HEADS = 6, 12
EPSILON = 1e-12
# The model was trained on texts of this many pieces.
MOST_PIECES = 256
# So many pieces are encoded together: enough for the full speed of a multiplication, and still in the cache.
TOGETHER = 512
_TYPES = {"F32": "<f4", "I64": "<i8"}

# A question has few pieces, and rearranging the weights for one large multiplication would take as long as that itself.
# OpenBLAS does without for small ones (at most a million operations, where there is AVX-512), so up to `_FEW` rows are
# multiplied in parts of `_ROWS` by `_COLUMNS`.
_FEW, _ROWS, _COLUMNS = 64, 20, 32
_GELU_ROWS = 64


class MiniLM:
    name = "all-MiniLM-L6-v2"

    def __init__(self, folder: Path) -> None:
        tensors = mapped(folder / "model.safetensors")
        self._pieces = WordPieces(folder / "vocab.txt")
        self._words = tensors["embeddings.word_embeddings.weight"]
        self._places = position_table(tensors)
        self._norm = _Norm(tensors, "embeddings.LayerNorm")
        self._layers = [_Layer(tensors, f"encoder.layer.{number}.") for number in range(LAYERS)]

    def encode_all(self, texts: Sequence[str], most: int = MOST_PIECES) -> list[Array]:
        """The vectors of texts, in their order."""
        return encode_in_lots([self._pieces.numbers(text, most) for text in texts], self._encoded)

    def _encoded(self, texts: Sequence[list[int]]) -> Iterator[Array]:
        """The vectors of texts that are sorted by their length."""
        import numpy as np

        runs = _runs([len(text) for text in texts])
        states = self._words[[number for text in texts for number in text]]
        states += self._places[[place for text in texts for place in range(len(text))]]
        states = self._norm(states)
        for layer in self._layers:
            states = layer(states, runs)
        for start, count, length in runs:
            means = states[start : start + count * length].reshape(count, length, WIDTH).mean(1)
            means /= np.sqrt(np.einsum("ij,ij->i", means, means))[:, None]
            yield from means


# A run is what lies together and has the same length: its first row, how many texts, how many rows each.
Run = tuple[int, int, int]


def _runs(lengths: Sequence[int]) -> list[Run]:
    found, start = [], 0
    for length, same in groupby(lengths):
        count = len(list(same))
        found.append((start, count, length))
        start += count * length
    return found


def encode_in_lots(
    numbers: Sequence[list[int]], encoded: Callable[[Sequence[list[int]]], Iterable[Array]]
) -> list[Array]:
    """The vectors of texts in their order, which `encoded` is given sorted by length, and not too many at once."""
    order = sorted(range(len(numbers)), key=lambda place: len(numbers[place]))
    found: dict[int, Array] = {}
    for lot in _lots(order, numbers):
        found.update(zip(lot, encoded([numbers[place] for place in lot]), strict=True))
    return [found[place] for place in range(len(numbers))]


def position_table(tensors: dict[str, Array]) -> Array:
    """What is added to a piece at each position: all of them are of the first of two types."""
    found: Array = (
        tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    )
    return found


def _lots(order: Sequence[int], numbers: Sequence[list[int]]) -> Iterator[list[int]]:
    """The texts that are encoded together, by their places."""
    lot: list[int] = []
    size = 0
    for place in order:
        if lot and size + len(numbers[place]) > TOGETHER:
            yield lot
            lot, size = [], 0
        lot.append(place)
        size += len(numbers[place])
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
        query *= 1 / math.sqrt(WIDTH // HEADS)
        seen = np.empty_like(states)
        for run in runs:
            shares = _heads(query, run) @ _heads(key, run).swapaxes(2, 3)
            shares -= shares.max(-1, keepdims=True)
            np.exp(shares, out=shares)
            shares /= shares.sum(-1, keepdims=True)
            np.matmul(shares, _heads(value, run), out=_heads(seen, run))
        return seen


def _heads(states: Array, run: Run) -> Array:
    """A view of a run: text, head, row, number."""
    start, count, length = run
    rows = states[start : start + count * length]
    return rows.reshape(count, length, HEADS, WIDTH // HEADS).swapaxes(1, 2)


class _Linear:
    def __init__(self, tensors: dict[str, Array], name: str) -> None:
        self._weight, self._bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        self._blocks: Array | None = None

    def __call__(self, states: Array) -> Array:
        import numpy as np

        found = np.empty((len(states), len(self._bias)), np.float32)
        if len(states) > _FEW:
            np.matmul(states, self._weight.T, out=found)
        else:
            self._multiply_few(states, found)
        found += self._bias
        return found

    def _multiply_few(self, states: Array, found: Array) -> None:
        import numpy as np

        if self._blocks is None:
            blocks = self._weight.reshape(-1, _COLUMNS, self._weight.shape[1]).swapaxes(1, 2)
            self._blocks = np.ascontiguousarray(blocks)
        for start in range(0, len(states), _ROWS):
            part = found[start : start + _ROWS]
            columns = part.reshape(len(part), -1, _COLUMNS).swapaxes(0, 1)
            np.matmul(states[start : start + _ROWS], self._blocks, out=columns)


class _Norm:
    def __init__(self, tensors: dict[str, Array], name: str) -> None:
        self._weight, self._bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    def __call__(self, states: Array) -> Array:
        """The same array, changed."""
        import numpy as np

        states -= np.add.reduce(states, 1, keepdims=True) * 1 / WIDTH
        squares = np.einsum("ij,ij->i", states, states)
        states /= np.sqrt(squares * 1 / WIDTH + EPSILON)[:, None]
        states *= self._weight
        states += self._bias
        return states


def _gelu(states: Array) -> None:
    """x·Φ(x) in place, with Φ by its usual approximation with tanh (Hendrycks and Gimpel, 2016), which is off by less
    than 0.0005."""
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


def mapped(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file: the length of a header, the header in JSON, and the numbers."""
    import numpy as np

    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    tensors = {}
    for name, told in header.items():
        if name != "__metadata__":
            begin, end = told["data_offsets"]
            kind = np.dtype(_TYPES[told["dtype"]])
            flat = np.frombuffer(whole, kind, (end - begin) // kind.itemsize, start + begin)
            tensors[name] = flat.reshape(told["shape"])
    return tensors
