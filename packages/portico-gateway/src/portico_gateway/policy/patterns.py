"""What rules name: `owner.name`, with `*` for anything and `?` for one character; and who they name. Pure.

What is allowed is matched to the letter. What is denied is matched whatever its letters look like: a name that differs
in case, in how Unicode writes it or in characters without a shape is the same name to a rule that denies.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from portico.jsonschema.argument_issues import nearest
from portico.protocol.errors import UsageError
from portico.protocol.uri_forms import MAX_CACHED_CHARS, UriForms, canonical_spellings, uri_forms

# In place of characters: what stands for any number of them, and for one.
_MANY, _ONE = "\U0010fffe", "\U0010ffff"
_VARIABLE = re.compile(r"\{[^{}]*\}")
# Where the query or fragment of a glob may begin.
_QUERY = re.compile(f"[?#{_ONE}]")

Match = Callable[[str], bool]
Globbed = Sequence[str]
"""A glob, character by character."""


def fold(text: str) -> str:
    """The same for all texts that look alike."""
    if text.isascii() and text.isprintable():
        return text.lower()
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(char for char in plain if unicodedata.category(char) not in ("Cf", "Cc", "Mn"))


def globbed(text: str) -> str:
    """A glob as it is matched: wildcards become characters that no name has, a backslash makes the next one plain."""
    found, escaped = [], False
    for char in text:
        if escaped or char not in "\\*?":
            found.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            found.append(_MANY if char == "*" else _ONE)
    return "".join(found)


def matches(glob: str, text: str) -> bool:
    """Whether a glob covers a text, in time that grows with the product of their lengths at most. A text may have
    wildcards itself: then it has to be covered whatever stands there."""
    at = place = 0
    star, resume = -1, 0
    while place < len(text):
        if at < len(glob) and (glob[at] == text[place] or (glob[at] == _ONE and text[place] not in (_MANY, _ONE))):
            if glob[at] == _MANY:
                star, resume = at, place
                at += 1
                continue
            at, place = at + 1, place + 1
        elif at < len(glob) and glob[at] == _MANY:
            star, resume = at, place
            at += 1
        elif star >= 0:
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return all(char == _MANY for char in glob[at:])


def meets(one: str, other: str) -> bool:
    """Whether some text is covered by both globs."""
    # Row by row: which beginnings of `other` can be met by the beginning of `one` so far.
    row = [True] + [False] * len(other)
    for place, char in enumerate(other):
        row[place + 1] = row[place] and char == _MANY
    for char in one:
        after = [row[0] and char == _MANY]
        for place, facing in enumerate(other):
            both = row[place] and (char == facing or _ONE in (char, facing) or _MANY in (char, facing))
            many = (char == _MANY and (row[place + 1] or after[place])) or (
                facing == _MANY and (after[place] or row[place + 1])
            )
            after.append(both or many)
        row = after
    return row[-1]


def template_glob(template: str) -> str:
    """The URIs of a template, as a glob."""
    return _VARIABLE.sub(_MANY, template)


def has_variable(name: str) -> bool:
    """Return whether a name is that of a template."""
    return _VARIABLE.search(name) is not None


def uri_globs(glob: str) -> tuple[str, ...]:
    """Return the spellings of a glob of URIs that mean the same, so that it is good for the canonical form of a URI
    however it was written itself. One with `..` in it is taken as it is: what it leaves may depend on a wildcard."""
    if ".." in glob or not any(char in glob for char in ":/%"):
        return (glob,)
    return canonical_spellings(glob)


def covers(forms: UriForms, letter: Match, same: Match, path: Match) -> bool:
    """Return whether an allow is good for all readings of a URI. `letter` matches the pattern as it was written, `same`
    every spelling of it, and `path` those up to where a query may begin: a target that ignores the query must not be
    led elsewhere by it, and a pattern that names a query allows its path."""
    return (
        letter(forms.whole[0])
        and all(same(form) for form in forms.whole)
        and all(same(form) or path(form) for form in forms.paths)
    )


def folded_forms(uri: str) -> tuple[str, ...]:
    """Return all readings of a URI, folded: a deny is good for the URI if it matches one of them."""
    return _cached_folded_forms(uri) if len(uri) <= MAX_CACHED_CHARS else _fold_forms(uri)


def _fold_forms(uri: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fold(_bare(form)) for form in uri_forms(uri)))


_cached_folded_forms = lru_cache(maxsize=4096)(_fold_forms)


def _bare(name: str) -> str:
    """Return a name without the characters that stand for wildcards here."""
    return name.replace(_MANY, "\ufffd").replace(_ONE, "\ufffd")


class Pattern(Struct, frozen=True):
    """`owner.name`, as it was written and as it is matched."""

    text: str
    owner: str
    name: str
    # The spellings of `name` as a URI, and the same folded.
    uris: tuple[str, ...] = ()
    folded_uris: tuple[str, ...] = ()

    def allows(self, kind: str, owner: str, name: str) -> bool:
        """Return whether a rule that allows means this: to the letter, and in every reading of a URI."""
        if not matches(self.owner, owner):
            return False
        if kind == "template" and has_variable(name):
            return meets(self.name, template_glob(name))
        if _MANY in name or _ONE in name or not matches(self.name, name):
            return False
        return kind not in ("resource", "template") or self._covers(name)

    def _covers(self, uri: str) -> bool:
        heads = [glob[: found.start()] for glob in self.uris if (found := _QUERY.search(glob))]
        return covers(
            uri_forms(uri),
            lambda form: matches(self.name, form),
            lambda form: any(matches(glob, form) for glob in self.uris),
            lambda form: any(matches(glob, form) for glob in heads),
        )

    def denies(self, kind: str, owner: str, name: str) -> bool:
        """Return whether a rule that denies may mean this. A template is denied where all of it is."""
        if not matches(fold(self.owner), fold(owner)):
            return False
        if kind == "template" and has_variable(name):
            return any(matches(glob, fold(template_glob(name))) for glob in self.folded_uris)
        if kind in ("resource", "template"):
            return any(matches(glob, form) for form in folded_forms(name) for glob in self.folded_uris)
        return matches(fold(self.name), fold(_bare(name)))

    def touches(self, kind: str, owner: str, name: str) -> bool:
        """The same for what only narrows: of a template that some of it is meant."""
        if kind != "template" or not has_variable(name):
            return self.denies(kind, owner, name)
        glob = fold(template_glob(name))
        return matches(fold(self.owner), fold(owner)) and any(meets(one, glob) for one in self.folded_uris)


def pattern(where: str, text: str) -> Pattern:
    """Raises UsageError for what is none."""
    owner, name = (_MANY, _MANY) if text == "*" else map(globbed, _halves(where, text))
    uris = uri_globs(name)
    return Pattern(text, owner, name, uris, tuple(dict.fromkeys(map(fold, uris))))


def owner_and_name(where: str, text: str) -> tuple[str, str]:
    """The same for a text that names one thing."""
    owner, name = _halves(where, text)
    return re.sub(r"\\(.)", r"\1", owner), name


def _halves(where: str, text: str) -> tuple[str, str]:
    """A dot in an owner has a backslash before it."""
    found = re.match(r"((?:[^.\\]|\\.)+)\.(.+)", text, re.DOTALL)
    if found is None:
        hint = f"such as '*.{text}'" if text and "." not in text else "such as 'github.*'"
        raise UsageError(f"{where} is {text!r}, which has no owner and name: write owner.name, {hint}")
    return found[1], found[2]


# Who

Who = Callable[[Any, bool], bool]
"""Whether a principal is meant; where there is none, whether it is one of this machine who asks."""

_WORDS = ("anonymous", "local", "*")
_KEYS = ("id", "group", "scope", "client", "issuer")
# Whose word it is, and whom it names: an issuer has no fragment (RFC 8414, section 2).
_NAMED_BY = re.compile(r"(https?://[^#\s]+|tokens|certificate)#(.+)")


def who(where: str, said: Sequence[str], *, strict: bool) -> Who:
    """Those whom a rule means: one of several, each of which may be several things at once, joined by `and`. `strict`:
    to the letter, as rules that allow have it."""
    terms = [_all_of(_parts(where, one, strict)) for one in said]
    return terms[0] if len(terms) == 1 else lambda principal, local: any(one(principal, local) for one in terms)


def _parts(where: str, said: str, strict: bool) -> list[Who]:
    found = [part.strip() for part in re.split(r"\s+and\s+", said)]
    by_issuer = any(part.startswith("issuer:") for part in found)
    return [_term(where, part, strict, by_issuer) for part in found]


def bare_ids(said: Sequence[str]) -> list[str]:
    """Principals that are named by an id alone, of any issuer."""
    found = []
    for one in said:
        parts = [part.strip() for part in re.split(r"\s+and\s+", one)]
        if not any(part.startswith("issuer:") or _NAMED_BY.fullmatch(part) for part in parts):
            found += [part for part in parts if part not in _WORDS and _key(part) == "id"]
    return found


def _key(part: str) -> str:
    key, mark, _ = part.partition(":")
    return key if mark and key in _KEYS else "id"


def _all_of(parts: list[Who]) -> Who:
    return parts[0] if len(parts) == 1 else lambda principal, local: all(one(principal, local) for one in parts)


def _term(where: str, text: str, strict: bool, by_issuer: bool = False) -> Who:
    if text == "*":
        return lambda principal, local: True
    if text == "anonymous":
        return lambda principal, local: principal is None and not local
    if text == "local":
        return lambda principal, local: principal is None and local
    named = _NAMED_BY.fullmatch(text)
    if named is not None:
        return _all_of([_holder("issuer", named[1], strict), _holder("id", named[2], strict, alone=False)])
    key, mark, value = text.partition(":")
    if mark and key not in _KEYS:
        close = nearest(key, _KEYS)
        if close:
            raise UsageError(f"{where} is {text!r}, and there is no {key!r}: did you mean {close[0]!r}?")
        key, value = "id", text
    elif not mark:
        close = nearest(text, _WORDS[:2])
        if close and text not in _WORDS:
            raise UsageError(f"{where} is {text!r}: did you mean {close[0]!r}? A principal of that name is 'id:{text}'")
        key, value = "id", text
    if not value:
        raise UsageError(f"{where} is {text!r}, which names no one")
    return _holder(key, value, strict, alone=strict and key == "id" and not by_issuer)


def _holder(key: str, value: str, strict: bool, alone: bool = False) -> Who:
    """`alone`: an id that nothing else is said of matches no principal where it may be another's."""
    if key == "scope":
        return lambda principal, local: principal is not None and not principal.lacks(frozenset({value}))
    same: Callable[[str], str] = str if strict else fold
    wanted = same(value)
    if key == "group":
        return lambda principal, local: any(same(one) == wanted for one in getattr(principal, "groups", ()))
    field = {"id": "id", "client": "client_id", "issuer": "issuer"}[key]

    def holds(principal: Any, local: bool) -> bool:
        found = getattr(principal, field, None)
        if alone and getattr(principal, "ambiguous", False):
            return False
        return found is not None and same(str(found)) == wanted

    return holds
