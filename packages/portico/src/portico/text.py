"""Formatting of untrusted text for messages: bounded, and on one line."""

from __future__ import annotations


def truncate(text: str, max_chars: int) -> str:
    """Return the text, truncated with an ellipsis if it has more than `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def one_line(text: str, max_chars: int | None = None) -> str:
    """Return the text on one line: unprintable characters and runs of white space become single spaces.

    Line breaks could forge log entries, and terminals execute escape sequences.
    """
    if max_chars is not None:
        # Bounds the work on long texts; assumes that at most three quarters are white space.
        text = text[: 4 * max_chars + 1]
    # isprintable() is False for control characters, line separators and bidirectional marks, which can hide text.
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if max_chars is None else truncate(line, max_chars)


def escape_unprintable(text: str) -> str:
    r"""Return the text with unprintable characters as escape sequences, such as `\n` and `\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def escape_json_char(char: str) -> str:
    """Return a character as JSON escapes: UTF-16 code units, two above U+FFFF (RFC 8259, section 7)."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
