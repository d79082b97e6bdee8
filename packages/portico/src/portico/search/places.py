"""Paths and URLs in a query: their type says more about the needed tool than their words."""

from __future__ import annotations

import re
from functools import cache

# Terms for file types, by extension.
_EXTENSION_TERMS = """
md: markdown | docx doc odt: word document | xlsx xls ods: excel spreadsheet | csv tsv: csv table
pptx ppt odp: powerpoint presentation ppt | pdf: pdf | txt bib log: text | png jpg jpeg gif webp bmp: image picture
svg: svg image | mp3 wav flac ogg m4a: audio | mp4 mov avi mkv webm: video | html htm: html | json: json
yaml yml toml ini: config | py: python code | js ts tsx rs go java c cpp rb sh: code | db sqlite sql: database
zip tar gz: archive | eml: email | ics: calendar
"""

# Only the host says something about the tool (`github.com`); paths and parameters are mostly ids.
_URL = re.compile(r"https?://([^\s/]*)\S*")
_FILE = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/[\w.\-/~]+|\b[\w\-]+\.[a-z][a-z0-9]{1,4}\b")
_SPACED = re.compile(r"[_/.~\-]+")


@cache
def _kinds() -> dict[str, str]:
    groups = (group.split(":") for line in _EXTENSION_TERMS.strip().splitlines() for group in line.split("|"))
    return {ending: kind.strip() for endings, kind in groups for ending in endings.split()}


def strip_paths_and_urls(text: str) -> tuple[str, str, str]:
    """Return the text without paths and URLs, the terms for their types, and the words inside them, which carry little
    meaning.
    """
    kinds: list[str] = []
    inside: list[str] = []

    def url(match: re.Match[str]) -> str:
        kinds.append("url web page")
        inside.append(_SPACED.sub(" ", match[1]))
        return " "

    def file(match: re.Match[str]) -> str:
        name = match[0].rstrip(".").rpartition("/")[2]
        stem_of_name, dot, ending = name.rpartition(".")
        kind = _kinds().get(ending.lower()) if dot and stem_of_name else None
        # A name such as Next.js is not a file.
        if kind in (None, "code") and "/" not in match[0]:
            return match[0]
        kinds.append(f"file {kind}" if kind is not None else "file" if dot else "directory")
        inside.append(_SPACED.sub(" ", match[0]))
        return " "

    return _FILE.sub(file, _URL.sub(url, text)), " ".join(kinds), " ".join(inside)
