"""The reverse of expansion: which values make a template give this URI. What counts as a match is said in `uris`.

A template becomes a row of tokens, and the question which characters each token takes is decided for all places of
the URI at once: a set of places is one integer, a bit for each, and a token turns the set of places where it may
end into the set of places where it may begin with a few operations on such integers. So an ambiguous template costs
what a plain one costs: a fixed number of passes over the URI. Nothing is tried and taken back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from portico.protocol.uri_template_syntax import OPERATORS, Expression, Literal, Operator, Part, Variable, plain

Value: TypeAlias = str | list[str] | dict[str, str]


class Skip(Struct, frozen=True):
    """What follows, up to the token `to`, may be missing."""

    to: int


class Run(Struct, frozen=True):
    """Consecutive characters of a kind: the value of one variable, or all the parameters of a named expression."""

    variables: tuple[Variable, ...]
    operator: Operator
    passes: bytes  # for bytes.translate: b"1" where a character may belong to the run, b"0" where not
    least: int
    most: int  # 0: any number


Token: TypeAlias = Literal | Skip | Run
Captures: TypeAlias = list[tuple[Run, str]]
Found: TypeAlias = list[tuple[Variable, Value]]


class Matcher:
    """`head` is the literal that every match begins with, possibly empty."""

    __slots__ = ("_tail", "_tokens", "head")

    def __init__(self, parts: Sequence[Part]) -> None:
        middle = _merge(parts)
        first = middle.pop(0) if middle and isinstance(middle[0], Literal) else None
        last = middle.pop() if middle and isinstance(middle[-1], Literal) else None
        self.head = first.units if isinstance(first, Literal) else ""
        self._tail = last.units if isinstance(last, Literal) else ""
        self._tokens = _tokens(middle, in_query="?" in self.head)

    def match(self, units: str) -> dict[str, Value] | None:
        start, end = len(self.head), len(units) - len(self._tail)
        if start > end or not (units.startswith(self.head) and units.endswith(self._tail)):
            return None
        captures = _solve(self._tokens, units[start:end])
        return None if captures is None else _bind(captures)


# From parts to tokens.


def _merge(parts: Sequence[Part]) -> list[Part]:
    """`{?a}{&b}` as `{?a,b}`, `{/a}{/b}` as `{/a,b}`: apart, the first would take what belongs to the second."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Expression) and isinstance(last, Expression) and _continues(part, last):
            merged[-1] = Expression(last.operator, last.variables + part.variables)
        else:
            merged.append(part)
    return merged


def _continues(part: Expression, last: Expression) -> bool:
    return OPERATORS[part.operator].first == OPERATORS[last.operator].separator


def _tokens(parts: Sequence[Part], in_query: bool) -> tuple[Token, ...]:
    tokens: list[Token] = []
    for place, part in enumerate(parts, 1):
        if isinstance(part, Literal):
            tokens.append(part)
            in_query = in_query or "?" in part.units
        else:
            later = {follower.operator for follower in parts[place:] if isinstance(follower, Expression)}
            stops = later & {";", "?", "&", "#"} | ({"&"} if in_query and not part.operator else set())
            tokens += _expression_tokens(part, stops, len(tokens))
    return tuple(tokens)


def _expression_tokens(part: Expression, stops: set[str], place: int) -> list[Token]:
    operator = OPERATORS[part.operator]
    groups = [part.variables] if operator.named else [(variable,) for variable in part.variables]
    end = place + len(groups) * (3 if operator.first else 2) - (0 if operator.first else 1)
    tokens: list[Token] = []
    for number, group in enumerate(groups):
        if operator.first:
            tokens.append(Skip(end))
        mark = operator.separator if number else operator.first
        if mark:
            tokens.append(Literal(mark, mark))
        tokens.append(_run(group, operator, stops, alone=len(groups) == 1))
    return tokens


def _run(group: tuple[Variable, ...], operator: Operator, stops: set[str], alone: bool) -> Run:
    stops = stops | set(operator.stops)
    if operator.named or group[0].exploded:
        stops.discard(operator.separator)
    elif not alone:
        stops.add(operator.separator)
    passes = bytearray(b"1" * 256)
    for stop in stops:
        passes[ord(stop)] = ord("0")
    least = 1 if operator.named or not operator.first else 0
    return Run(group, operator, bytes(passes), least, 0 if operator.named else group[0].prefix)


# From tokens to captures. In a set of places, bit k is the place k characters before the end of the text.

_NOT_ASCII = r"[^\x00-\x7f]"


def _solve(tokens: tuple[Token, ...], text: str) -> Captures | None:
    """What each Run takes, or None when the tokens cannot take the whole text."""
    starts, fits = _prospects(tokens, text)
    if not starts[0] >> len(text) & 1:
        return None
    captures: Captures = []
    place, left = 0, len(text)  # `left` characters are still to be taken
    while place < len(tokens):
        token = tokens[place]
        if isinstance(token, Run):
            # Behind a Skip stands something optional: leave it its share, if the text has one for it.
            optional = place + 1 < len(tokens) and isinstance(tokens[place + 1], Skip)
            wishes = (starts[place + 2], starts[place + 1]) if optional else (starts[place + 1],)
            after = _run_end(token, fits[place], left, wishes)
            captures.append((token, text[len(text) - left : len(text) - after]))
            left = after
        elif isinstance(token, Literal):
            left -= len(token.units)
        elif not starts[place + 1] >> left & 1:
            place = token.to
            continue
        place += 1
    return captures


def _prospects(tokens: tuple[Token, ...], text: str) -> tuple[list[int], list[int]]:
    """For each token, the places from which it and all behind it reach the end; and the characters it may take."""
    outline = (text if text.isascii() else re.sub(_NOT_ASCII, "x", text)).encode()
    starts = [1] * (len(tokens) + 1)
    fits = [0] * len(tokens)
    for place in range(len(tokens) - 1, -1, -1):
        token = tokens[place]
        if isinstance(token, Run):
            fits[place] = int(outline.translate(token.passes) or b"0", 2)
            starts[place] = _run_starts(token, fits[place], starts[place + 1])
        elif isinstance(token, Literal):
            starts[place] = (starts[place + 1] << len(token.units)) & _occurrences(token.units, text)
        else:
            starts[place] = starts[place + 1] | starts[token.to]
    return starts, fits


def _run_starts(run: Run, fits: int, ends: int) -> int:
    """The places from which characters that fit lead into `ends`."""
    reached = (ends & fits) << 1 if run.least else ends
    if not run.most:
        # The carry of an addition travels through a row of ones: it marks every place of the row at once.
        return (((reached & fits) + fits) ^ fits) | reached
    front = reached
    for _ in range(run.most - run.least):
        front = (front & fits) << 1
        if not front:
            break
        reached |= front
    return reached


def _run_end(run: Run, fits: int, left: int, wishes: Sequence[int]) -> int:
    """How many characters are left when the run has taken as many as it can and ends where it is wished to."""
    misfit = (~fits & ((1 << left) - 1)).bit_length()
    farthest = max(misfit, left - run.most) if run.most else misfit
    for ends in wishes:
        ahead = ends >> farthest
        after = farthest + (ahead & -ahead).bit_length() - 1
        if ahead and after <= left - run.least:
            return after
    raise AssertionError("a run begins only where it can end")


def _occurrences(units: str, text: str) -> int:
    """The places where these units begin."""
    marks = bytearray(b"0") * (len(text) + 1)
    at = text.find(units)
    while at >= 0:
        marks[at] = ord("1")
        at = text.find(units, at + 1)
    return int(marks, 2)


# From captures to values.


def _bind(captures: Captures) -> dict[str, Value] | None:
    found: Found = []
    for run, units in captures:
        read = _read_named(run, units) if run.operator.named else _read(run, units)
        if read is None:
            return None
        found += read
    # A variable may occur twice, as in {x:1}/{x}. The longest is the value, the others must be its beginning.
    values: dict[str, Value] = {}
    for variable, value in sorted(found, key=lambda pair: -pair[0].prefix if pair[0].prefix else -10_000):
        known = values.setdefault(variable.name, value)
        if isinstance(known, str) and variable.prefix:
            known = known[: variable.prefix]
        if known != value:
            return None
    return values


def _read(run: Run, units: str) -> Found:
    variable = run.variables[0]
    if variable.exploded:
        return [(variable, [plain(piece) for piece in units.split(run.operator.separator)])]
    return [(variable, plain(units))]


def _read_named(run: Run, units: str) -> Found | None:
    given: dict[str, list[str]] = {}
    for piece in units.split(run.operator.separator):
        name, _, value = piece.partition("=")
        given.setdefault(name, []).append(value)
    if "" in given:
        return None
    found: Found = []
    for variable in run.variables:
        values = given.pop(variable.units, None)
        if values is None:
            continue
        if variable.exploded:
            found.append((variable, [plain(value) for value in values]))
        elif len(values) == 1 and len(values[0]) <= (variable.prefix or len(values[0])):
            found.append((variable, plain(values[0])))
        else:
            return None
    return found if not given else _read_strangers(run, given, found)


def _read_strangers(run: Run, given: dict[str, list[str]], found: Found) -> Found | None:
    """Names that the template does not say are the keys of an exploded mapping, if there is a variable for it."""
    bound = [variable for variable, _ in found]
    free = [variable for variable in run.variables if variable.exploded and variable not in bound]
    if not free or any(len(values) > 1 for values in given.values()):
        return None
    return [*found, (free[0], {plain(name): plain(values[0]) for name, values in given.items()})]
