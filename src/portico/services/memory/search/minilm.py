"""all-MiniLM-L6-v2, a small BERT that turns a text into a vector of its meaning, computed with numpy alone.

Six layers of attention over pieces of words (Devlin et al., 2018), and the mean of what comes out, of length one. The
weights stay in their file and are mapped into memory, so nothing is loaded before it is used, and processes share it.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float32]]

# Text to pieces of words

_UNKNOWN, _BEGIN, _END = "[UNK]", "[CLS]", "[SEP]"
_LONGEST_WORD = 100
# To BERT, all of ASCII that is neither letter nor digit is punctuation, which separates words and is a word itself. So
# is each Chinese character.
_ALONE = r"!-/:-@\[-`{-~\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_WORD = re.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+")


class WordPieces:
    """A vocabulary: one piece in each line of a file, its number being that of the line."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").split("\n")
        self._numbers = {piece: number for number, piece in enumerate(lines) if piece}
        self._pieces = lru_cache(16384)(self._cut)

    def numbers(self, text: str, most: int) -> list[int]:
        """The numbers of the pieces of a text, at most so many; the first and the last mark its ends."""
        found: list[int] = [self._numbers[_BEGIN]]
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= most:
                break
        return [*found[: most - 1], self._numbers[_END]]

    def _cut(self, word: str) -> tuple[int, ...]:
        """The numbers of the pieces of a word: the longest piece first, and so on with the rest."""
        if len(word) > _LONGEST_WORD:
            return (self._numbers[_UNKNOWN],)
        found = []
        start = 0
        while start < len(word):
            end = len(word)
            while end > start:
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
                end -= 1
            else:
                return (self._numbers[_UNKNOWN],)
            found.append(number)
            start = end
        return tuple(found)


def _words(text: str) -> Iterator[str]:
    """The words of a text in lower case and without accents."""
    text = text.lower()
    if not text.isascii():
        text = "".join(map(_spaced, unicodedata.normalize("NFD", text)))
    return (found[0] for found in _WORD.finditer(text))


def _spaced(one: str) -> str:
    category = unicodedata.category(one)
    if category == "Mn":
        return ""
    return f" {one} " if category.startswith("P") else one


# The model

WIDTH = 384
_LAYERS, _HEADS = 6, 12
_EPSILON = 1e-12
# The model was trained on texts of this many pieces.
MOST_PIECES = 256
_TYPES = {"F32": "<f4", "I64": "<i8"}


class MiniLM:
    name = "all-MiniLM-L6-v2"

    def __init__(self, folder: Path) -> None:
        self._weights = _mapped(folder / "model.safetensors")
        self._pieces = WordPieces(folder / "vocab.txt")

    def encode(self, text: str, most: int = MOST_PIECES) -> Array:
        import numpy as np

        numbers = self._pieces.numbers(text, most)
        states = self._embedded(numbers)
        for layer in range(_LAYERS):
            states = self._layer(states, f"encoder.layer.{layer}.")
        mean: Array = states.mean(0)
        return mean / np.float32(np.sqrt(mean @ mean))

    def _embedded(self, numbers: list[int]) -> Array:
        weights = self._weights
        words = weights["embeddings.word_embeddings.weight"][numbers]
        places = weights["embeddings.position_embeddings.weight"][: len(numbers)]
        return self._norm(
            words + places + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
        )

    def _layer(self, states: Array, layer: str) -> Array:
        import numpy as np

        heads = [
            self._linear(states, f"{layer}attention.self.{part}")
            .reshape(len(states), _HEADS, WIDTH // _HEADS)
            .transpose(1, 0, 2)
            for part in ("query", "key", "value")
        ]
        scores = heads[0] @ heads[1].transpose(0, 2, 1) / np.float32(math.sqrt(WIDTH // _HEADS))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        seen = (shares @ heads[2]).transpose(1, 0, 2).reshape(len(states), WIDTH)
        states = self._norm(
            states + self._linear(seen, f"{layer}attention.output.dense"), f"{layer}attention.output.LayerNorm"
        )
        wide = _gelu(self._linear(states, f"{layer}intermediate.dense"))
        return self._norm(states + self._linear(wide, f"{layer}output.dense"), f"{layer}output.LayerNorm")

    def _linear(self, states: Array, name: str) -> Array:
        found: Array = states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return found

    def _norm(self, states: Array, name: str) -> Array:
        import numpy as np

        centred = states - states.mean(-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(_EPSILON))
        found: Array = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return found


def _gelu(states: Array) -> Array:
    """x·Φ(x), with the error function by formula 7.1.26 of Abramowitz and Stegun: off by less than 2·10⁻⁷."""
    import numpy as np

    size = np.abs(states) / np.float32(math.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * size)
    rest = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * np.float32(1.061405429)))))
    half = rest * np.exp(-size * size) / 2
    found: Array = (states * np.where(states < 0, half, 1 - half)).astype(np.float32)
    return found


def _mapped(path: Path) -> dict[str, Array]:
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
