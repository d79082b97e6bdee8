"""Scanners for comparison, each in its own Python: texts on stdin, findings on stdout.

    python secrets_peers.py detect-secrets
    python secrets_peers.py gitleaks RULES.toml

detect-secrets is used as its command line uses it: a file is scanned with its default plugins and filters. Of gitleaks
the rules are used, not the program, which no package index has: RE2 runs them, whose syntax is Go's, with keywords,
entropy, capture groups, stop words and allow lists as the program applies them. What asks for the path of a file is left
out, because a memory has none.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from math import log2
from pathlib import Path
from typing import Any

Spans = list[tuple[int, int]]


def detect_secrets() -> Callable[[str], Spans]:
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    folder = tempfile.mkdtemp()
    path = Path(folder) / "memory.txt"

    def scan(text: str) -> Spans:
        path.write_text(text, encoding="utf-8", newline="")
        result = SecretsCollection()
        with default_settings():
            result.scan_file(str(path))
        return [span for _, secret in result for span in _spans(text, secret.line_number, secret.secret_value or "")]

    return scan


def _spans(text: str, number: int, value: str) -> Iterator[tuple[int, int]]:
    """Return where a value occurs in its line, or the whole line."""
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: number - 1]))
    line = lines[number - 1] if number <= len(lines) else ""
    at = line.find(value) if value else -1
    yield (start, start + len(line)) if at < 0 else (start + at, start + at + len(value))


class Rule:
    """One rule of gitleaks."""

    def __init__(self, data: dict[str, Any], compiled: Callable[[str], Any]) -> None:
        self.name = data["id"]
        self.regex = compiled(data["regex"])
        self.entropy = data.get("entropy", 0)
        self.group = data.get("secretGroup", 0)
        self.keywords = [word.lower() for word in data.get("keywords", [])]
        lists = data.get("allowlists", []) + ([data["allowlist"]] if "allowlist" in data else [])
        self.allowed = [Allowed(item, compiled) for item in lists]

    def scan(self, text: str, lower: str) -> Iterator[tuple[str, int, int]]:
        if self.keywords and not any(word in lower for word in self.keywords):
            return
        for result in self.regex.finditer(text):
            group = self.group or next((n for n, value in enumerate(result.groups(), 1) if value), 0)
            secret = result[group]
            if self.entropy and entropy(secret) <= self.entropy:
                continue
            if not any(item.allows(secret, result[0], line_of(text, result.start())) for item in self.allowed):
                yield secret, *result.span(group)


class Allowed:
    """Exceptions of a rule."""

    def __init__(self, data: dict[str, Any], compiled: Callable[[str], Any]) -> None:
        self.regexes = [compiled(item) for item in data.get("regexes", [])]
        self.words = [word.lower() for word in data.get("stopwords", [])]
        self.target = data.get("regexTarget", "secret")
        self.all = data.get("condition", "OR").upper() in ("AND", "&&")
        self.paths = bool(data.get("paths") or data.get("commits"))

    def allows(self, secret: str, match: str, line: str) -> bool:
        target = {"match": match, "line": line}.get(self.target, secret)
        regex = any(item.search(target) for item in self.regexes)
        word = any(item in secret.lower() for item in self.words)
        if not self.all:
            return regex or word
        return not self.paths and (regex or not self.regexes) and (word or not self.words)


def entropy(value: str) -> float:
    return -sum(n / len(value) * log2(n / len(value)) for n in Counter(value).values()) if value else 0.0


def line_of(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]


def gitleaks(path: str) -> Callable[[str], Spans]:
    import re2

    data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    options = re2.Options()
    options.max_mem = 1 << 28
    options.log_errors = False

    def compiled(regex: str) -> Any:
        return re2.compile(regex, options)

    rules = [Rule(one, compiled) for one in data["rules"] if "regex" in one and "path" not in one]
    everywhere = Allowed(data.get("allowlist", {}), compiled)

    def scan(text: str) -> Spans:
        lower = text.lower()
        results = [(rule.name, *one) for rule in rules for one in rule.scan(text, lower)]
        return [
            (start, end)
            for name, secret, start, end in results
            if not everywhere.allows(secret, secret, secret)
            # Where a named rule has the same, the generic one is silent.
            and not ("generic" in name and any(secret in other and "generic" not in one for one, other, *_ in results))
        ]

    return scan


def main() -> None:
    scan = detect_secrets() if sys.argv[1] == "detect-secrets" else gitleaks(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(scan(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
