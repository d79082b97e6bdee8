"""URI templates: RFC 6570 level 4, in both directions, and the choice among several that match.

`Template.expand` is the RFC. `Template.match`, its reverse, is ours, because the RFC leaves it open:

- A variable without `*` gives a string and one with `*` a list; `{?x*}`, `{&x*}` and `{;x*}` give a dict when the
  names in the URI are not `x`. Only what was exploded comes back as the list or dict it was.
- `{x}` needs at least one character and stops at a raw `/`, `?` or `#` (and at `&` behind a literal `?`); `{+x}`
  needs one and stops at nothing. Either stops at a raw `;`, `?`, `&` or `#` that opens a later expression.
- Expressions that bring their own first character (`{/x}`, `{.x}`, `{#x}`, `{;x}`, `{?x}`, `{&x}`) may be missing,
  wholly or from some variable on; such variables are absent from the result. Behind that character the value may
  be empty.
- `{?a,b}`, `{&a,b}` and `{;a,b}` match in any order. A parameter that the template does not name, or a name twice
  without `*`, is no match: a misspelt parameter must not silently read something else.
- Several readings: the leftmost variable is the longest, except that it leaves a following optional expression
  its share. `{name}{.ext}` reads `a.tar.gz` as `a.tar` and `gz`.
- Literals compare exactly, case included; `%7E` and `~` are the same, `%2F` and `/` are not. Non-ASCII characters
  may stand raw. A `+` is a plus sign, in a query too.

Values arrive percent-decoded. Broken percent sequences, invalid UTF-8 and control characters are no match.
A decoded value may contain `/` and be or contain `..`: `%2F` in `{x}` is how a value holds a slash. Code that
makes a file path of a value must resolve it and check that it stays inside its folder; a template is no guard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from portico.protocol.errors import UsageError
from portico.protocol.uri_template_matching import Matcher, Value
from portico.protocol.uri_template_syntax import Expression, Given, Literal, Part, decode, expand, parse

__all__ = ["Given", "Template", "Templates", "Value", "begins_with_variable", "parsed"]


class Template:
    """A URI template, parsed once. `rank` is smaller the more specific it is. Equal texts are equal templates."""

    __slots__ = ("_matcher", "_parts", "names", "rank", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = parse(text)
        self._matcher = Matcher(self._parts)
        self.names = tuple(dict.fromkeys(name for name, _ in _variables(self._parts)))
        self.rank = _rank(self._parts)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def expand(self, values: Mapping[str, Given]) -> str:
        """The URI for these values; what is missing, None or an empty list or mapping expands to nothing."""
        return "".join([expand(part, values) for part in self._parts])

    def match(self, uri: str) -> dict[str, Value] | None:
        """The values with which this template gives `uri`, or None. Takes time linear in the length of `uri`."""
        units = decode(uri)
        return None if units is None else self._matcher.match(units)


@lru_cache(maxsize=10_000)
def parsed(text: str) -> Template | None:
    """Return the template that a remote server wrote; None if it is malformed, and can match nothing."""
    try:
        return Template(text)
    except UsageError:
        return None


def begins_with_variable(template: str) -> bool:
    """Return whether the literal text that a template begins with has not even a whole scheme, so that the template
    matches URIs of any scheme."""
    head = template.partition("{")
    return bool(head[1]) and ":" not in head[0] and "/" not in head[0]


class Templates:
    """Many templates, found by the literal text they begin with: those that begin otherwise are never tried."""

    def __init__(self, templates: Iterable[Template] = ()) -> None:
        self._by_head: dict[str, dict[Template, int]] = {}
        self._lengths: Counter[int] = Counter()  # of the heads, so that a look-up knows which beginnings to try
        self._added = 0
        for template in templates:
            self.add(template)

    def __len__(self) -> int:
        return self._lengths.total()

    def __contains__(self, template: Template) -> bool:
        return template in self._by_head.get(template._matcher.head, ())

    def __iter__(self) -> Iterator[Template]:
        """In the order in which they were added."""
        places = {template: place for those in self._by_head.values() for template, place in those.items()}
        return iter(sorted(places, key=places.__getitem__))

    def add(self, template: Template) -> None:
        """A template that is here already keeps its place."""
        if template in self:
            return
        head = template._matcher.head
        self._by_head.setdefault(head, {})[template] = self._added
        self._lengths[len(head)] += 1
        self._added += 1

    def remove(self, template: Template) -> None:
        if template not in self:
            raise UsageError(f"cannot remove {template.text!r}: it was not added")
        head = template._matcher.head
        del self._by_head[head][template]
        if not self._by_head[head]:
            del self._by_head[head]
        self._lengths[len(head)] -= 1
        if not self._lengths[len(head)]:
            del self._lengths[len(head)]

    def best(self, uri: str) -> tuple[Template, dict[str, Value]] | None:
        """The most specific template that matches, with its values.

        More literal characters win, then fewer variables, then fewer `{+x}`, then whichever came first.
        """
        units = decode(uri)
        if units is None:
            return None
        places: dict[Template, int] = {}
        for length in self._lengths:
            places.update(self._by_head.get(units[:length], {}))
        for template in sorted(places, key=lambda template: (template.rank, places[template])):
            values = template._matcher.match(units)
            if values is not None:
                return template, values
        return None


def _variables(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Each name with its operator, in order."""
    expressions = [part for part in parts if isinstance(part, Expression)]
    return [(variable.name, part.operator) for part in expressions for variable in part.variables]


def _rank(parts: Sequence[Part]) -> tuple[int, int, int]:
    variables = _variables(parts)
    literal = sum(len(part.units) for part in parts if isinstance(part, Literal))
    return -literal, len(variables), sum(operator == "+" for _, operator in variables)
