"""Patterns of rules: `owner.name` with `*` and `?` wildcards, and principals. No I/O.

Allow rules match exactly. Deny rules also match look-alikes: a name that differs in case, Unicode normalization or
invisible characters is the same name to a deny rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from portico.jsonschema.argument_issues import closest_names
from portico.protocol.errors import UsageError
from portico.protocol.uri_forms import MAX_CACHED_CHARS, UriForms, canonical_spellings, uri_variants

# Internal characters for the wildcards `*` and `?`.
# Noncharacters (Unicode, section 23.7) cannot be part of valid text, so they cannot collide with a character of a
# name.
_ANY_CHARS, _ANY_CHAR = "\U0010fffe", "\U0010ffff"
_VARIABLE = re.compile(r"\{[^{}]*\}")
# Positions where the query or fragment of a glob may begin.
_QUERY = re.compile(f"[?#{_ANY_CHAR}]")

Match = Callable[[str], bool]


def fold_confusables(text: str) -> str:
    """Return a canonical form that is equal for texts that look alike."""
    # Fast path: ASCII has no compatibility forms, so lowering the case suffices.
    if text.isascii() and text.isprintable():
        return text.lower()
    # Normalize twice, because casefolding can produce characters that NFKC changes again (Unicode, section 3.13,
    # D146).
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(char for char in plain if unicodedata.category(char) not in ("Cf", "Cc", "Mn"))


def compile_glob(text: str) -> str:
    """Compile a glob: wildcards become internal characters, and a backslash escapes the next character."""
    parts, escaped = [], False
    for char in text:
        if escaped or char not in "\\*?":
            parts.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            parts.append(_ANY_CHARS if char == "*" else _ANY_CHAR)
    return "".join(parts)


def glob_covers(glob: str, text: str) -> bool:
    """Return whether a glob matches a text, in O(len(glob) · len(text)) time.

    The text may contain wildcards itself; then every text that it matches must be covered.
    """
    # Greedy matching with one point of return, the last star. A regular expression with several stars could take
    # exponential time on a name that a client chose.
    at = position = 0
    star, resume = -1, 0
    while position < len(text):
        if at < len(glob) and (
            glob[at] == text[position] or (glob[at] == _ANY_CHAR and text[position] not in (_ANY_CHARS, _ANY_CHAR))
        ):
            if glob[at] == _ANY_CHARS:
                star, resume = at, position
                at += 1
                continue
            at, position = at + 1, position + 1
        elif at < len(glob) and glob[at] == _ANY_CHARS:
            star, resume = at, position
            at += 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            return False
    return all(char == _ANY_CHARS for char in glob[at:])


def globs_intersect(item: str, other: str) -> bool:
    """Return whether some text matches both globs."""
    # Dynamic programming by rows: which prefixes of `other` match the prefix of `item` so far.
    row = [True] + [False] * len(other)
    for position, char in enumerate(other):
        row[position + 1] = row[position] and char == _ANY_CHARS
    for char in item:
        after = [row[0] and char == _ANY_CHARS]
        for position, facing in enumerate(other):
            both = row[position] and (char == facing or _ANY_CHAR in (char, facing) or _ANY_CHARS in (char, facing))
            many = (char == _ANY_CHARS and (row[position + 1] or after[position])) or (
                facing == _ANY_CHARS and (after[position] or row[position + 1])
            )
            after.append(both or many)
        row = after
    return row[-1]


def compile_template_glob(template: str) -> str:
    """Return a glob that matches the URIs of a template."""
    return _VARIABLE.sub(_ANY_CHARS, template)


def has_variable(name: str) -> bool:
    """Return whether a name is a URI template."""
    return _VARIABLE.search(name) is not None


def uri_globs(glob: str) -> tuple[str, ...]:
    """Return the equivalent spellings of a URI glob, so that it matches canonical URIs however it is written.

    A glob with `..` is left unchanged, since its meaning may depend on a wildcard.
    """
    # Resolving `..` next to a wildcard could widen the pattern beyond what the operator wrote.
    if ".." in glob or not any(char in glob for char in ":/%"):
        return (glob,)
    return canonical_spellings(glob)


def covers(forms: UriForms, letter: Match, same: Match, path: Match) -> bool:
    """Return whether an allow pattern covers all spellings of a URI.

    `letter` matches the pattern as written, `same` every spelling of it, and `path` those up to a possible query: a
    target that ignores the query must not be reached by it, and a pattern with a query also allows its path.
    """
    return (
        letter(forms.whole[0])
        and all(same(form) for form in forms.whole)
        and all(same(form) or path(form) for form in forms.paths)
    )


def folded_forms(uri: str) -> tuple[str, ...]:
    """Return all spellings of a URI, folded. A deny pattern applies if it matches one of them."""
    return _cached_folded_forms(uri) if len(uri) <= MAX_CACHED_CHARS else _fold_forms(uri)


def _fold_forms(uri: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fold_confusables(_strip_wildcard_chars(form)) for form in uri_variants(uri)))


_cached_folded_forms = lru_cache(maxsize=4096)(_fold_forms)


def _strip_wildcard_chars(name: str) -> str:
    """Replace the internal wildcard characters in a name."""
    return name.replace(_ANY_CHARS, "\ufffd").replace(_ANY_CHAR, "\ufffd")


class ComponentPattern(Struct, frozen=True):
    """A pattern `owner.name`, as written and compiled."""

    text: str
    owner: str
    name: str
    # Spellings of `name` as a URI, and the same folded.
    uris: tuple[str, ...] = ()
    folded_uris: tuple[str, ...] = ()

    def matches_for_allow(self, kind: str, owner: str, name: str) -> bool:
        """Return whether an allow rule applies: exactly, and for every spelling of a URI."""
        if not glob_covers(self.owner, owner):
            return False
        if kind == "template" and has_variable(name):
            # The name may come from a request (`completion/complete`), with dot segments that lead elsewhere.
            return all(
                any(globs_intersect(glob, compile_template_glob(form)) for glob in (self.name, *self.uris))
                for form in uri_variants(name).whole
            )
        # A name that contains the internal characters is hostile; it never matches an allow rule.
        if _ANY_CHARS in name or _ANY_CHAR in name or not glob_covers(self.name, name):
            return False
        return kind not in ("resource", "template") or self._covers_uri(name)

    def _covers_uri(self, uri: str) -> bool:
        # Query strings may be ignored by the target, so both the whole URI and its path must be covered.
        heads = [glob[: match.start()] for glob in self.uris if (match := _QUERY.search(glob))]
        return covers(
            uri_variants(uri),
            lambda form: glob_covers(self.name, form),
            lambda form: any(glob_covers(glob, form) for glob in self.uris),
            lambda form: any(glob_covers(glob, form) for glob in heads),
        )

    def matches_for_deny(self, kind: str, owner: str, name: str) -> bool:
        """Return whether a deny rule applies. A template is denied only if all of its URIs are."""
        if not glob_covers(fold_confusables(self.owner), fold_confusables(owner)):
            return False
        if kind == "template" and has_variable(name):
            # Hiding a template that has some allowed URIs would hide those too; each URI is checked again when it is
            # read.
            forms = {*map(compile_template_glob, folded_forms(name)), fold_confusables(compile_template_glob(name))}
            return any(glob_covers(glob, form) for glob in self.folded_uris for form in forms)
        if kind in ("resource", "template"):
            return any(glob_covers(glob, form) for form in folded_forms(name) for glob in self.folded_uris)
        return glob_covers(fold_confusables(self.name), fold_confusables(_strip_wildcard_chars(name)))

    def overlaps(self, kind: str, owner: str, name: str) -> bool:
        """Return whether a restriction applies. A template is restricted if some of its URIs are."""
        if kind != "template" or not has_variable(name):
            return self.matches_for_deny(kind, owner, name)
        glob = fold_confusables(compile_template_glob(name))
        return glob_covers(fold_confusables(self.owner), fold_confusables(owner)) and any(
            globs_intersect(item, glob) for item in self.folded_uris
        )


def parse_pattern(location: str, text: str) -> ComponentPattern:
    """Parse a component pattern. Raises UsageError if it is invalid."""
    owner, name = (_ANY_CHARS, _ANY_CHARS) if text == "*" else map(compile_glob, _split_qualified_name(location, text))
    uris = uri_globs(name)
    return ComponentPattern(text, owner, name, uris, tuple(dict.fromkeys(map(fold_confusables, uris))))


def parse_qualified_name(where: str, text: str) -> tuple[str, str]:
    """Parse the qualified name of a single component into owner and name. Raises UsageError."""
    owner, name = _split_qualified_name(where, text)
    return re.sub(r"\\(.)", r"\1", owner), name


def _split_qualified_name(where: str, text: str) -> tuple[str, str]:
    """Split a qualified name at its first dot. A dot in the owner is escaped with a backslash."""
    # Split at the first dot: names contain dots more often than aliases do, and `owner.*` must work unescaped.
    match = re.match(r"((?:[^.\\]|\\.)+)\.(.+)", text, re.DOTALL)
    if match is None:
        hint = f"such as '*.{text}'" if text and "." not in text else "such as 'github.*'"
        raise UsageError(f"{where} must be owner.name, {hint}, got {text!r}")
    return match[1], match[2]


# Principals

PrincipalMatcher = Callable[[Any, bool], bool]
"Tests whether a principal matches. Without a principal, the flag says whether the caller is the local user."

_SPECIAL_PRINCIPALS = ("anonymous", "local", "*")
_PRINCIPAL_KEYS = ("id", "group", "scope", "client", "issuer")
# Issuer and ID. An issuer has no fragment (RFC 8414, section 2).
_ISSUER_QUALIFIED_ID = re.compile(r"(https?://[^#\s]+|tokens|certificate)#(.+)")


def parse_principals(location: str, value: Sequence[str], *, strict: bool) -> PrincipalMatcher:
    """Return a matcher for any of several terms. The parts of a term, joined by `and`, must all match.

    With `strict`, values are compared exactly, as allow rules do.
    """
    terms = [_all_of(_split_terms(location, term, strict)) for term in value]
    return terms[0] if len(terms) == 1 else lambda principal, local: any(matches(principal, local) for matches in terms)


def _split_terms(where: str, text: str, strict: bool) -> list[PrincipalMatcher]:
    parts = [part.strip() for part in re.split(r"\s+and\s+", text)]
    # With `issuer:` in the same term the ID is unambiguous, so it may be written without the issuer.
    by_issuer = any(part.startswith("issuer:") for part in parts)
    return [_parse_term(where, part, strict, by_issuer) for part in parts]


def unqualified_ids(texts: Sequence[str]) -> list[str]:
    """Return the principals that are named by an ID without an issuer."""
    results = []
    for item in texts:
        parts = [part.strip() for part in re.split(r"\s+and\s+", item)]
        if not any(part.startswith("issuer:") or _ISSUER_QUALIFIED_ID.fullmatch(part) for part in parts):
            results += [part for part in parts if part not in _SPECIAL_PRINCIPALS and _key(part) == "id"]
    return results


def _key(part: str) -> str:
    key, mark, _ = part.partition(":")
    return key if mark and key in _PRINCIPAL_KEYS else "id"


def _all_of(parts: list[PrincipalMatcher]) -> PrincipalMatcher:
    return parts[0] if len(parts) == 1 else lambda principal, local: all(matches(principal, local) for matches in parts)


def _parse_term(where: str, text: str, strict: bool, by_issuer: bool = False) -> PrincipalMatcher:
    if text == "*":
        return lambda principal, local: True
    if text == "anonymous":
        return lambda principal, local: principal is None and not local
    if text == "local":
        return lambda principal, local: principal is None and local
    named = _ISSUER_QUALIFIED_ID.fullmatch(text)
    if named is not None:
        return _all_of(
            [_match_attribute("issuer", named[1], strict), _match_attribute("id", named[2], strict, unqualified=False)]
        )
    key, mark, value = text.partition(":")
    if mark and key not in _PRINCIPAL_KEYS:
        close = closest_names(key, _PRINCIPAL_KEYS)
        if close:
            raise UsageError(f"{where} has the unknown key {key!r} in {text!r}; did you mean {close[0]!r}?")
        key, value = "id", text
    elif not mark:
        close = closest_names(text, _SPECIAL_PRINCIPALS[:2])
        if close and text not in _SPECIAL_PRINCIPALS:
            raise UsageError(
                f"{where} is {text!r}: did you mean {close[0]!r}? For a principal of that name write 'id:{text}'"
            )
        key, value = "id", text
    if not value:
        raise UsageError(f"{where} must name a principal, got {text!r}")
    return _match_attribute(key, value, strict, unqualified=strict and key == "id" and not by_issuer)


def _match_attribute(key: str, value: str, strict: bool, unqualified: bool = False) -> PrincipalMatcher:
    """Return a matcher for one attribute. With `unqualified`, ambiguous principals do not match."""
    if key == "scope":
        return lambda principal, local: principal is not None and not principal.missing_scopes(frozenset({value}))
    same: Callable[[str], str] = str if strict else fold_confusables
    expected = same(value)
    if key == "group":
        return lambda principal, local: any(same(group) == expected for group in getattr(principal, "groups", ()))
    field = {"id": "id", "client": "client_id", "issuer": "issuer"}[key]

    def holds(principal: Any, local: bool) -> bool:
        result = getattr(principal, field, None)
        # Two issuers may give the same ID to different users. An allow rule that names only the ID matches neither of
        # them.
        if unqualified and getattr(principal, "qualify_by_issuer", False):
            return False
        return result is not None and same(str(result)) == expected

    return holds
