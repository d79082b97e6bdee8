"""`include` and `exclude`: which names and URIs of an upstream are shown. One implementation for upstreams and views.

Names of tools and prompts are matched to the letter. URIs are matched in all of their readings, as access rules match
them: an `include` has to cover every one, an `exclude` needs only one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.protocol.uri_forms import canonical_spellings, uri_forms
from portico.protocol.uri_template import Template
from portico_gateway.policy.patterns import (
    covers,
    fold,
    folded_forms,
    globbed,
    has_variable,
    matches,
    meets,
    template_glob,
)

_Match = Callable[[str], bool]


class _UriTemplate(Struct, frozen=True):
    """A pattern that is the text of a URI template: it means the URIs of that template too."""

    owner: str
    template: Template
    glob: str

    def matches(self, owner: str, uri: str) -> bool:
        return fnmatchcase(owner, self.owner) and self.template.match(uri) is not None

    def covers(self, owner: str, uri: str) -> bool:
        """Return whether it matches a URI, and no reading of the URI leads out of the template."""
        return self.matches(owner, uri) and all(matches(self.glob, form) for form in uri_forms(uri).whole)


class NameFilter:
    """The names that `include` and `exclude` leave. Patterns of views begin with the alias of an upstream."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include, self._exclude = include, exclude
        self._included = _matcher(spelling for one in include for spelling in _spellings(one))
        self._included_paths = _matcher(spelling for one in include for spelling in _spellings(_without_query(one)))
        self._excluded = _matcher(fold(spelling) for one in exclude for spelling in _spellings(one))
        self._excluded_templates = [*filter(None, (_uri_template(fold(one)) for one in exclude))]
        templates = [*filter(None, map(_uri_template, include))]
        # A template is included to be listed. If URIs of it are included too, only those can be read.
        globs = [_glob(_halves(one)[1]) for one in include if not has_variable(one) and ":" in one]
        self._included_templates = [one for one in templates if not any(meets(glob, one.glob) for glob in globs)]

    def shows(self, name: str, owner: str | None = None) -> bool:
        """Return whether a name or a URI is shown. `owner` is the alias of the upstream, where patterns have it."""
        before = "" if owner is None else f"{owner}."
        if not self._include and not self._exclude:
            return True
        if has_variable(name) or not (":" in name or "/" in name):
            whole = before + name
            chosen = not self._include or any(fnmatchcase(whole, one) for one in self._include)
            excluded = any(fnmatchcase(whole, one) for one in self._exclude)
            return chosen and not excluded and not (has_variable(name) and self._excluded(fold(whole)))
        return not self._excludes(name, owner or "", before) and (
            not self._include or self._includes(name, owner or "", before)
        )

    def _includes(self, uri: str, owner: str, before: str) -> bool:
        def letter(form: str) -> bool:
            return any(fnmatchcase(before + form, one) for one in self._include)

        def same(form: str) -> bool:
            return self._included(before + form)

        def path(form: str) -> bool:
            return self._included_paths(before + form)

        if covers(uri_forms(uri), letter, same, path):
            return True
        return any(one.covers(owner, uri) for one in self._included_templates)

    def _excludes(self, uri: str, owner: str, before: str) -> bool:
        if not self._exclude:
            return False
        forms, prefix = folded_forms(uri), fold(before)
        return any(self._excluded(prefix + form) for form in forms) or any(
            one.matches(fold(owner), form) for one in self._excluded_templates for form in forms
        )


@lru_cache(maxsize=1024)
def name_filter(include: tuple[str, ...], exclude: tuple[str, ...]) -> NameFilter:
    """Return the filter of these patterns, compiled once."""
    return NameFilter(include, exclude)


def _matcher(patterns: Iterable[str]) -> _Match:
    """Return a function that tells whether one of several patterns matches."""
    joined = "|".join(f"(?:{translate(one)})" for one in dict.fromkeys(patterns))
    compiled = re.compile(joined) if joined else None
    return lambda text: compiled is not None and compiled.match(text) is not None


def _halves(pattern: str) -> tuple[str, str]:
    """Return what stands before the URI in a pattern, with its dot, and the URI; of the pattern of a name all of it."""
    colon = pattern.find(":")
    dot = pattern.rfind(".", 0, colon) + 1 if colon >= 0 else 0
    return pattern[:dot], pattern[dot:]


def _spellings(pattern: str) -> Iterable[str]:
    before, uri = _halves(pattern)
    if ":" not in uri or ".." in uri:
        return (pattern,)
    return [before + spelling for spelling in canonical_spellings(uri)]


def _without_query(pattern: str) -> str:
    """Return a pattern up to the place where a query or fragment may begin."""
    return re.split(r"[?#]", pattern, maxsplit=1)[0]


def _glob(pattern: str) -> str:
    """Return a pattern as a glob of access rules. A set of characters becomes any character."""
    return globbed(re.sub(r"\[[^\]]+\]", "?", pattern.replace("\\", "\\\\")))


def _uri_template(pattern: str) -> _UriTemplate | None:
    """Return the template that a pattern is the text of; None if it is none."""
    before, uri = _halves(pattern)
    if not has_variable(uri):
        return None
    try:
        return _UriTemplate(before.removesuffix("."), Template(uri), template_glob(uri))
    except UsageError:
        return None
