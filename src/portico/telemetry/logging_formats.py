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


class TextLines(logging.Formatter):
    """`LEVEL logger: message`; a line of the request log begins with its time."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        members = getattr(record, MEMBERS, None)
        return super().format(record) if members is None else as_text(members)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, Any] | None = getattr(record, MEMBERS, None)
        line: dict[str, Any] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if members is None:
            line["message"] = record.getMessage()
        else:
            line |= members
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


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
