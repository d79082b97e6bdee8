"""`include` and `exclude` patterns for names and URIs, shared by upstreams and views.

Tool and prompt names are matched exactly. URIs are matched in all of their equivalent spellings, like access rules: an
`include` must cover every spelling, an `exclude` needs to match only one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.protocol.uri_forms import canonical_spellings, uri_variants
from portico.protocol.uri_template import UriTemplate
from portico_gateway.policy.patterns import (
    compile_glob,
    compile_template_glob,
    covers,
    fold_confusables,
    folded_forms,
    glob_covers,
    globs_intersect,
    has_variable,
)

_Match = Callable[[str], bool]


class _OwnedUriTemplate(Struct, frozen=True):
    """Pattern that is the text of a URI template; it also matches the URIs of that template."""

    owner: str
    template: UriTemplate
    glob: str

    def matches(self, owner: str, uri: str) -> bool:
        return fnmatchcase(owner, self.owner) and self.template.match(uri) is not None

    def covers(self, owner: str, uri: str) -> bool:
        """Return whether the pattern matches a URI in every spelling."""
        return self.matches(owner, uri) and all(glob_covers(self.glob, form) for form in uri_variants(uri).whole)


class NameFilter:
    """Compiled `include` and `exclude` patterns. Patterns of views begin with the alias of an upstream."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include, self._exclude = include, exclude
        self._included = _matcher(spelling for template in include for spelling in _uri_spellings(template))
        self._included_paths = _matcher(
            spelling for template in include for spelling in _uri_spellings(_without_query(template))
        )
        # Confusable characters are folded for exclusion only: an `include` must not admit look-alikes.
        self._excluded = _matcher(
            fold_confusables(spelling) for template in exclude for spelling in _uri_spellings(template)
        )
        self._excluded_templates = [*filter(None, (_uri_template(fold_confusables(template)) for template in exclude))]
        templates = [*filter(None, map(_uri_template, include))]
        # An included template can be listed. If some of its URIs are included too, only those can be read.
        globs = [
            _glob(_split_pattern(template)[1]) for template in include if not has_variable(template) and ":" in template
        ]
        self._included_templates = [
            template for template in templates if not any(globs_intersect(glob, template.glob) for glob in globs)
        ]

    def shows(self, name: str, owner: str | None = None) -> bool:
        """Return whether a name or URI is visible. `owner` is the alias of the upstream, if the patterns contain it."""
        before = "" if owner is None else f"{owner}."
        if not self._include and not self._exclude:
            return True
        if ":" not in name and "/" not in name:
            full_name = before + name
            chosen = not self._include or any(fnmatchcase(full_name, item) for item in self._include)
            return chosen and not any(fnmatchcase(full_name, item) for item in self._exclude)
        # A URI in a request may contain braces as well, so the text of a template is checked like a URI.
        return not self._excludes(name, owner or "", before) and (
            not self._include or self._includes(name, owner or "", before)
        )

    def _includes(self, uri: str, owner: str, before: str) -> bool:
        def letter(form: str) -> bool:
            return any(fnmatchcase(before + form, item) for item in self._include)

        def same(form: str) -> bool:
            return self._included(before + form)

        def path(form: str) -> bool:
            return self._included_paths(before + form)

        if covers(uri_variants(uri), letter, same, path):
            return True
        return any(included_template.covers(owner, uri) for included_template in self._included_templates)

    def _excludes(self, uri: str, owner: str, before: str) -> bool:
        if not self._exclude:
            return False
        forms, prefix = folded_forms(uri), fold_confusables(before)
        return any(self._excluded(prefix + form) for form in forms) or any(
            excluded_template.matches(fold_confusables(owner), form)
            for excluded_template in self._excluded_templates
            for form in forms
        )


@lru_cache(maxsize=1024)
def name_filter(include: tuple[str, ...], exclude: tuple[str, ...]) -> NameFilter:
    """Return the filter for these patterns, compiled once."""
    return NameFilter(include, exclude)


def _matcher(patterns: Iterable[str]) -> _Match:
    """Return a function that tests whether any of the patterns matches."""
    joined = "|".join(f"(?:{translate(fromkey)})" for fromkey in dict.fromkeys(patterns))
    compiled = re.compile(joined) if joined else None
    return lambda text: compiled is not None and compiled.match(text) is not None


def _split_pattern(pattern: str) -> tuple[str, str]:
    """Split a pattern into the owner prefix with its dot and the URI. For a name pattern the prefix is empty."""
    colon = pattern.find(":")
    dot = pattern.rfind(".", 0, colon) + 1 if colon >= 0 else 0
    return pattern[:dot], pattern[dot:]


def _uri_spellings(pattern: str) -> Iterable[str]:
    before, uri = _split_pattern(pattern)
    if ":" not in uri or ".." in uri:
        return (pattern,)
    return [before + spelling for spelling in canonical_spellings(uri)]


def _without_query(pattern: str) -> str:
    """Return a pattern up to the position where a query or fragment may begin."""
    return re.split(r"[?#]", pattern, maxsplit=1)[0]


def _glob(pattern: str) -> str:
    """Return a pattern as a glob of access rules. A character set becomes a single-character wildcard."""
    return compile_glob(re.sub(r"\[[^\]]+\]", "?", pattern.replace("\\", "\\\\")))


def _uri_template(pattern: str) -> _OwnedUriTemplate | None:
    """Return the URI template of a pattern, or None if the pattern is not a template."""
    before, uri = _split_pattern(pattern)
    if not has_variable(uri):
        return None
    try:
        return _OwnedUriTemplate(before.removesuffix("."), UriTemplate(uri), compile_template_glob(uri))
    except UsageError:
        return None
