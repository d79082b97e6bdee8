"""Parser for the frontmatter of a SKILL.md: the subset of YAML that all parsers read alike.

Clients parse the frontmatter of a skill, too, and compare, so all parsers must agree on it. Supported: block and flow
mappings and lists, plain and quoted scalars over one or more lines, `|` and `>`, and comments. Rejected with their
line: anchors, aliases, tags, merge keys, complex keys, duplicate keys, tabs, and plain scalars such as `yes`, `007` or
`2026-07-28`, which YAML 1.1 and 1.2 interpret differently.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from portico.protocol.errors import UsageError

# The frontmatter of a skill is a name and a description; the body of the file holds the text.
MAX_FRONTMATTER_CHARS = 64 * 1024
# The parser is recursive: deeper nesting could exhaust the stack.
MAX_NESTING_DEPTH = 16
# Largest integer that every JSON parser represents exactly.
_MAX_SAFE_INTEGER = 2**53 - 1

_FENCES = re.compile(r"\ufeff?---\r?\n(.*?)^--- *\r?$", re.DOTALL | re.MULTILINE)
# Parsers disagree on whether U+0085, U+2028 and U+2029 end a line; the others are not printable.
_FORBIDDEN_CHARS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

_YAML_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+][0-9]+)?")
_AMBIGUOUS_SCALARS = re.compile(
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


def parse_frontmatter(text: str) -> dict[str, Any]:
    """Parse the frontmatter at the beginning of a file into JSON values. Raises UsageError with the line."""
    fenced = _FENCES.match(text)
    if fenced is None:
        raise UsageError("line 1: expected frontmatter: a line `---`, `name: …`, `description: …`, and a line `---`")
    lines = fenced[1].replace("\r\n", "\n").split("\n")[:-1]
    if len(fenced[1]) > MAX_FRONTMATTER_CHARS:
        raise UsageError(f"line 1: the frontmatter exceeds {MAX_FRONTMATTER_CHARS // 1024} KiB")
    for number, line in enumerate(lines, 2):
        forbidden = _FORBIDDEN_CHARS.search(line)
        if forbidden is not None:
            description = "a tab: use spaces" if forbidden[0] == "\t" else f"the character U+{ord(forbidden[0]):04X}"
            raise UsageError(f"line {number}: {description} is not supported in frontmatter")
        if line.startswith(("---", "...")):
            raise UsageError(f"line {number}: a line that starts with {line[:3]!r} would end the frontmatter")
    return _YamlParser(lines).mapping()


class _YamlParser:
    """Line-based parser. Each method starts at the line it reads and ends at the line after."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def mapping(self) -> dict[str, Any]:
        first = self._next_line()
        result = {} if first is None else self._mapping(first.indent, 0)
        # A deeper first key would make the whole document a nested mapping for other parsers.
        if self._next_line() is not None or (first is not None and first.indent):
            self._fail("the keys of the frontmatter start at the edge")
        return result

    def _fail(self, problem: str, at: int | None = None) -> NoReturn:
        # Our first line is the second line of the file.
        number = min(self._at if at is None else at, len(self._lines) - 1) + 2
        raise UsageError(f"line {number}: {problem}")

    def _next_line(self) -> _Line | None:
        """Return the next line that is not empty or a comment, or None."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            text = line.lstrip(" ")
            if text and text[0] != "#":
                return _Line(len(line) - len(text), text)
            self._at += 1
        return None

    def _indented_lines(self, parent: int, start: int) -> list[str]:
        """Return the lines from `start` that are indented more than `parent`."""
        end = start
        while end < len(self._lines):
            text = self._lines[end].lstrip(" ")
            if text and len(self._lines[end]) - len(text) <= parent:
                break
            end += 1
        return self._lines[start:end]

    # Blocks

    def _node(self, parent: int, depth: int) -> Any:
        """Parse the block below that is indented more than `parent`; None if there is none."""
        line = self._next_line()
        if line is None or line.indent <= parent:
            return None
        if depth > MAX_NESTING_DEPTH:
            self._fail(f"nested more than {MAX_NESTING_DEPTH} deep")
        if _is_item(line.text):
            return self._sequence(line.indent, depth)
        if self._key(line.text) is not None:
            return self._mapping(line.indent, depth)
        return self._scalar(line.text, parent, depth)

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while (line := self._next_line()) is not None and line.indent == indent:
            pair = self._key(line.text)
            if pair is None:
                self._fail("expected `key: value`")
            key, rest = pair
            if key in result:
                self._fail(f"{key!r} is given twice")
            result[key] = self._value(rest, indent, depth, in_mapping=True)
        if line is not None and line.indent > indent:
            self._fail("this line is indented too far, or belongs to a text that needs quotes")
        return result

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        results: list[Any] = []
        while (line := self._next_line()) is not None and line.indent == indent and _is_item(line.text):
            rest = line.text[1:].lstrip(" ")
            if rest and (_is_item(rest) or self._key(rest) is not None):
                # The text after the dash is a nested block: parse it as if it were alone on its line.
                self._lines[self._at] = " " * (indent + len(line.text) - len(rest)) + rest
                results.append(self._node(indent, depth + 1))
            else:
                results.append(self._value(rest, indent, depth, in_mapping=False))
        if line is not None and line.indent > indent:
            self._fail("this line is indented too far, or belongs to a text that needs quotes")
        return results

    def _key(self, text: str) -> tuple[str, str] | None:
        """Return a key and the text after its colon, or None if the line has no key."""
        if text[0] in "[{":
            return None
        if text[0] in "\"'":
            try:
                key, end = self._parse_quoted(text, 0)
            except UsageError:
                return None  # a scalar over several lines: parsing it as a value reports the error
            colon = _QUOTED_COLON.match(text, end)
            return None if colon is None else (key, text[colon.end() :])
        colon = _COLON.search(text)
        if colon is None or " #" in text[: colon.start()]:
            return None
        plain = self._parse_plain_scalar(text[: colon.start()].rstrip(" "))
        if not isinstance(plain, str):
            self._fail("a key that is not text: put it in quotes")
        return plain, text[colon.end() :]

    def _value(self, rest: str, indent: int, depth: int, *, in_mapping: bool) -> Any:
        if rest and rest[0] != "#":
            return self._scalar(rest, indent, depth)
        self._at += 1
        start = self._at
        line = self._next_line()
        commented = any(item.strip(" ") for item in self._lines[start : self._at])
        text = line.text if line is not None and line.indent > indent else ""
        if commented and text and not _is_item(text) and self._key(text) is None:
            self._fail("a comment between a key and its text: some readers stumble over it")
        # YAML allows a list at the same indentation as its key.
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
        lines = self._indented_lines(parent, start)
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
        # YAML clips trailing empty lines; `-` also drops the last line break.
        while pieces and not pieces[-1]:
            pieces.pop()
        body = "\n".join(pieces) if kind[1] == "|" else _fold_lines(pieces)
        return body if kind[2] or not body else body + "\n"

    def _plain_lines(self, text: str, parent: int) -> Any:
        start = self._at
        content, mark, _ = text.partition(" #")
        content = content.rstrip(" ")
        gap = 0
        self._at += 1
        for line in [] if mark else self._indented_lines(parent, start + 1):
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
            content += ("\n" * gap or " ") + text.rstrip(" ")
            gap = 0
            if mark:
                break
        return self._parse_plain_scalar(content, start)

    def _parse_plain_scalar(self, text: str, at: int | None = None) -> Any:
        """Convert a plain scalar."""
        if not text or text[0] in "&*!|>%@`\"'#,[]{}" or (text[0] in "-?:" and text[1:2] in ("", " ", "\n")):
            self._fail(f"{text[:20]!r} cannot start a value or a key: put it in quotes", at)
        if ": " in text or ":\n" in text or text[-1] == ":":
            self._fail("a text with a colon and a space in it: put it in quotes", at)
        if text in _YAML_CONSTANTS:
            return _YAML_CONSTANTS[text]
        # Bounded before int(): converting thousands of digits takes quadratic time.
        if _INTEGER.fullmatch(text) and len(text) < 18 and abs(int(text)) <= _MAX_SAFE_INTEGER:
            return int(text)
        if _DECIMAL.fullmatch(text) and isfinite(float(text)):
            return float(text)
        if _AMBIGUOUS_SCALARS.fullmatch(text):
            self._fail(f"{text!r} is text to some readers of YAML and not to others: put it in quotes", at)
        return text

    # Quotes, and lists and mappings in brackets

    def _flow_lines(self, text: str, parent: int, depth: int) -> Any:
        text = "\n".join([text, *self._indented_lines(parent, self._at + 1)])
        value, end = self._flow(text, 0, depth)
        self._at += text.count("\n", 0, end) + 1
        rest = text[end:].partition("\n")[0]
        if not _TAIL.fullmatch(rest):
            self._fail(f"{rest.strip(' ')[:20]!r} after the end of the value", self._at - 1)
        return value

    def _flow(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        if depth > MAX_NESTING_DEPTH:
            self._fail_at(text, at, f"nested more than {MAX_NESTING_DEPTH} deep")
        if text[at : at + 1] in ("'", '"'):
            return self._parse_quoted(text, at)
        if text[at : at + 1] == "[":
            return self._flow_list(text, at, depth)
        if text[at : at + 1] == "{":
            return self._flow_mapping(text, at, depth)
        return self._flow_plain(text, at)

    def _flow_list(self, text: str, at: int, depth: int) -> tuple[list[Any], int]:
        results: list[Any] = []

        def item(at: int) -> int:
            value, at = self._flow(text, at, depth + 1)
            results.append(value)
            return at

        return results, self._flow_items(text, at, "]", item)

    def _flow_mapping(self, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}

        def pair(at: int) -> int:
            quoted = text[at] in "\"'"
            key, colon = (self._parse_quoted if quoted else self._flow_plain)(text, at)
            if not isinstance(key, str) or key in result:
                self._fail_at(text, at, f"{key!r} is given twice, or is a key that is not text")
            if (
                "\n" in text[at:colon]
                or text[colon : colon + 1] != ":"
                or text[colon + 1 : colon + 2] not in (" ", "\n")
            ):
                self._fail_at(text, colon, "expected `key: value` inside `{}`")
            result[key], end = self._flow(text, self._space(text, colon + 1), depth + 1)
            return end

        return result, self._flow_items(text, at, "}", pair)

    def _flow_items(self, text: str, at: int, close: str, read: Callable[[int], int]) -> int:
        """Parse comma-separated elements between brackets and return the end position.

        A trailing comma is allowed.
        """
        at = self._space(text, at + 1)
        while text[at : at + 1] != close:
            at = self._space(text, read(at) if at < len(text) else at)
            if text[at : at + 1] == ",":
                at = self._space(text, at + 1)
            elif text[at : at + 1] != close:
                problem = (
                    f"expected `,` or `{close}`" if at < len(text) else f"no `{close}`, or not indented far enough"
                )
                self._fail_at(text, at, problem)
        return at + 1

    def _flow_plain(self, text: str, at: int) -> tuple[Any, int]:
        end = at
        while end < len(text) and text[end] not in ",[]{}\n":
            if text[end] == ":" and text[end + 1 : end + 2] in (" ", "\n", "", ",", "[", "]", "{", "}"):
                break
            if text[end] == "#" and text[end - 1] == " ":
                break
            end += 1
        scalar = text[at:end].rstrip(" ")
        number = _INTEGER.fullmatch(scalar) or _DECIMAL.fullmatch(scalar)
        if not number and (scalar[:1] in ("", ":", "-") or "?" in scalar):
            self._fail_at(text, at, "expected a value; one that starts with a sign or has a `?` in it needs quotes")
        return self._parse_plain_scalar(scalar, self._at + text.count("\n", 0, at)), end

    def _space(self, text: str, at: int) -> int:
        while at < len(text):
            if text[at] == "#" and text[at - 1] in " \n":
                # A comment ends with its line; the line break itself is white space.
                at = (text.find("\n", at) + 1 or len(text) + 1) - 1
            elif text[at] not in " \n":
                break
            else:
                at += 1
        return at

    def _parse_quoted(self, text: str, at: int) -> tuple[str, int]:
        """Parse a quoted scalar. A line break becomes a space, or as many line breaks as empty lines follow."""
        quote = text[at]
        parts: list[str] = []
        start, at = at, at + 1
        pattern = _SINGLE if quote == "'" else _DOUBLE
        while (token := pattern.match(text, at)) is not None:
            piece = token[0]
            at = token.end()
            if "\n" in piece:
                piece = "\n" * (piece.count("\n") - 1) or " "
            elif piece == "''" and quote == "'":
                piece = "'"
            elif piece[0] == "\\" and quote == '"':
                piece = self._escape(text, at, piece[1:])
            parts.append(piece)
        if text[at : at + 1] != quote:
            self._fail_at(text, start if at >= len(text) else at, "a quote that does not end, or an escape not in JSON")
        return "".join(parts), at + 1

    def _escape(self, text: str, at: int, escape: str) -> str:
        if escape[0] not in "xuU":
            return _ESCAPES.get(escape, escape)
        point = int(escape[1:], 16)
        # Surrogates are not characters: a text with one cannot be encoded as UTF-8.
        if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
            self._fail_at(
                text, at, f"\\{escape} is not a valid character: write it literally, or with \\U and eight digits"
            )
        return chr(point)

    def _fail_at(self, text: str, at: int, problem: str) -> NoReturn:
        self._fail(problem, self._at + text.count("\n", 0, at))


def _is_item(text: str) -> bool:
    return text.startswith("- ") or text == "-"


def _fold_lines(pieces: list[str]) -> str:
    """Fold the lines of `>`: joined by spaces, except around empty lines and more indented lines."""
    parts: list[str] = []
    gap = 0
    before: str | None = None
    for piece in pieces:
        if not piece:
            gap += 1
            continue
        if before is None:
            parts.append("\n" * gap)
        elif before[0] == " " or piece[0] == " ":
            parts.append("\n" * (gap + 1))
        else:
            parts.append("\n" * gap or " ")
        parts.append(piece)
        before, gap = piece, 0
    return "".join(parts)
