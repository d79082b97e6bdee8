"""Paths and URLs in a query: which kind of thing they are says more about the tool that is needed than their words."""

from __future__ import annotations

import re
from functools import cache

# What people call a kind of file, by how its name ends.
_ENDINGS = """
md: markdown | docx doc odt: word document | xlsx xls ods: excel spreadsheet | csv tsv: csv table
pptx ppt odp: powerpoint presentation ppt | pdf: pdf | txt bib log: text | png jpg jpeg gif webp bmp: image picture
svg: svg image | mp3 wav flac ogg m4a: audio | mp4 mov avi mkv webm: video | html htm: html | json: json
yaml yml toml ini: config | py: python code | js ts tsx rs go java c cpp rb sh: code | db sqlite sql: database
zip tar gz: archive | eml: email | ics: calendar
"""

_URL = re.compile(r"https?://([^\s/]*)\S*")
_FILE = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/[\w.\-/~]+|\b[\w\-]+\.[a-z][a-z0-9]{1,4}\b")
_SPACED = re.compile(r"[_/.~\-]+")


@cache
def _kinds() -> dict[str, str]:
    groups = (group.split(":") for line in _ENDINGS.strip().splitlines() for group in line.split("|"))
    return {ending: kind.strip() for endings, kind in groups for ending in endings.split()}


def without_places(text: str) -> tuple[str, str, str]:
    """A text without the paths and addresses in it; the kinds of things that are there; and the words in them, which
    say little."""
    kinds: list[str] = []
    inside: list[str] = []

    def url(found: re.Match[str]) -> str:
        kinds.append("url web page")
        inside.append(_SPACED.sub(" ", found[1]))
        return " "

    def file(found: re.Match[str]) -> str:
        name = found[0].rstrip(".").rpartition("/")[2]
        stem_of_name, dot, ending = name.rpartition(".")
        kind = _kinds().get(ending.lower()) if dot and stem_of_name else None
        # Next.js is no file.
        if kind in (None, "code") and "/" not in found[0]:
            return found[0]
        kinds.append(f"file {kind}" if kind is not None else "file" if dot else "directory")
        inside.append(_SPACED.sub(" ", found[0]))
        return " "

    return _FILE.sub(file, _URL.sub(url, text)), " ".join(kinds), " ".join(inside)
