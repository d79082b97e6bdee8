"""Secret detection takes linear time for long and hostile texts.

Two proofs. Every pattern is bounded: from one place in a text there are only so many ways to try it, and only so many
characters that it can reach. And texts made to be slow take four times as long when they are four times as long.
"""

from __future__ import annotations

import importlib
import random
import re
import string
import time
from re import (
    _constants as op,  # type: ignore[attr-defined]
    _parser as parser,  # type: ignore[attr-defined]
)
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from portico.screening import detector, find, redact
from portico.screening.lazy_patterns import ALL_PATTERNS

samples = importlib.import_module("secrets_samples")

# How a pattern may branch at one place, and how far it may look. Beyond: only at its end, and never to come back.
MOST_WAYS = 10_000
FURTHEST = 25_000
ENDLESS = float("inf")

ONE = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
OTHERS = 128  # stands for every character beyond ASCII
EVERY = frozenset(range(OTHERS + 1))
MAYBE_NOTHING = -1
CATEGORIES = {
    category: frozenset(one for one in range(OTHERS) if re.match(written, chr(one))) | {OTHERS}
    for category, written in (
        (op.CATEGORY_SPACE, r"\s"),
        (op.CATEGORY_NOT_SPACE, r"\S"),
        (op.CATEGORY_WORD, r"\w"),
        (op.CATEGORY_NOT_WORD, r"\W"),
        (op.CATEGORY_DIGIT, r"\d"),
    )
}


def characters(code: Any, value: Any, flags: int) -> frozenset[int]:
    """What one item matches, all that is beyond ASCII as one."""
    if code is op.ANY or code is op.NOT_LITERAL:
        return EVERY  # more than it matches: the bound stays a bound
    inside: frozenset[int] = frozenset()
    for kind, item in [(op.LITERAL, value)] if code is op.LITERAL else value:
        if kind is op.LITERAL:
            inside |= {min(item, OTHERS)}
        elif kind is op.RANGE:
            inside |= {min(one, OTHERS) for one in range(item[0], min(item[1], OTHERS) + 1)}
        elif kind is op.CATEGORY:
            inside |= CATEGORIES[item]
    if flags & re.IGNORECASE:
        inside |= {ord(chr(one).swapcase()) for one in inside if one < OTHERS and chr(one).isalpha()}
    negated = code is op.IN and value[0][0] is op.NEGATE
    return EVERY - inside | {OTHERS} if negated else inside


def firsts(items: Any, flags: int) -> frozenset[int]:
    """The characters that a match may start with."""
    got: frozenset[int] = frozenset()
    for code, value in items:
        if code in ONE:
            return got | characters(code, value, flags)
        if code in (op.AT, op.ASSERT, op.ASSERT_NOT):
            continue
        if code is op.GROUPREF:
            return EVERY
        if code is op.BRANCH:
            inner = frozenset().union(*(firsts(branch, flags) for branch in value[1]))
        else:
            inner = firsts(value[-1] if code is not op.ATOMIC_GROUP else value, flags)
        got |= inner - {MAYBE_NOTHING}
        optional = code in REPEATS and value[0] == 0
        if MAYBE_NOTHING not in inner and not optional:
            return got
    return got | {MAYBE_NOTHING}


def bounds(items: Any, flags: int, last: bool = True) -> tuple[float, float]:
    """At most how many ways there are to match from one place, and how far a match reaches."""
    ways, reach = 1.0, 0.0
    items = list(items)
    for place, (code, value) in enumerate(items):
        more, further = bounds_of_one(code, value, flags, last and place == len(items) - 1)
        ways *= more
        reach += further
    return ways, reach


def bounds_of_one(code: Any, value: Any, flags: int, last: bool) -> tuple[float, float]:
    if code in ONE:
        return 1, 1
    if code is op.AT:
        return 1, 0
    if code is op.GROUPREF:
        return 1, 8
    if code in (op.ASSERT, op.ASSERT_NOT):
        return bounds(value[1], flags, False)[0], 0
    if code is op.SUBPATTERN:
        return bounds(value[3], (flags | value[1]) & ~value[2], last)
    if code is op.ATOMIC_GROUP:
        return 1, bounds(value, flags, last)[1]
    if code is op.BRANCH:
        parts = [(firsts(branch, flags), *bounds(branch, flags, last)) for branch in value[1]]
        ways = max(
            sum(more for starts, more, _ in parts if item in starts or MAYBE_NOTHING in starts) for item in EVERY
        )
        return ways, max(reach for _, _, reach in parts)
    assert code in REPEATS, code
    least, most, inner = value
    ways, reach = bounds(inner, flags, False)
    if most is op.MAXREPEAT:
        # What is never given back, at the end, reads each character once: the next match starts behind it.
        never_back = code is op.POSSESSIVE_REPEAT and last
        return (ways, 0) if never_back else (ENDLESS, ENDLESS)
    if code is op.POSSESSIVE_REPEAT:
        return ways, most * reach
    return (most - least + 1 if ways == 1 else sum(ways**times for times in range(least, most + 1))), most * reach


@pytest.mark.parametrize("made", ALL_PATTERNS, ids=lambda made: made.source[:40])
def test_every_pattern_is_bounded(made: Any) -> None:
    tree = parser.parse(made.source, made.flags)
    ways, reach = bounds(tree, tree.state.flags)
    assert ways <= MOST_WAYS
    assert reach <= FURTHEST


def test_cost_of_a_schema_without_pattern_is_bounded() -> None:
    for bad in (r"(a+)+b", r"(?:a|a)*b", r"[a-z]*@[a-z]*x", r"(?:[a-z]{1,9}[a-z]{1,9}){1,9}x"):
        tree = parser.parse(bad)
        assert bounds(tree, tree.state.flags)[0] > MOST_WAYS


DASHES = "-" * 5
HOSTILE = (
    "a 1 1. 1- A1 AA11 "
    + 'key= key=" password: secret token_is pass pw= :// ://a:b @ a@b. a@b.co, eyJ ghp_ sk- AKIA xoxb-1 '
    'curl curl-u --password= -a cookie: basic bearer "auth":" < << (1) +1 2a: " \\ \\n %3D ?sig= {{ $( ]] PRIVATE-KEY'
).split()
HOSTILE += [
    f"{DASHES}BEGIN PRIVATE KEY{DASHES}",
    f"{DASHES}BEGIN ",
    "key ",
    "secret a a a a a a ",
    "token is ",
    'token", "value',
    "machine a login a password ",
    "password: \n",
    "DE89 3704 0044 ",
    "dob ",
    "passport no ",
    "zip code is ",
    "Authorization: a ",
    "the password is the password ",
    "token " + "a1B2" * 6 + " ",
    "cookie: sessionid=",
    "Private-Lines: 5\naaaa\n",
    "mysql -u a -p ",
    " ",
    "\n",
]


def seconds(text: str) -> float:
    start = time.process_time()
    find(text)
    return time.process_time() - start


@pytest.mark.parametrize("unit", HOSTILE, ids=repr)
def test_four_times_the_text_takes_about_four_times_as_long(unit: str) -> None:
    size = 12_000
    short, long = (unit * (size // len(unit) + 1))[:size], (unit * (4 * size // len(unit) + 1))[: 4 * size]
    # Once in a few will do: others use this machine too.
    assert any(seconds(long) / max(seconds(short), 1e-6) < 10 for _ in range(4))


def test_long_text_in_pieces_is_found_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    text = "\n\n\n".join(sample.text for sample in rng.sample(list(samples.samples(seed=4, rounds=1)), 200))
    whole = find(text)
    assert len(whole) > 100
    for piece in (1000, 4096, 10_001):
        monkeypatch.setattr(detector, "CHUNK_CHARS", piece)
        assert find(text) == whole


def test_secret_across_two_chunks_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "CHUNK_CHARS", 1000)
    key = samples.pem("PRIVATE KEY", 1216)(random.Random(5))
    for before in (0, 1, 400, 990, 999, 1000, 1001):
        text = "x" * before + " " + key + " and on\n" * 400
        assert [text[item.start : item.end] for item in find(text)] == [key]


FRAGMENTS = [
    *(
        "password",
        "Passwort",
        "=",
        ": ",
        " is ",
        '"',
        "'",
        "`",
        "\\",
        "\\n",
        "\n",
        " ",
        "\t",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
    ),
    *(
        "token",
        "secret",
        "api_key",
        "://",
        "@",
        ":",
        "/",
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "-----END ",
        "eyJ",
        ".",
        ",",
    ),
    *(
        "ghp_",
        "sk-",
        "AKIA",
        "DE",
        "4111",
        "1234",
        "+49",
        "\x00",
        "\ud800",
        "\u202e",
        "İ",
        "ß",
        "密码",
        "<",
        ">",
        "|",
        "&",
        "?",
    ),
    *("value", "Bearer ", "Basic ", "Cookie: ", "curl -u ", "passport ", "dob ", "AbC9x" * 5, "0" * 16, "f00d" * 8),
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text(string.printable, max_size=8) | st.text(max_size=4), max_size=40).map(
        "".join
    )
)
def test_findings_are_ordered_and_disjoint(text: str) -> None:
    reached = 0
    for item in find(text, min_confidence=0):
        assert reached <= item.start < item.end <= len(text)
        assert 0 < item.confidence <= 1
        reached = item.end
    clean = redact(text, find(text))
    marks = [result.span() for result in re.finditer(r"\[REDACTED:\w+\]", clean)]
    assert not [item for item in find(clean) for start, end in marks if start <= item.start and item.end <= end]
