"""Matching of URI templates; `uri_template` defines what counts as a match.

A template becomes a sequence of tokens, and the matcher decides for all positions of the URI at once which characters
each token takes: a set of positions is one integer with a bit for each, and a token maps the set of its possible ends
to the set of its possible starts with a few operations. An ambiguous template therefore costs as much as a simple one:
a fixed number of passes over the URI, without backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from portico.protocol.uri_template_syntax import (
    OPERATORS,
    Expression,
    LiteralPart,
    Operator,
    TemplatePart,
    Variable,
    restore_reserved,
)

MatchedValue: TypeAlias = str | list[str] | dict[str, str]


class OptionalToken(Struct, frozen=True):
    """Marks the following tokens, up to `to`, as optional."""

    to: int


class CaptureToken(Struct, frozen=True):
    """Consecutive characters of a class: the value of one variable, or all parameters of a named expression."""

    variables: tuple[Variable, ...]
    operator: Operator
    passes: bytes  # table for bytes.translate: b"1" for allowed characters, b"0" for others
    least: int
    most: int  # 0: no limit


Token: TypeAlias = LiteralPart | OptionalToken | CaptureToken
Captures: TypeAlias = list[tuple[CaptureToken, str]]
Bindings: TypeAlias = list[tuple[Variable, MatchedValue]]


class TemplateMatcher:
    """Compiled matcher. `literal_prefix` is the text that every match begins with, possibly empty."""

    __slots__ = ("_tail", "_tokens", "literal_prefix")

    def __init__(self, parts: Sequence[TemplatePart]) -> None:
        # Most templates have a literal start and end. Comparing them first rejects most URIs without any
        # matching.
        middle = _merge(parts)
        first = middle.pop(0) if middle and isinstance(middle[0], LiteralPart) else None
        last = middle.pop() if middle and isinstance(middle[-1], LiteralPart) else None
        self.literal_prefix = first.units if isinstance(first, LiteralPart) else ""
        self._tail = last.units if isinstance(last, LiteralPart) else ""
        self._tokens = _tokens(middle, in_query="?" in self.literal_prefix)

    def match(self, units: str) -> dict[str, MatchedValue] | None:
        start, end = len(self.literal_prefix), len(units) - len(self._tail)
        if start > end or not (units.startswith(self.literal_prefix) and units.endswith(self._tail)):
            return None
        captures = _solve(self._tokens, units[start:end])
        return None if captures is None else _bind(captures)


# Parts to tokens


def _merge(parts: Sequence[TemplatePart]) -> list[TemplatePart]:
    """Merge `{?a}{&b}` into `{?a,b}` and `{/a}{/b}` into `{/a,b}`: separately, the first would take the second's
    values.
    """
    merged: list[TemplatePart] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Expression) and isinstance(last, Expression) and _continues(part, last):
            merged[-1] = Expression(last.operator, last.variables + part.variables)
        else:
            merged.append(part)
    return merged


def _continues(part: Expression, last: Expression) -> bool:
    return OPERATORS[part.operator].first == OPERATORS[last.operator].separator


def _tokens(parts: Sequence[TemplatePart], in_query: bool) -> tuple[Token, ...]:
    tokens: list[Token] = []
    for position, part in enumerate(parts, 1):
        if isinstance(part, LiteralPart):
            tokens.append(part)
            in_query = in_query or "?" in part.units
        else:
            later = {follower.operator for follower in parts[position:] if isinstance(follower, Expression)}
            # A variable before a query or fragment expression must not swallow its first character.
            stops = later & {";", "?", "&", "#"} | ({"&"} if in_query and not part.operator else set())
            tokens += _expression_tokens(part, stops, len(tokens))
    return tuple(tokens)


def _expression_tokens(part: Expression, stops: set[str], position: int) -> list[Token]:
    operator = OPERATORS[part.operator]
    groups = [part.variables] if operator.named else [(variable,) for variable in part.variables]
    end = position + len(groups) * (3 if operator.first else 2) - (0 if operator.first else 1)
    tokens: list[Token] = []
    for number, group in enumerate(groups):
        if operator.first:
            tokens.append(OptionalToken(end))
        mark = operator.separator if number else operator.first
        if mark:
            tokens.append(LiteralPart(mark, mark))
        tokens.append(_run(group, operator, stops, alone=len(groups) == 1))
    return tokens


def _run(group: tuple[Variable, ...], operator: Operator, stops: set[str], alone: bool) -> CaptureToken:
    stops = stops | set(operator.stops)
    if operator.named or group[0].exploded:
        stops.discard(operator.separator)
    elif not alone:
        stops.add(operator.separator)
    passes = bytearray(b"1" * 256)
    for stop in stops:
        passes[ord(stop)] = ord("0")
    minimum = 1 if operator.named or not operator.first else 0
    return CaptureToken(group, operator, bytes(passes), minimum, 0 if operator.named else group[0].prefix)


# Tokens to captures. In a set of positions, bit k is the position k characters before the end of the text.

_NOT_ASCII = r"[^\x00-\x7f]"


def _solve(tokens: tuple[Token, ...], text: str) -> Captures | None:
    """Return the text of each capture, or None if the tokens do not match the whole text."""
    # Two passes instead of backtracking: a hostile URI or template cannot make matching exponential, as it
    # could with a regular expression. Python's big integers serve as bit sets, so each token costs a few
    # machine operations per 64 characters.
    starts, fits = _reachable_positions(tokens, text)
    if not starts[0] >> len(text) & 1:
        return None
    captures: Captures = []
    position, left = 0, len(text)  # `left`: number of characters not consumed yet
    while position < len(tokens):
        token = tokens[position]
        if isinstance(token, CaptureToken):
            # An optional part follows: leave it its characters, if the text has any for it.
            optional = position + 1 < len(tokens) and isinstance(tokens[position + 1], OptionalToken)
            wishes = (starts[position + 2], starts[position + 1]) if optional else (starts[position + 1],)
            after = _run_end(token, fits[position], left, wishes)
            captures.append((token, text[len(text) - left : len(text) - after]))
            left = after
        elif isinstance(token, LiteralPart):
            left -= len(token.units)
        elif not starts[position + 1] >> left & 1:
            position = token.to
            continue
        position += 1
    return captures


def _reachable_positions(tokens: tuple[Token, ...], text: str) -> tuple[list[int], list[int]]:
    """Return for each token the positions from which the rest can match, and the characters it may take."""
    # Classes only distinguish ASCII characters, so one byte per character is enough.
    outline = (text if text.isascii() else re.sub(_NOT_ASCII, "x", text)).encode()
    starts = [1] * (len(tokens) + 1)
    fits = [0] * len(tokens)
    for position in range(len(tokens) - 1, -1, -1):
        token = tokens[position]
        if isinstance(token, CaptureToken):
            fits[position] = int(outline.translate(token.passes) or b"0", 2)
            starts[position] = _run_starts(token, fits[position], starts[position + 1])
        elif isinstance(token, LiteralPart):
            starts[position] = (starts[position + 1] << len(token.units)) & _find_all(token.units, text)
        else:
            starts[position] = starts[position + 1] | starts[token.to]
    return starts, fits


def _run_starts(run: CaptureToken, fits: int, ends: int) -> int:
    """Return the positions from which matching characters lead to `ends`."""
    reached = (ends & fits) << 1 if run.least else ends
    if not run.most:
        # The carry of an addition propagates through a run of ones and marks all its positions in one operation.
        return (((reached & fits) + fits) ^ fits) | reached
    front = reached
    for _ in range(run.most - run.least):
        front = (front & fits) << 1
        if not front:
            break
        reached |= front
    return reached


def _run_end(run: CaptureToken, fits: int, left: int, wishes: Sequence[int]) -> int:
    """Return the remaining characters after the longest run that ends at a wished position."""
    misfit = (~fits & ((1 << left) - 1)).bit_length()
    farthest = max(misfit, left - run.most) if run.most else misfit
    for ends in wishes:
        ahead = ends >> farthest
        after = farthest + (ahead & -ahead).bit_length() - 1
        if ahead and after <= left - run.least:
            return after
    raise AssertionError("a run begins only where it can end")


def _find_all(units: str, text: str) -> int:
    """Return the positions where these units begin."""
    marks = bytearray(b"0") * (len(text) + 1)
    at = text.find(units)
    while at >= 0:
        marks[at] = ord("1")
        at = text.find(units, at + 1)
    return int(marks, 2)


# Captures to values


def _bind(captures: Captures) -> dict[str, MatchedValue] | None:
    results: Bindings = []
    for run, units in captures:
        read = _read_named(run, units) if run.operator.named else _read(run, units)
        if read is None:
            return None
        results += read
    # A variable may occur twice, as in {x:1}/{x}. The longest is the value; the others must be its prefixes.
    values: dict[str, MatchedValue] = {}
    for variable, value in sorted(results, key=lambda pair: -pair[0].prefix if pair[0].prefix else -10_000):
        bound = values.setdefault(variable.name, value)
        if isinstance(bound, str) and variable.prefix:
            bound = bound[: variable.prefix]
        if bound != value:
            return None
    return values


def _read(run: CaptureToken, units: str) -> Bindings:
    variable = run.variables[0]
    if variable.exploded:
        return [(variable, [restore_reserved(piece) for piece in units.split(run.operator.separator)])]
    return [(variable, restore_reserved(units))]


def _read_named(run: CaptureToken, units: str) -> Bindings | None:
    params: dict[str, list[str]] = {}
    for piece in units.split(run.operator.separator):
        name, _, value = piece.partition("=")
        params.setdefault(name, []).append(value)
    if "" in params:
        return None
    results: Bindings = []
    for variable in run.variables:
        values = params.pop(variable.units, None)
        if values is None:
            continue
        if variable.exploded:
            results.append((variable, [restore_reserved(value) for value in values]))
        elif len(values) == 1 and len(values[0]) <= (variable.prefix or len(values[0])):
            results.append((variable, restore_reserved(values[0])))
        else:
            return None
    return results if not params else _bind_extra_params(run, params, results)


def _bind_extra_params(run: CaptureToken, query: dict[str, list[str]], bindings: Bindings) -> Bindings | None:
    """Bind parameters that the template does not name to an exploded mapping, if it has one."""
    bound = [variable for variable, _ in bindings]
    free = [variable for variable in run.variables if variable.exploded and variable not in bound]
    # A mapping has one value per name, so a repeated parameter cannot be represented.
    if not free or any(len(values) > 1 for values in query.values()):
        return None
    return [
        *bindings,
        (free[0], {restore_reserved(name): restore_reserved(values[0]) for name, values in query.items()}),
    ]
