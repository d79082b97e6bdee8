"""Generate random JSON Schemas for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c", "from", "x-y", "kind"])
WORDS = st.sampled_from(["", "red", "green", "blue", "Ä", "a b"])


def _numbers(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.integers(-5, 10)
    return st.fixed_dictionaries(
        {"type": st.just(kind)},
        optional={
            "minimum": bounds,
            "maximum": st.integers(10, 20),
            "exclusiveMinimum": st.integers(-6, 5),
            "multipleOf": st.sampled_from([1, 2, 3, 4]),
        },
    )


_STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(3, 8),
        "pattern": st.sampled_from(["^[a-z]{3,8}$", "^a+$"]),
        "description": WORDS,
    },
)
_LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _STRINGS,
    _numbers("integer"),
    _numbers("number"),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(WORDS, st.integers(0, 3), st.none()), min_size=1, unique_by=repr),
    ),
    st.builds(lambda value: {"const": value}, st.one_of(WORDS, st.integers(0, 3))),
    st.just({"type": ["string", "null"]}),
)


def compound_schemas(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        objects(inner),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 4)},
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    )


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate objects without additional properties, so that a new property is a compatible change."""
    return st.builds(
        lambda members, needed: {
            "type": "object",
            "properties": members,
            "required": sorted(name for name in members if name in needed),
            "additionalProperties": False,
        },
        st.dictionaries(NAMES, inner, max_size=3),
        st.sets(NAMES),
    )


SCHEMAS = st.recursive(_LEAVES, compound_schemas, max_leaves=6)
ARGUMENTS = objects(SCHEMAS)


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generate a schema and a small change of it."""
    old = draw(ARGUMENTS)
    members, needed = dict(old["properties"]), set(old["required"])
    for _ in range(draw(st.integers(1, 3))):
        name, other = draw(NAMES), draw(SCHEMAS)
        way = draw(st.sampled_from(["add", "widen", "free", "need", "replace", "drop", "loosen"]))
        if way == "drop":
            members.pop(name, None)
        elif way == "need":
            needed.add(name)
        elif way == "free" or name not in members:
            needed.discard(name)
            members.setdefault(name, other)
        elif way == "widen":
            members[name] = {"anyOf": [other, members[name]]}
        elif way == "loosen":
            gone = draw(st.sampled_from(["minimum", "maximum", "minLength", "pattern", "minItems", "multipleOf"]))
            members[name] = {key: value for key, value in members[name].items() if key != gone}
        else:
            members[name] = other
    needed &= set(members)
    return old, {**old, "properties": members, "required": sorted(needed)}
