"""URI templates: RFC 6570 level 4, expansion and matching, and selection of the best match.

`UriTemplate.expand` implements the RFC. Matching, its inverse, is not specified there; `UriTemplate.match` works as
follows:

- A variable without `*` yields a string and one with `*` a list; `{?x*}`, `{&x*}` and `{;x*}` yield a dict if the
  names in the URI are not `x`. Only exploded values are restored as the list or dict they were.
- `{x}` needs at least one character and stops at a raw `/`, `?` or `#` (and at `&` after a literal `?`); `{+x}`
  needs one and stops at nothing. Both stop at a raw `;`, `?`, `&` or `#` that opens a later expression.
- Expressions with a leading character (`{/x}`, `{.x}`, `{#x}`, `{;x}`, `{?x}`, `{&x}`) may be missing, completely or
  from some variable on; such variables are absent from the result. After that character the value may be empty.
- `{?a,b}`, `{&a,b}` and `{;a,b}` match in any order. A parameter that the template does not name, or a repeated name
  without `*`, does not match: a misspelled parameter must not silently read something else.
- Ambiguity: the leftmost variable is the longest, except that it leaves a following optional expression its part.
  `{name}{.ext}` reads `a.tar.gz` as `a.tar` and `gz`.
- Literals are compared exactly, including case; `%7E` and `~` are equal, `%2F` and `/` are not. Non-ASCII characters
  may be raw. A `+` is a plus sign, also in a query.

Values are percent-decoded. Broken percent-encoding, invalid UTF-8 and control characters do not match. A decoded value
may contain `/` and be or contain `..`: `%2F` in `{x}` represents a slash. Code that builds a file path from a value
must resolve it and check that it stays inside its folder; a template does not protect against traversal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from portico.protocol.errors import UsageError
from portico.protocol.uri_template_matching import MatchedValue, TemplateMatcher
from portico.protocol.uri_template_syntax import (
    Expression,
    LiteralPart,
    TemplatePart,
    TemplateValue,
    decode_uri,
    expand_part,
    parse_template,
)

__all__ = [
    "MatchedValue",
    "TemplateValue",
    "UriTemplate",
    "UriTemplateIndex",
    "begins_with_variable",
    "try_parse_template",
]


class UriTemplate:
    """Parsed URI template. A smaller `specificity` is more specific. Templates with equal text are equal."""

    __slots__ = ("_matcher", "_parts", "specificity", "text", "variable_names")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = parse_template(text)
        self._matcher = TemplateMatcher(self._parts)
        self.variable_names = tuple(dict.fromkeys(name for name, _ in _variables(self._parts)))
        self.specificity = _rank(self._parts)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UriTemplate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def expand(self, values: Mapping[str, TemplateValue]) -> str:
        """Expand the template. Missing values, None and empty lists or mappings expand to nothing."""
        return "".join([expand_part(part, values) for part in self._parts])

    def match(self, uri: str) -> dict[str, MatchedValue] | None:
        """Return the values for which this template expands to `uri`, or None. Runs in linear time."""
        units = decode_uri(uri)
        return None if units is None else self._matcher.match(units)


# Upstreams list the same templates again and again. Bounded, because a remote server chooses them.
@lru_cache(maxsize=10_000)
def try_parse_template(text: str) -> UriTemplate | None:
    """Parse a template of a remote server, or return None if it is malformed."""
    try:
        return UriTemplate(text)
    except UsageError:
        return None


def begins_with_variable(template: str) -> bool:
    """Return whether a template's literal prefix lacks a complete scheme, so that it matches URIs of any scheme."""
    head = template.partition("{")
    return bool(head[1]) and ":" not in head[0] and "/" not in head[0]


class UriTemplateIndex:
    """Index of templates by literal prefix: templates with another prefix are never tried."""

    def __init__(self, templates: Iterable[UriTemplate] = ()) -> None:
        self._by_head: dict[str, dict[UriTemplate, int]] = {}
        self._lengths: Counter[int] = Counter()  # prefix lengths, so that a lookup knows which prefixes to try
        self._added = 0
        for template in templates:
            self.add(template)

    def __len__(self) -> int:
        return self._lengths.total()

    def __contains__(self, template: UriTemplate) -> bool:
        return template in self._by_head.get(template._matcher.literal_prefix, ())

    def __iter__(self) -> Iterator[UriTemplate]:
        """Iterate in insertion order."""
        positions = {
            template: position for by_template in self._by_head.values() for template, position in by_template.items()
        }
        return iter(sorted(positions, key=positions.__getitem__))

    def add(self, template: UriTemplate) -> None:
        """Add a template. One that is already present keeps its position."""
        if template in self:
            return
        head = template._matcher.literal_prefix
        self._by_head.setdefault(head, {})[template] = self._added
        self._lengths[len(head)] += 1
        self._added += 1

    def remove(self, template: UriTemplate) -> None:
        if template not in self:
            raise UsageError(f"cannot remove {template.text!r}: it was not added")
        head = template._matcher.literal_prefix
        del self._by_head[head][template]
        if not self._by_head[head]:
            del self._by_head[head]
        self._lengths[len(head)] -= 1
        if not self._lengths[len(head)]:
            del self._lengths[len(head)]

    def match(self, uri: str) -> tuple[UriTemplate, dict[str, MatchedValue]] | None:
        """Return the most specific matching template with its values, or None.

        More literal characters win, then fewer variables, then fewer `{+x}`, then insertion order.
        """
        units = decode_uri(uri)
        if units is None:
            return None
        positions: dict[UriTemplate, int] = {}
        # Templates of one server share a few prefixes, so this is a handful of dictionary lookups however many
        # there are.
        for length in self._lengths:
            positions.update(self._by_head.get(units[:length], {}))
        for template in sorted(positions, key=lambda template: (template.specificity, positions[template])):
            values = template._matcher.match(units)
            if values is not None:
                return template, values
        return None


def _variables(parts: Sequence[TemplatePart]) -> list[tuple[str, str]]:
    """Return each variable name with its operator, in order."""
    expressions = [part for part in parts if isinstance(part, Expression)]
    return [(variable.name, part.operator) for part in expressions for variable in part.variables]


def _rank(parts: Sequence[TemplatePart]) -> tuple[int, int, int]:
    variables = _variables(parts)
    literal = sum(len(part.units) for part in parts if isinstance(part, LiteralPart))
    # A `{+x}` also matches slashes, so it is the least specific kind of variable.
    return -literal, len(variables), sum(operator == "+" for _, operator in variables)
