"""URI templates: expansion by RFC 6570, matching as described in `portico.protocol.uri_template`."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from portico.protocol.errors import UsageError
from portico.protocol.uri_template import MatchedValue, TemplateValue, UriTemplate, UriTemplateIndex
from portico.protocol.uri_template_matching import TemplateMatcher

# RFC 6570, section 3.2: the variables of all its examples.
VALUES: dict[str, TemplateValue] = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
    "empty_keys": {},
    "undef": None,
}

# Section 1.2 (the levels; its examples recur below, except for these).
LEVELS = """
    X{#var}                 X#value
    X{#hello}               X#Hello%20World!
    map?{x,y}               map?1024,768
    X{.x,y}                 X.1024.768
"""
# Section 3.2.1
OPERATORS = """
    {count}                 one,two,three
    {count*}                one,two,three
    {/count}                /one,two,three
    {/count*}               /one/two/three
    {;count}                ;count=one,two,three
    {;count*}               ;count=one;count=two;count=three
    {?count}                ?count=one,two,three
    {?count*}               ?count=one&count=two&count=three
    {&count*}               &count=one&count=two&count=three
"""
# Section 3.2.2
SIMPLE = """
    {var}                   value
    {hello}                 Hello%20World%21
    {half}                  50%25
    O{empty}X               OX
    O{undef}X               OX
    {x,y}                   1024,768
    {x,hello,y}             1024,Hello%20World%21,768
    ?{x,empty}              ?1024,
    ?{x,undef}              ?1024
    ?{undef,y}              ?768
    {var:3}                 val
    {var:30}                value
    {list}                  red,green,blue
    {list*}                 red,green,blue
    {keys}                  semi,%3B,dot,.,comma,%2C
    {keys*}                 semi=%3B,dot=.,comma=%2C
"""
# Section 3.2.3
RESERVED = """
    {+var}                  value
    {+hello}                Hello%20World!
    {+half}                 50%25
    {base}index             http%3A%2F%2Fexample.com%2Fhome%2Findex
    {+base}index            http://example.com/home/index
    O{+empty}X              OX
    O{+undef}X              OX
    {+path}/here            /foo/bar/here
    here?ref={+path}        here?ref=/foo/bar
    up{+path}{var}/here     up/foo/barvalue/here
    {+x,hello,y}            1024,Hello%20World!,768
    {+path,x}/here          /foo/bar,1024/here
    {+path:6}/here          /foo/b/here
    {+list}                 red,green,blue
    {+list*}                red,green,blue
    {+keys}                 semi,;,dot,.,comma,,
    {+keys*}                semi=;,dot=.,comma=,
"""
# Section 3.2.4
FRAGMENT = """
    {#var}                  #value
    {#hello}                #Hello%20World!
    {#half}                 #50%25
    foo{#empty}             foo#
    foo{#undef}             foo
    {#x,hello,y}            #1024,Hello%20World!,768
    {#path,x}/here          #/foo/bar,1024/here
    {#path:6}/here          #/foo/b/here
    {#list}                 #red,green,blue
    {#list*}                #red,green,blue
    {#keys}                 #semi,;,dot,.,comma,,
    {#keys*}                #semi=;,dot=.,comma=,
"""
# Section 3.2.5
LABEL = """
    {.who}                  .fred
    {.who,who}              .fred.fred
    {.half,who}             .50%25.fred
    www{.dom*}              www.example.com
    X{.var}                 X.value
    X{.empty}               X.
    X{.undef}               X
    X{.var:3}               X.val
    X{.list}                X.red,green,blue
    X{.list*}               X.red.green.blue
    X{.keys}                X.semi,%3B,dot,.,comma,%2C
    X{.keys*}               X.semi=%3B.dot=..comma=%2C
    X{.empty_keys}          X
    X{.empty_keys*}         X
"""
# Section 3.2.6
PATH = """
    {/who}                  /fred
    {/who,who}              /fred/fred
    {/half,who}             /50%25/fred
    {/who,dub}              /fred/me%2Ftoo
    {/var}                  /value
    {/var,empty}            /value/
    {/var,undef}            /value
    {/var,x}/here           /value/1024/here
    {/var:1,var}            /v/value
    {/list}                 /red,green,blue
    {/list*}                /red/green/blue
    {/list*,path:4}         /red/green/blue/%2Ffoo
    {/keys}                 /semi,%3B,dot,.,comma,%2C
    {/keys*}                /semi=%3B/dot=./comma=%2C
"""
# Section 3.2.7
PARAMETERS = """
    {;who}                  ;who=fred
    {;half}                 ;half=50%25
    {;empty}                ;empty
    {;v,empty,who}          ;v=6;empty;who=fred
    {;v,bar,who}            ;v=6;who=fred
    {;x,y}                  ;x=1024;y=768
    {;x,y,empty}            ;x=1024;y=768;empty
    {;x,y,undef}            ;x=1024;y=768
    {;hello:5}              ;hello=Hello
    {;list}                 ;list=red,green,blue
    {;list*}                ;list=red;list=green;list=blue
    {;keys}                 ;keys=semi,%3B,dot,.,comma,%2C
    {;keys*}                ;semi=%3B;dot=.;comma=%2C
"""
# Section 3.2.8
QUERY = """
    {?who}                  ?who=fred
    {?half}                 ?half=50%25
    {?x,y}                  ?x=1024&y=768
    {?x,y,empty}            ?x=1024&y=768&empty=
    {?x,y,undef}            ?x=1024&y=768
    {?var:3}                ?var=val
    {?list}                 ?list=red,green,blue
    {?list*}                ?list=red&list=green&list=blue
    {?keys}                 ?keys=semi,%3B,dot,.,comma,%2C
    {?keys*}                ?semi=%3B&dot=.&comma=%2C
"""
# Section 3.2.9
CONTINUATION = """
    {&who}                  &who=fred
    {&half}                 &half=50%25
    ?fixed=yes{&x}          ?fixed=yes&x=1024
    {&x,y,empty}            &x=1024&y=768&empty=
    {&x,y,undef}            &x=1024&y=768
    {&var:3}                &var=val
    {&list}                 &list=red,green,blue
    {&list*}                &list=red&list=green&list=blue
    {&keys}                 &keys=semi,%3B,dot,.,comma,%2C
    {&keys*}                &semi=%3B&dot=.&comma=%2C
"""
TABLES = (LEVELS, OPERATORS, SIMPLE, RESERVED, FRAGMENT, LABEL, PATH, PARAMETERS, QUERY, CONTINUATION)
EXAMPLES = [tuple(line.split()) for table in TABLES for line in table.strip().splitlines()]


def match(template: str, uri: str) -> Any:
    return UriTemplate(template).match(uri)


# Expansion.


@pytest.mark.parametrize(("template", "uri"), EXAMPLES, ids=lambda text: str(text))
def test_rfc_6570_examples_expand_as_specified(template: str, uri: str) -> None:
    assert UriTemplate(template).expand(VALUES) == uri


def test_literals_keep_triplets_and_have_other_characters_encoded() -> None:
    assert UriTemplate("x://%2fé/{a}").expand({"a": "b"}) == "x://%2f%C3%A9/b"


def test_triplets_pass_in_reserved_expansion_and_are_encoded_in_simple_expansion() -> None:
    assert UriTemplate("{+a}/{a}").expand({"a": "%2F%zz%"}) == "%2F%25zz%25/%252F%25zz%25"


def test_numbers_and_truth_expand_as_json_writes_them() -> None:
    assert UriTemplate("{i}/{f}/{t}").expand({"i": 3, "f": 1.5, "t": True}) == "3/1.5/true"


def test_prefix_counts_characters_and_not_bytes() -> None:
    assert UriTemplate("{a:2}").expand({"a": "éüö"}) == "%C3%A9%C3%BC"


@pytest.mark.parametrize("value", [["a"], {"a": "b"}])
def test_prefix_of_a_composite_value_is_misuse(value: TemplateValue) -> None:
    with pytest.raises(UsageError, match="its value must be a string"):
        UriTemplate("{a:2}").expand({"a": value})


@pytest.mark.parametrize("value", [b"bytes", object(), [["nested"]], "half\ud800"])
def test_value_that_no_uri_can_hold_is_misuse(value: Any) -> None:
    with pytest.raises(UsageError):
        UriTemplate("{a}").expand({"a": value})


# Parsing.


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("a{b", 1, "never closed"),
        ("a}b", 1, "closes nothing"),
        ("a{}", 2, "needs a variable"),
        ("{?}", 2, "not a variable"),
        ("{a,}", 3, "not a variable"),
        ("{a,b c}", 3, "not a variable"),
        ("{a{b}}", 1, "not a variable"),
        ("{a:0}", 1, "not a variable"),
        ("{a:10000}", 1, "not a variable"),
        ("{a*:3}", 1, "not a variable"),
        ("{.a..b}", 2, "not a variable"),
        ("{%FF}", 1, "not a variable"),
        ("{=a}", 1, "reserved by RFC 6570"),
        ("{|a}", 1, "reserved by RFC 6570"),
        ("{-a}", 1, "not a variable"),
        ("a b", 1, "percent-encoded"),
        ("100%", 3, "percent-encoded"),
        ("a%FFb{c}", 0, "invalid UTF-8"),
        ("a%00b{c}", 0, "control character"),
    ],
)
def test_malformed_template_says_where_and_why(text: str, position: int, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        UriTemplate(text)
    assert f"position {position}:" in str(caught.value)
    assert reason in str(caught.value)


def test_template_has_text_and_variable_names_in_order() -> None:
    template = UriTemplate("x://{b}/{a.c:3}{?b,d_1*}")
    assert template.text == "x://{b}/{a.c:3}{?b,d_1*}"
    assert template.variable_names == ("b", "a.c", "d_1")
    assert template == UriTemplate(template.text) and hash(template) == hash(UriTemplate(template.text))
    assert repr(template) == "Template('x://{b}/{a.c:3}{?b,d_1*}')"


@given(st.text(alphabet="{}ab,.:*1%2+#/;?&é ") | st.text())
def test_any_text_is_a_template_or_a_usage_error(text: str) -> None:
    try:
        UriTemplate(text).match(text)
    except UsageError:
        pass


# Matching: what stands in the URI.

SENTENCES: list[tuple[str, str, str, Any]] = [
    ("a literal matches itself alone", "a://b", "a://b", {}),
    ("a literal compares case", "a://b", "a://B", None),
    ("the empty template matches the empty text", "", "", {}),
    ("the head and the tail do not share characters", "aba{x}aba", "aba", None),
    ("a simple variable takes a segment", "weather://{city}/today", "weather://paris/today", {"city": "paris"}),
    ("a simple variable does not cross a slash", "w://{x}/today", "w://a/b/today", None),
    ("a simple variable does not enter the query", "w://{x}", "w://a?b=1", None),
    ("a simple variable does not enter the fragment", "w://{x}", "w://a#b", None),
    ("a simple variable needs a character", "w://{x}/today", "w:///today", None),
    ("a simple variable may hold sub-delimiters", "w://{x}", "w://a:b@c,d", {"x": "a:b@c,d"}),
    ("an encoded slash is part of the value", "w://{x}/today", "w://a%2Fb/today", {"x": "a/b"}),
    ("dots are a value, whatever they mean to a file system", "w://{x}", "w://..%2f..", {"x": "../.."}),
    ("escaped UTF-8 is decoded", "w://{x}", "w://S%C3%A3o%20Paulo", {"x": "São Paulo"}),
    ("raw characters beyond ASCII pass", "w://{x}", "w://São", {"x": "São"}),
    ("an encoded percent sign is decoded once", "w://{x}", "w://%2541", {"x": "%41"}),
    ("a plus sign is no space", "w://{?x}", "w://?x=a+b", {"x": "a+b"}),
    ("a broken escape is no match", "w://{x}", "w://a%2", None),
    ("a broken escape in a reserved value is no match", "w://{+x}", "w://%zz", None),
    ("invalid UTF-8 is no match", "w://{x}", "w://%FF", None),
    ("an overlong encoding is no match", "w://{x}", "w://%C0%AF", None),
    ("an escaped surrogate is no match", "w://{x}", "w://%ED%A0%80", None),
    ("a raw surrogate is no match", "w://{x}", "w://\udc2f", None),
    ("NUL is no match", "w://{+x}", "w://a%00b", None),
    ("an escaped line feed is no match", "w://{+x}", "w://a%0Ab", None),
    ("a raw control character is no match", "w://{+x}", "w://a\x7fb", None),
    ("a control character beyond ASCII is no match", "w://{+x}", "w://a%C2%85b", None),
    ("an escaped unreserved character is that character", "w://~{x}", "w://%7Ea", {"x": "a"}),
    ("a literal may be written escaped", "w://é/{x}", "w://%c3%A9/a", {"x": "a"}),
    ("an escaped slash is no delimiter", "w://a/{x}", "w://a%2Fb", None),
    ("an escaped literal is no delimiter either", "w://a%2F{x}", "w://a/b", None),
    ("a reserved variable crosses slashes", "f:///{+path}", "f:///a/b?c#d", {"path": "a/b?c#d"}),
    ("a reserved variable needs a character", "f:///{+path}", "f:///", None),
    ("the leftmost variable takes the most", "{a}-{b}", "x-y-z", {"a": "x-y", "b": "z"}),
    ("a reserved variable gives back what others need", "{+a}/{b}", "x/y/z", {"a": "x/y", "b": "z"}),
    ("a reserved variable leaves the query to a query", "{+a}{?q}", "x/y?q=1", {"a": "x/y", "q": "1"}),
    ("a reserved variable leaves the fragment as well", "{+a}{?q}{#f}", "x/y#z", {"a": "x/y", "f": "z"}),
    ("neighbours share what there is", "{a}{b}", "xyz", {"a": "xy", "b": "z"}),
    ("neighbours need a character each", "{a}{b}", "x", None),
    ("a prefix is the most that is taken", "{a:3}", "abcd", None),
    ("a prefix may be shorter", "{a:3}", "ab", {"a": "ab"}),
    ("a prefix counts characters", "{a:2}", "%C3%A9%2F", {"a": "é/"}),
    ("what follows a prefix is the next one's", "{a:3}{b}", "abcde", {"a": "abc", "b": "de"}),
    ("a prefix gives back as well", "{a:3}{b}", "abc", {"a": "ab", "b": "c"}),
    ("a prefix in a query is respected", "{?a:2}", "?a=abc", None),
    ("a prefix agrees with the whole", "{x:1}/{x}", "v/value", {"x": "value"}),
    ("a prefix that disagrees is no match", "{x:1}/{x}", "w/value", None),
    ("prefixes agree with each other", "{x:1}/{x:3}", "v/val", {"x": "val"}),
    ("a variable has one value", "{x}/{x}", "a/b", None),
    ("a variable may be said twice", "{x}/{x}", "a/a", {"x": "a"}),
    ("several variables are divided by commas", "{x,y}", "1,2", {"x": "1", "y": "2"}),
    ("several simple variables are all needed", "{x,y}", "1", None),
    ("several simple variables take no comma", "{x,y}", "1,2,3", None),
    ("a single variable may hold a comma", "{x}", "1,2", {"x": "1,2"}),
    ("an exploded variable is a list", "{x*}", "1,2%2C,3", {"x": ["1", "2,", "3"]}),
    ("an exploded variable of one is a list", "{x*}", "1", {"x": ["1"]}),
    ("a list leaves room for its neighbour", "{x*,y}", "1,2,3", {"x": ["1", "2"], "y": "3"}),
    ("a reserved list keeps its slashes", "{+x*}", "a/b,c", {"x": ["a/b", "c"]}),
    ("a path segment may be missing", "a{/x}", "a", {}),
    ("a path segment may be empty", "a{/x}", "a/", {"x": ""}),
    ("a path variable takes one segment", "a{/x}", "a/b/c", None),
    ("an exploded path is a list", "a{/x*}", "a/b/c%2Fd/", {"x": ["b", "c/d", ""]}),
    ("an exploded path may be missing", "a{/x*}", "a", {}),
    ("the last path variables may be missing", "a{/x,y,z}", "a/b/c", {"x": "b", "y": "c"}),
    ("a path list leaves a segment to the literal", "{/x*}/end", "/a/b/end", {"x": ["a", "b"]}),
    ("a path list leaves a segment to its neighbour", "{/x*,y}", "/a/b/c", {"x": ["a", "b"], "y": "c"}),
    ("path expressions side by side are one", "{/x}{/y}", "/a/b", {"x": "a", "y": "b"}),
    ("a label may be missing", "{name}{.ext}", "a", {"name": "a"}),
    ("a label takes what is behind the last dot", "{name}{.ext}", "a.tar.gz", {"name": "a.tar", "ext": "gz"}),
    ("a label behind a literal keeps its dots", "a{.ext}", "a.tar.gz", {"ext": "tar.gz"}),
    ("labels are divided by dots", "a{.x,y}", "a.tar.gz", {"x": "tar", "y": "gz"}),
    ("exploded labels are a list", "www{.dom*}", "www.example.com", {"dom": ["example", "com"]}),
    ("a fragment may be missing", "a{#f}", "a", {}),
    ("a fragment may be empty", "a{#f}", "a#", {"f": ""}),
    ("a fragment holds anything", "a{#f}", "a#/b?c#d", {"f": "/b?c#d"}),
    ("fragments are divided by commas", "a{#x,y}", "a#1,2", {"x": "1", "y": "2"}),
    ("parameters come in any order", "a{;x,y}/b", "a;y=2;x=1/b", {"x": "1", "y": "2"}),
    ("a parameter without a value is empty", "a{;x}", "a;x", {"x": ""}),
    ("parameters end a simple variable", "{a}{;x,y}", "b;x=1;y=2", {"a": "b", "x": "1", "y": "2"}),
    ("an unknown parameter is no match", "a{;x}", "a;z=1", None),
    ("parameter expressions side by side are one", "a{;x}{;y}", "a;y=2;x=1", {"x": "1", "y": "2"}),
    ("a query comes in any order", "a{?x,y}", "a?y=2&x=1", {"x": "1", "y": "2"}),
    ("query parameters may be missing", "a{?x,y}", "a?y=2", {"y": "2"}),
    ("the whole query may be missing", "a{?x,y}", "a", {}),
    ("an unknown query parameter is no match", "a{?x}", "a?x=1&z=2", None),
    ("a query parameter said twice is no match", "a{?x}", "a?x=1&x=2", None),
    ("a query parameter may be empty", "a{?x}", "a?x=", {"x": ""}),
    ("an empty query is no match", "a{?x}", "a?", None),
    ("an empty pair is no match", "a{?x,y}", "a?x=1&&y=2", None),
    ("a query value keeps slashes and equals signs", "a{?x}", "a?x=b/c=d", {"x": "b/c=d"}),
    ("encoded delimiters are data in a query", "a{?x,y}", "a?x=1%26y%3D2", {"x": "1&y=2"}),
    ("an escaped name is the name", "a{?x}", "a?%78=1", {"x": "1"}),
    ("a name with escapes matches its text", "a{?%C3%A9}", "a?é=1", {"%C3%A9": "1"}),
    ("a query ends at the fragment", "a{?x}{#f}", "a?x=1#g", {"x": "1", "f": "g"}),
    ("an exploded query is a list of its own name", "a{?x*}", "a?x=1&x=2", {"x": ["1", "2"]}),
    ("an exploded query is a dict of other names", "a{?x*}", "a?b=1&c=%26", {"x": {"b": "1", "c": "&"}}),
    ("own and other names together are no match", "a{?x*}", "a?x=1&c=2", None),
    ("a dict has each key once", "a{?x*}", "a?b=1&b=2", None),
    ("a dict takes what others leave", "a{?y,x*}", "a?b=1&y=2", {"y": "2", "x": {"b": "1"}}),
    ("a continued query follows a literal one", "a?v=1{&x,y}", "a?v=1&y=2", {"y": "2"}),
    ("a query and its continuation are one", "a{?x}{&y}", "a?y=2&x=1", {"x": "1", "y": "2"}),
    ("a literal between them divides them", "a{?x}&v=1{&y}", "a?x=0&v=1&y=2", {"x": "0", "y": "2"}),
    ("a simple variable in a query stops at an ampersand", "a?x={x}", "a?x=1&z=2", None),
    ("simple variables may stand in a query", "a?x={x}&y={y}", "a?x=1&y=2", {"x": "1", "y": "2"}),
]


@pytest.mark.parametrize(
    ("template", "uri", "values"), [row[1:] for row in SENTENCES], ids=[row[0] for row in SENTENCES]
)
def test_matching(template: str, uri: str, values: Any) -> None:
    assert match(template, uri) == values


# What stands in a template, and in a regular expression. "N" becomes the variable's number.
PIECES = {
    "a": "a",
    "b": "b",
    "/": "/",
    "ab": "ab",
    "{vN}": "([^/]+)",
    "{vN:2}": "([^/]{1,2})",
    "{+vN}": "(.+)",
    "{+vN:3}": "(.{1,3})",
}


@given(st.lists(st.sampled_from(list(PIECES)), max_size=6), st.text(alphabet="ab/", max_size=12))
def test_matcher_agrees_with_a_backtracking_one(pieces: list[str], uri: str) -> None:
    template = UriTemplate("".join(piece.replace("N", str(number)) for number, piece in enumerate(pieces)))
    match = re.fullmatch("".join(PIECES[piece] for piece in pieces), uri)
    assert template.match(uri) == (dict(zip(template.variable_names, match.groups(), strict=True)) if match else None)


# Matching undoes expansion.

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]))
SOME_TEXT = TEXT.filter(bool)
NOT_A_TRIPLET = SOME_TEXT.filter(lambda text: "%" not in text)


@given(a=SOME_TEXT, b=SOME_TEXT)
def test_simple_values_come_back(a: str, b: str) -> None:
    template = UriTemplate("x://{a}/y/{b}")
    assert template.match(template.expand({"a": a, "b": b})) == {"a": a, "b": b}


@given(a=SOME_TEXT, path=NOT_A_TRIPLET)
def test_reserved_values_come_back(a: str, path: str) -> None:
    template = UriTemplate("x://{a}/{+path}")
    assert template.match(template.expand({"a": a, "path": path})) == {"a": a, "path": path}


@given(path=NOT_A_TRIPLET.filter(lambda text: not set(text) & set("?#")), q=TEXT, f=NOT_A_TRIPLET)
def test_complete_uri_round_trips(path: str, q: str, f: str) -> None:
    template = UriTemplate("x://{+path}{?q}{#f}")
    values = {"path": path, "q": q, "f": f}
    assert template.match(template.expand(values)) == values


@pytest.mark.parametrize(
    "text", ["x:/{/items*}", "x:/{/items*}/end", "x://a{;items*}", "x://a{?items*}", "a?b{&items*}"]
)
@given(items=st.lists(TEXT, min_size=1))
def test_exploded_lists_come_back(text: str, items: list[str]) -> None:
    assert UriTemplate(text).match(UriTemplate(text).expand({"items": items})) == {"items": items}


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), TEXT), st.sampled_from(["x{?a,b,c}", "x{;c,a,b}", "x{?a}{&b,c}"])
)
def test_queries_come_back(values: dict[str, str], text: str) -> None:
    template = UriTemplate(text)
    if text == "x{?a}{&b,c}" and "a" not in values:
        return  # expands to "x&b=…", which has no query
    assert template.match(template.expand(values)) == values


@given(st.dictionaries(SOME_TEXT.filter("keys".__ne__), TEXT, min_size=1), st.sampled_from(["x{?keys*}", "x{;keys*}"]))
def test_exploded_mappings_come_back(keys: dict[str, str], text: str) -> None:
    assert UriTemplate(text).match(UriTemplate(text).expand({"keys": keys})) == {"keys": keys}


@pytest.mark.parametrize("text", ["x://{a}/{b:3}", "{+a}{b}{+c}", "{a}{.b*}{;c}{?d*}{#e,f}", "{/a*,b}", "{a*,b*}{&c}"])
@given(uri=st.text() | st.text(alphabet="x:/abc%2F.;?&=#,") | st.text(alphabet=st.characters()))
def test_matching_any_text_returns_values_or_none(text: str, uri: str) -> None:
    for candidate in (uri, "x://" + uri):
        values = UriTemplate(text).match(candidate)
        assert values is None or set(values) <= set(UriTemplate(text).variable_names)


# Matching takes linear time.

HOSTILE: list[tuple[str, Callable[[int], str]]] = [
    ("{+a}a{+b}a{+c}a{+d}z", lambda size: "a" * size),
    ("{a}{b}{c}{d}/{e}", lambda size: "a" * size),
    ("{a}-{b}-{c}-{d}{.e*}/", lambda size: "-." * (size // 2)),
    ("{a:9}{b:99}{+c}x{+d}y", lambda size: "ax" * (size // 2)),
    ("{/a*}{/b*}/{+c}/z", lambda size: "/" * size),
    ("{;a*}{?b*}{&c*}", lambda size: "?a=1" + "&a=1" * (size // 4)),
    ("{+a}é{+b}é{+c}z", lambda size: "%C3%A9" * (size // 6)),
    ("{+a}aaaaaaaab{+b}", lambda size: "a" * size),
]


def lines_run(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(("text", "uri"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_steps_of_a_match_grow_no_faster_than_the_uri(text: str, uri: Callable[[int], str]) -> None:
    template = UriTemplate(text)
    few, many = (lines_run(lambda size=size: template.match(uri(size))) for size in (1_200, 12_000))  # type: ignore[misc]
    assert many <= 10 * few + 100


@pytest.mark.parametrize(("text", "uri"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_time_of_a_match_grows_no_faster_than_the_uri(text: str, uri: Callable[[int], str]) -> None:
    """A step may be an operation on a whole URI, so that counting alone proves too little. 8 times the size."""
    template = UriTemplate(text)

    def cost(hostile: str) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            template.match(hostile)
            times.append(time.process_time() - start)
        return min(times)

    short, long = uri(30_000), uri(240_000)
    assert cost(long) < 4 * 8 * (cost(short) + 0.0005)


# Choosing.


def trying_all(templates: list[UriTemplate], uri: str) -> tuple[UriTemplate, dict[str, MatchedValue]] | None:
    """What `Templates.best` should give, without its index."""
    matches = [(template, template.match(uri)) for template in sorted(templates, key=lambda item: item.specificity)]
    return next(((template, values) for template, values in matches if values is not None), None)


@pytest.mark.parametrize(
    ("texts", "uri", "winner"),
    [
        (["x://{a}/{b}", "x://{a}/info"], "x://1/info", "x://{a}/info"),
        (["x://{+a}", "x://{a}"], "x://1", "x://{a}"),
        (["x://{a}{b}", "x://{+a}"], "x://12", "x://{+a}"),
        (["x://{b}", "x://{a}"], "x://1", "x://{b}"),
        (["x://{a}", "x://1"], "x://1", "x://1"),
        (["{+a}", "x://{a}"], "x://1/2", "{+a}"),
        (["x://{a}/%C3%A9", "x://{a}/{b}é"], "x://1/é", "x://{a}/%C3%A9"),
    ],
)
def test_most_specific_template_wins_and_then_the_first(texts: list[str], uri: str, winner: str) -> None:
    templates = [UriTemplate(text) for text in texts]
    for result in (trying_all(templates, uri), UriTemplateIndex(templates).match(uri)):
        assert result is not None
        assert result == (UriTemplate(winner), UriTemplate(winner).match(uri))


def test_no_template_no_choice() -> None:
    assert UriTemplateIndex([UriTemplate("x://{a}")]).match("y://1") is None
    assert UriTemplateIndex().match("x://1") is None
    assert UriTemplateIndex([UriTemplate("x://{a}")]).match("x://%") is None


def test_templates_can_be_added_and_removed() -> None:
    first, second = UriTemplate("x://{a}/{b}"), UriTemplate("x://{a}/info")
    templates = UriTemplateIndex([first, second, first])
    assert list(templates) == [first, second] and len(templates) == 2 and first in templates
    templates.remove(UriTemplate("x://{a}/info"))
    assert list(templates) == [first]
    assert templates.match("x://1/info") == (first, {"a": "1", "b": "info"})
    with pytest.raises(UsageError, match="was not added"):
        templates.remove(second)
    templates.remove(first)
    assert len(templates) == 0 and templates.match("x://1/info") is None


def test_equal_template_preserves_the_first() -> None:
    templates = UriTemplateIndex([UriTemplate("x://{b}"), UriTemplate("x://{a}"), UriTemplate("x://{b}")])
    match = templates.match("x://1")
    assert match is not None and match[0].text == "x://{b}"


def test_templates_that_begin_otherwise_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    match = TemplateMatcher.match

    def noted(self: TemplateMatcher, units: str) -> Any:
        tried.append(self.literal_prefix)
        return match(self, units)

    monkeypatch.setattr(TemplateMatcher, "match", noted)
    templates = UriTemplateIndex(UriTemplate(f"x{number}://{{a}}") for number in range(1_000))
    templates.add(UriTemplate("{+everything}"))
    found = templates.match("x500://1")
    assert found is not None and found[1] == {"a": "1"}
    assert tried == ["x500://"]


@given(
    st.lists(st.sampled_from(["x://{a}", "x://{+a}", "x://y{a}", "x:{+a}", "{a}://{b}", "x://{a}{b}", "x://y"])), TEXT
)
def test_index_chooses_as_trying_all_does(texts: list[str], rest: str) -> None:
    templates = [UriTemplate(text) for text in texts]
    for uri in ("x://" + rest, "x://y" + rest, rest):
        assert UriTemplateIndex(templates).match(uri) == trying_all(templates, uri)
