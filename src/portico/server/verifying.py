"""What a body returns, held against what its annotation promised."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import msgspec

from portico.schema.decode import Translator, hook, is_native
from portico.schema.hints import is_pydantic, peel, shape_of

Verify = Callable[[Any, bytes], None]


def verifier(hint: Any, name: str) -> Verify | None:
    """A check that the encoded value fits the output schema: clients hold us to it, and so do we.

    An instance of the annotated class is trusted. Anything else is decoded once more, in C, where msgspec knows the
    type; where it does not, decoding would run the author's own code again, and that is not done.
    """
    bare = peel(hint)[0]
    if bare in (Any, object, Parameter.empty):
        return None
    trusted = bare if _is_made_of_fields(bare) else ()
    if not trusted and not is_native(hint):
        return None
    # A bool is an int for Python and not for JSON, so this one is compared exactly. No float: NaN becomes null.
    exact = bare if bare in (int, bool) else None
    decode = msgspec.json.Decoder(Translator().translate(hint), dec_hook=hook).decode

    def verify(value: Any, encoded: bytes) -> None:
        if type(value) is exact or isinstance(value, trusted):
            return
        try:
            decode(encoded)
        except ValueError as reason:
            raise TypeError(f"{name} returned a {type(value).__name__} that does not fit {hint}: {reason}") from None

    return verify


def _is_made_of_fields(bare: Any) -> bool:
    if not isinstance(bare, type) or typing.is_typeddict(bare):
        return False
    return shape_of(bare) is not None or is_pydantic(bare) or issubclass(bare, enum.Enum)
