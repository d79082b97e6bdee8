"""How log records look: lines for people, or one JSON object a line for programs. Nothing that a client says can end a
line, or tell a terminal what to do."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

import msgspec

FORMATS = ("text", "json")
# Where a record of the request log keeps its members.
MEMBERS = "portico_members"


# Before each line of a traceback. No record begins like this, so an exception's text cannot forge one.
_CONTINUED = "    | "


class TextLines(logging.Formatter):
    """`time LEVEL logger: message` in one line; then the traceback, indented."""

    def format(self, record: logging.LogRecord) -> str:
        members = getattr(record, MEMBERS, None)
        if members is not None:
            return as_text(members)
        # Other handlers expect it there, as the formatter of the standard library sets it.
        record.message = record.getMessage()
        lines = [_plain(f"{moment(record.created)} {record.levelname} {record.name}: {record.message}")]
        if record.exc_info:
            lines += self._indent(self.formatException(record.exc_info))
        if record.stack_info:
            lines += self._indent(self.formatStack(record.stack_info))
        return "\n".join(lines)

    def _indent(self, text: str) -> list[str]:
        return [_CONTINUED + _plain(line) for line in text.split("\n")]


class JsonLines(logging.Formatter):
    """A JSON object in one line, in which every invisible character is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, Any] | None = getattr(record, MEMBERS, None)
        line: dict[str, Any] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if members is None:
            record.message = record.getMessage()
            line["message"] = _encodable(record.message)
        else:
            line |= members
        if record.exc_info:
            line["exception"] = _encodable(self.formatException(record.exc_info))
        text = msgspec.json.encode(line, enc_hook=str).decode()
        return text if text.isprintable() else "".join(one if one.isprintable() else _unit(one) for one in text)


def _encodable(text: str) -> str:
    """Escape lone surrogates, as in names of files that are not UTF-8: they have no encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unit(char: str) -> str:
    """Escape a character for JSON, as one or two UTF-16 units."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def formatter(name: str) -> logging.Formatter:
    return JsonLines() if name == "json" else TextLines()


def moment(seconds: float) -> str:
    whole, part = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{part:03d}Z"


@lru_cache(maxsize=4)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def as_text(members: dict[str, Any]) -> str:
    """`time method tool outcome 0.42ms 512B`, and what else there is as `name=value`."""
    left = dict(members)
    words = [left.pop("time"), left.pop("method"), left.pop("target", ""), left.pop("outcome")]
    if "ms" in left:
        words.append(f"{left.pop('ms'):.2f}ms")
    words.append(f"{left.pop('bytes')}B")
    words += [f"{name}={_quoted(str(value))}" for name, value in left.items()]
    return " ".join(_plain(str(word)) for word in words if word != "")


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _plain(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
