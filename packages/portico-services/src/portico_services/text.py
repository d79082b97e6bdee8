"""Texts from clients, as a database can hold them and as a list shows them; and the texts of prompts and help."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def storable(text: str) -> str:
    """The text with U+FFFD for each NUL and each lone surrogate, which no database holds.

    Two surrogates that belong together become the character they encode.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\ufffd") if "\0" in text else text


def preview(text: str, length: int) -> str:
    """The beginning of the text on one line, cut between words where that is possible."""
    line = " ".join(text[: length * 4].split())
    if len(line) <= length:
        return line if len(text) <= length * 4 else line + " …"
    cut = line[:length]
    head, space, _ = cut.rpartition(" ")
    return f"{head if space and len(head) > length // 2 else cut} …"


@cache
def sections(path: Path) -> dict[str, str]:
    """The texts of a Markdown file by their headings, which are of the second level."""
    parts = f"\n{path.read_text(encoding='utf-8')}".split("\n## ")[1:]
    return {name: text.strip("\n") for name, _, text in (part.partition("\n") for part in parts)}
