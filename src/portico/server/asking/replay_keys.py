"""Where in a body something is asked or done. A body that is run again comes to the same places in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Inside which inner calls and steps we are.
_path: ContextVar[str] = ContextVar("portico_place", default="")


class Places:
    """Gives each place a name.

    What is inside an inner call or a step is counted there: a step that is not done again must not shift the names of
    what comes after it, and two calls of one tool have nothing to do with each other.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def question(self, kind: str, key: str | None) -> str:
        """The author's name for it, or how manieth of its kind it is."""
        return _path.get() + key if key is not None else self._numbered(kind)

    def step(self, name: str) -> str:
        return _path.get() + name

    @contextmanager
    def inside_step(self, name: str) -> Iterator[None]:
        with _inside(self.step(name)):
            yield

    @contextmanager
    def inside_call(self, name: str) -> Iterator[None]:
        with _inside(self._numbered(name)):
            yield

    def _numbered(self, kind: str) -> str:
        place = _path.get() + kind
        self._counts[place] = self._counts.get(place, 0) + 1
        return f"{place}-{self._counts[place]}"


@contextmanager
def _inside(place: str) -> Iterator[None]:
    token = _path.set(f"{place}/")
    try:
        yield
    finally:
        _path.reset(token)
