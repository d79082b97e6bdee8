"""Log formatters: text lines for users, or one JSON object per line.

Text from clients can neither end a line nor control a terminal.
"""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

import msgspec

from portico.text import escape_unprintable

FORMATS = ("text", "json")
# Attribute of a log record that holds the fields of the request log.
RECORD_FIELDS_ATTRIBUTE = "portico_members"


# Prefix of traceback lines. No record begins like this, so an exception's text cannot forge one.
_CONTINUED = "    | "


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message` on one line, followed by the indented traceback."""

    def format(self, record: logging.LogRecord) -> str:
        members = getattr(record, RECORD_FIELDS_ATTRIBUTE, None)
        if members is not None:
            return format_fields(members)
        # Other handlers expect it, as the standard library's formatter sets it.
        record.message = record.getMessage()
        lines = [
            escape_unprintable(f"{format_timestamp(record.created)} {record.levelname} {record.name}: {record.message}")
        ]
        if record.exc_info:
            lines += self._indent_lines(self.formatException(record.exc_info))
        if record.stack_info:
            lines += self._indent_lines(self.formatStack(record.stack_info))
        return "\n".join(lines)

    def _indent_lines(self, text: str) -> list[str]:
        return [_CONTINUED + escape_unprintable(line) for line in text.split("\n")]


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with every invisible character escaped."""

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, Any] | None = getattr(record, RECORD_FIELDS_ATTRIBUTE, None)
        line: dict[str, Any] = {
            "time": format_timestamp(record.created),
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
        # Extra fields of other libraries may hold any object; a log call must not fail because of them.
        text = msgspec.json.encode(line, enc_hook=str).decode()
        return text if text.isprintable() else "".join(char if char.isprintable() else _unit(char) for char in text)


def _encodable(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded (for example in file names that are not UTF-8)."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unit(char: str) -> str:
    """Escape a character for JSON, as one or two UTF-16 units."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def create_formatter(name: str) -> logging.Formatter:
    return JsonFormatter() if name == "json" else TextFormatter()


def format_timestamp(seconds: float) -> str:
    # Truncated rather than rounded, so that a timestamp is never in the future.
    second, part = divmod(int(seconds * 1000), 1000)
    return f"{_second(second)}.{part:03d}Z"


# A busy server logs thousands of lines per second, and all of them share this part of the timestamp.
@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def format_fields(members: dict[str, Any]) -> str:
    """Format `time method tool outcome 0.42ms 512B`, followed by the other fields as `name=value`."""
    rest = dict(members)
    # The fields of every line come first, in a fixed order, so that columns can be compared by eye.
    words = [rest.pop("time"), rest.pop("method"), rest.pop("target", ""), rest.pop("outcome")]
    if "ms" in rest:
        words.append(f"{rest.pop('ms'):.2f}ms")
    words.append(f"{rest.pop('bytes')}B")
    words += [f"{name}={_quote_value(str(value))}" for name, value in rest.items()]
    return " ".join(escape_unprintable(str(word)) for word in words if word != "")


def _quote_value(text: str) -> str:
    return f'"{text}"' if " " in text else text
