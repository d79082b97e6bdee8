"""The frontmatter of a SKILL.md: the part of YAML that every parser of YAML reads alike.

Clients parse the frontmatter of a skill too and compare, so what counts is not what YAML means but that all parsers
read it alike. Read here: block mappings and lists, flow mappings and lists, plain and quoted scalars over one or
more lines, `|` and `>`, and comments. Refused with the line that is wrong: anchors, aliases, tags, merge keys, complex
keys, keys given twice, tabs, and plain scalars such as `yes`, `007` or `2026-07-28`, which YAML 1.1 and 1.2 hold for
different things.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from portico.protocol.errors import UsageError

LONGEST = 64 * 1024
DEEPEST = 16
# What JSON's readers hold exactly.
_LARGEST = 2**53 - 1

_FENCES = re.compile(r"\ufeff?---\r?\n(.*?)^--- *\r?$", re.DOTALL | re.MULTILINE)
# Parsers disagree on whether U+0085, U+2028 and U+2029 end a line; the others are not printable.
_UNFIT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+][0-9]+)?")
_DISPUTED = re.compile(
    r"""(?ix)
      yes | no | on | off | = | <<
    | [-+]? 0 [box] [0-9a-f_]+
    | [-+]? [0-9] [0-9_]* ( \. [0-9_]* )? ( e [-+]? [0-9]+ )?
    | [-+]? \. ( [0-9] [0-9_]* ( e [-+]? [0-9]+ )? | inf | nan )
    | [-+]? [0-9] [0-9_]* ( : [0-5]? [0-9] )+ ( \. [0-9_]* )?
    | [0-9]{4} - [0-9]{1,2} - [0-9]{1,2} ( ( t | [ ]+ ) [0-9]{1,2} : .* )?
    """
)

_BLOCK = re.compile(r"([|>])(-?) *(?: #.*)?")
_COLON = re.compile(r":(?: +|$)")
_QUOTED_COLON = re.compile(r" *:(?: +|$)")
_TAIL = re.compile(r" *(?: #.*)?")
_SINGLE = re.compile(r" *\n[ \n]*|''|[^'\n ]+| +")
_DOUBLE = re.compile(r' *\n[ \n]*|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|["\\/bfnrt])|[^"\\\n ]+| +')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Line(NamedTuple):
    indent: int
    text: str


def parse(text: str) -> dict[str, Any]:
    """The frontmatter at the head of a file, as JSON has it. What cannot be read raises UsageError with its line."""
    fenced = _FENCES.match(text)
    if fenced is None:
        raise UsageError("line 1: expected frontmatter: a line `---`, `name: …`, `description: …`, and a line `---`")
    lines = fenced[1].replace("\r\n", "\n").split("\n")[:-1]
    if len(fenced[1]) > LONGEST:
        raise UsageError(f"line 1: the frontmatter is longer than {LONGEST // 1024} KiB")
    for number, line in enumerate(lines, 2):
        unfit = _UNFIT.search(line)
        if unfit is not None:
            what = "a tab: use spaces" if unfit[0] == "\t" else f"the character U+{ord(unfit[0]):04X}"
            raise UsageError(f"line {number}: the frontmatter cannot hold {what}")
        if line.startswith(("---", "...")):
            raise UsageError(f"line {number}: a line that starts with {line[:3]!r} would end the frontmatter")
    return _YamlReader(lines).mapping()


class _YamlReader:
    """Goes down the lines. Each method stands on the line it reads and leaves on the line after."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def mapping(self) -> dict[str, Any]:
        first = self._next()
        found = {} if first is None else self._mapping(first.indent, 0)
        if self._next() is not None or (first is not None and first.indent):
            self._fail("the keys of the frontmatter start at the edge")
        return found

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        # The first of our lines is the second of the file.
        number = min(self._at if at is None else at, len(self._lines) - 1) + 2
        raise UsageError(f"line {number}: {what}")

    def _next(self) -> _Line | None:
        """The line to read, past what is empty or a comment."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            text = line.lstrip(" ")
            if text and text[0] != "#":
                return _Line(len(line) - len(text), text)
            self._at += 1
        return None

    def _below(self, parent: int, start: int) -> list[str]:
        """The lines from `start` that belong to what is at indent `parent`."""
        end = start
        while end < len(self._lines):
            text = self._lines[end].lstrip(" ")
            if text and len(self._lines[end]) - len(text) <= parent:
                break
            end += 1
        return self._lines[start:end]

    # Blocks

    def _node(self, parent: int, depth: int) -> Any:
        """What stands on the lines below, indented by more than `parent`; nothing is null."""
        line = self._next()
        if line is None or line.indent <= parent:
            return None
        if depth > DEEPEST:
            self._fail(f"nested more than {DEEPEST} deep")
        if _is_item(line.text):
            return self._sequence(line.indent, depth)
        if self._key(line.text) is not None:
            return self._mapping(line.indent, depth)
        return self._scalar(line.text, parent, depth)

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (line := self._next()) is not None and line.indent == indent:
            pair = self._key(line.text)
            if pair is None:
                self._fail("expected `key: value`")
            key, rest = pair
            if key in found:
                self._fail(f"{key!r} is given twice")
            found[key] = self._value(rest, indent, depth, in_mapping=True)
        if line is not None and line.indent > indent:
            self._fail("this line is indented too far, or belongs to a text that needs quotes")
        return found

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while (line := self._next()) is not None and line.indent == indent and _is_item(line.text):
            rest = line.text[1:].lstrip(" ")
            if rest and (_is_item(rest) or self._key(rest) is not None):
                # What follows the dash on its line is a block of its own: read it as if it stood there alone.
                self._lines[self._at] = " " * (indent + len(line.text) - len(rest)) + rest
                found.append(self._node(indent, depth + 1))
            else:
                found.append(self._value(rest, indent, depth, in_mapping=False))
        if line is not None and line.indent > indent:
            self._fail("this line is indented too far, or belongs to a text that needs quotes")
        return found

    def _key(self, text: str) -> tuple[str, str] | None:
        """A key and what follows its colon, if the line is of that kind."""
        if text[0] in "[{":
            return None
        if text[0] in "\"'":
            try:
                key, end = self._quoted(text, 0)
            except UsageError:
                return None  # a text over several lines: reading it as a value says what is wrong
            colon = _QUOTED_COLON.match(text, end)
            return None if colon is None else (key, text[colon.end() :])
        colon = _COLON.search(text)
        if colon is None or " #" in text[: colon.start()]:
            return None
        plain = self._plain(text[: colon.start()].rstrip(" "))
        if not isinstance(plain, str):
            self._fail("a key that is not text: put it in quotes")
        return plain, text[colon.end() :]

    def _value(self, rest: str, indent: int, depth: int, *, in_mapping: bool) -> Any:
        if rest and rest[0] != "#":
            return self._scalar(rest, indent, depth)
        self._at += 1
        start = self._at
        line = self._next()
        commented = any(one.strip(" ") for one in self._lines[start : self._at])
        text = line.text if line is not None and line.indent > indent else ""
        if commented and text and not _is_item(text) and self._key(text) is None:
            self._fail("a comment between a key and its text: some readers stumble over it")
        # YAML lets a list stand as far left as the key that it belongs to.
        if in_mapping and line is not None and line.indent == indent and _is_item(line.text):
            return self._sequence(indent, depth + 1)
        return self._node(indent, depth + 1)

    # Scalars

    def _scalar(self, text: str, parent: int, depth: int) -> Any:
        if text[0] in "|>":
            return self._block(text, parent)
        if text[0] in "\"'[{":
            return self._flow_lines(text, parent, depth)
        return self._plain_lines(text, parent)

    def _block(self, header: str, parent: int) -> str:
        kind = _BLOCK.fullmatch(header)
        if kind is None:
            self._fail("expected `|`, `|-`, `>` or `>-` and the text on the lines below")
        start = self._at + 1
        lines = self._below(parent, start)
        self._at = start + len(lines)
        indent = next((len(line) - len(line.lstrip(" ")) for line in lines if line.strip(" ")), 0)
        pieces: list[str] = []
        for number, line in enumerate(lines, start):
            empty = not line.strip(" ")
            if empty and len(line) > indent and indent:
                self._fail("an empty line with more spaces than the text is indented by", number)
            if not empty and line[:indent].strip(" "):
                self._fail("this line is indented by less than the text it belongs to", number)
            pieces.append("" if empty else line[indent:])
        while pieces and not pieces[-1]:
            pieces.pop()
        body = "\n".join(pieces) if kind[1] == "|" else _folded(pieces)
        return body if kind[2] or not body else body + "\n"

    def _plain_lines(self, text: str, parent: int) -> Any:
        start = self._at
        said, mark, _ = text.partition(" #")
        said = said.rstrip(" ")
        gap = 0
        self._at += 1
        for line in [] if mark else self._below(parent, start + 1):
            text = line.strip(" ")
            if text.startswith("#"):
                break
            self._at += 1
            if not text:
                gap += 1
                continue
            if _is_item(text):
                self._fail(
                    "a list cannot continue a text: put the text in quotes, or write `|` before it", self._at - 1
                )
            text, mark, _ = text.partition(" #")
            said += ("\n" * gap or " ") + text.rstrip(" ")
            gap = 0
            if mark:
                break
        return self._plain(said, start)

    def _plain(self, text: str, at: int | None = None) -> Any:
        """A scalar without quotes, as what it is."""
        if not text or text[0] in "&*!|>%@`\"'#,[]{}" or (text[0] in "-?:" and text[1:2] in ("", " ", "\n")):
            self._fail(f"{text[:20]!r} cannot start a value or a key: put it in quotes", at)
        if ": " in text or ":\n" in text or text[-1] == ":":
            self._fail("a text with a colon and a space in it: put it in quotes", at)
        if text in _WORDS:
            return _WORDS[text]
        if _WHOLE.fullmatch(text) and len(text) < 18 and abs(int(text)) <= _LARGEST:
            return int(text)
        if _DECIMAL.fullmatch(text) and isfinite(float(text)):
            return float(text)
        if _DISPUTED.fullmatch(text):
            self._fail(f"{text!r} is text to some readers of YAML and not to others: put it in quotes", at)
        return text

    # Quotes, and lists and mappings in brackets

    def _flow_lines(self, text: str, parent: int, depth: int) -> Any:
        text = "\n".join([text, *self._below(parent, self._at + 1)])
        value, end = self._flow(text, 0, depth)
        self._at += text.count("\n", 0, end) + 1
        rest = text[end:].partition("\n")[0]
        if not _TAIL.fullmatch(rest):
            self._fail(f"{rest.strip(' ')[:20]!r} after the end of the value", self._at - 1)
        return value

    def _flow(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        if depth > DEEPEST:
            self._lost(text, at, f"nested more than {DEEPEST} deep")
        if text[at : at + 1] in ("'", '"'):
            return self._quoted(text, at)
        if text[at : at + 1] == "[":
            return self._flow_list(text, at, depth)
        if text[at : at + 1] == "{":
            return self._flow_mapping(text, at, depth)
        return self._flow_plain(text, at)

    def _flow_list(self, text: str, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []

        def item(at: int) -> int:
            value, at = self._flow(text, at, depth + 1)
            found.append(value)
            return at

        return found, self._between(text, at, "]", item)

    def _flow_mapping(self, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}

        def pair(at: int) -> int:
            quoted = text[at] in "\"'"
            key, colon = (self._quoted if quoted else self._flow_plain)(text, at)
            if not isinstance(key, str) or key in found:
                self._lost(text, at, f"{key!r} is given twice, or is a key that is not text")
            if (
                "\n" in text[at:colon]
                or text[colon : colon + 1] != ":"
                or text[colon + 1 : colon + 2] not in (" ", "\n")
            ):
                self._lost(text, colon, "expected `key: value` inside `{}`")
            found[key], end = self._flow(text, self._space(text, colon + 1), depth + 1)
            return end

        return found, self._between(text, at, "}", pair)

    def _between(self, text: str, at: int, close: str, read: Callable[[int], int]) -> int:
        """What stands between brackets, separated by commas; the last may have one too. The place after it."""
        at = self._space(text, at + 1)
        while text[at : at + 1] != close:
            at = self._space(text, read(at) if at < len(text) else at)
            if text[at : at + 1] == ",":
                at = self._space(text, at + 1)
            elif text[at : at + 1] != close:
                lost = f"expected `,` or `{close}`" if at < len(text) else f"no `{close}`, or not indented far enough"
                self._lost(text, at, lost)
        return at + 1

    def _flow_plain(self, text: str, at: int) -> tuple[Any, int]:
        end = at
        while end < len(text) and text[end] not in ",[]{}\n":
            if text[end] == ":" and text[end + 1 : end + 2] in (" ", "\n", "", ",", "[", "]", "{", "}"):
                break
            if text[end] == "#" and text[end - 1] == " ":
                break
            end += 1
        said = text[at:end].rstrip(" ")
        number = _WHOLE.fullmatch(said) or _DECIMAL.fullmatch(said)
        if not number and (said[:1] in ("", ":", "-") or "?" in said):
            self._lost(text, at, "expected a value; one that starts with a sign or has a `?` in it needs quotes")
        return self._plain(said, self._at + text.count("\n", 0, at)), end

    def _space(self, text: str, at: int) -> int:
        while at < len(text):
            if text[at] == "#" and text[at - 1] in " \n":
                at = (text.find("\n", at) + 1 or len(text) + 1) - 1
            elif text[at] not in " \n":
                break
            else:
                at += 1
        return at

    def _quoted(self, text: str, at: int) -> tuple[str, int]:
        """A text in quotes. A line break in it is a space; with empty lines after it, it is that many line breaks."""
        quote = text[at]
        parts: list[str] = []
        start, at = at, at + 1
        pattern = _SINGLE if quote == "'" else _DOUBLE
        while (token := pattern.match(text, at)) is not None:
            said = token[0]
            at = token.end()
            if "\n" in said:
                said = "\n" * (said.count("\n") - 1) or " "
            elif said == "''" and quote == "'":
                said = "'"
            elif said[0] == "\\" and quote == '"':
                said = self._escape(text, at, said[1:])
            parts.append(said)
        if text[at : at + 1] != quote:
            self._lost(text, start if at >= len(text) else at, "a quote that does not end, or an escape not in JSON")
        return "".join(parts), at + 1

    def _escape(self, text: str, at: int, said: str) -> str:
        if said[0] not in "xuU":
            return _ESCAPES.get(said, said)
        point = int(said[1:], 16)
        if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
            self._lost(text, at, f"\\{said} is no character: write it as it is, or with \\U and eight digits")
        return chr(point)

    def _lost(self, text: str, at: int, what: str) -> NoReturn:
        self._fail(what, self._at + text.count("\n", 0, at))


def _is_item(text: str) -> bool:
    return text.startswith("- ") or text == "-"


def _folded(pieces: list[str]) -> str:
    """The lines of `>`: joined by spaces, except around empty lines and lines that are indented further."""
    said: list[str] = []
    gap = 0
    before: str | None = None
    for piece in pieces:
        if not piece:
            gap += 1
            continue
        if before is None:
            said.append("\n" * gap)
        elif before[0] == " " or piece[0] == " ":
            said.append("\n" * (gap + 1))
        else:
            said.append("\n" * gap or " ")
        said.append(piece)
        before, gap = piece, 0
    return "".join(said)
