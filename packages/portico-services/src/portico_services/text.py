"""Text helpers: storable text, previews, and the Markdown sections that hold prompts and help."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def replace_unstorable(text: str) -> str:
    """Replace each NUL and lone surrogate by U+FFFD, because databases cannot store them.

    A valid surrogate pair becomes the character it encodes.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\ufffd") if "\0" in text else text


def truncate_preview(text: str, length: int) -> str:
    """Return the beginning of a text on one line, cut between words if possible."""
    # Collapsing whitespace only shortens, so four times the length suffices in practice and bounds the work.
    line = " ".join(text[: length * 4].split())
    if len(line) <= length:
        return line if len(text) <= length * 4 else line + " …"
    cut = line[:length]
    head, space, _ = cut.rpartition(" ")
    return f"{head if space and len(head) > length // 2 else cut} …"


@cache
def load_markdown_sections(path: Path) -> dict[str, str]:
    """Return the sections of a Markdown file by their second-level headings."""
    parts = f"\n{path.read_text(encoding='utf-8')}".split("\n## ")[1:]
    return {name: text.strip("\n") for name, _, text in (part.partition("\n") for part in parts)}
