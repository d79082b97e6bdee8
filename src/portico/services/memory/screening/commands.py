"""Secrets given to programs: on command lines, in cookies, in files of logins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.passwords import Writing, is_password
from portico.services.memory.screening.patterns import pattern
from portico.services.memory.screening.randomness import is_random, is_uuid

_VALUE = r"(?:(?P<quote>[\"'])(?P<quoted>[^\"'\r\n]{3,256}+)(?P=quote)|(?P<bare>[^\s\"'<>|;&]{3,256}+))"


class PasswordSyntax(NamedTuple):
    """How a program is given a password. `sign` must be in the lowered text; `line` matches the value."""

    sign: str
    line: re.Pattern[str]


def _syntax(sign: str, line: str, flags: int = 0) -> PasswordSyntax:
    return PasswordSyntax(sign, pattern(line.replace("VALUE", _VALUE), flags))


_SYNTAXES = (
    _syntax("curl", r"curl\b[^\r\n]{0,200}?\s(?:-u|--user)[ =]{0,2}[\"']?[\w.@\-]{1,80}+:(?P<bare>[^\s\"']{3,256}+)"),
    _syntax("sshpass", r"sshpass\s{1,3}-p\s{0,3}VALUE"),
    _syntax("mysql", r"mysql(?:dump|admin|import)?\b[^\r\n]{0,120}?\s-p(?=\S)VALUE"),
    _syntax("redis-cli", r"redis-cli\b[^\r\n]{0,120}?\s-a\s{1,3}VALUE"),
    _syntax("requirepass", r"requirepass\s{1,3}VALUE"),
    _syntax("docker login", r"docker login\b[^\r\n]{0,160}?\s-p\s{1,3}VALUE"),
    _syntax("podman login", r"podman login\b[^\r\n]{0,160}?\s-p\s{1,3}VALUE"),
    _syntax("machine ", r"machine\s{1,4}+\S{1,120}+\s{1,8}+login\s{1,4}+\S{1,120}+\s{1,8}+password\s{1,4}+VALUE"),
    _syntax(
        "identified", r"identified\s{1,4}+(?:with\s{1,4}+\w{1,40}+\s{1,4}+)?by\s{1,4}+(?=[\"'])VALUE", re.IGNORECASE
    ),
    _syntax("securestring", r"ConvertTo-SecureString\s{1,3}(?:-String\s{1,3})?VALUE", re.IGNORECASE),
    _syntax(" -u", r"\s-u[ =]?[\w.@\-]{1,60}+\s{1,3}-p[ =]?VALUE", re.IGNORECASE),
    _syntax("--auth", r"--auth[ =][\"']?[\w.@\-]{1,80}+:(?P<bare>[^\s\"']{3,256}+)"),
    _syntax(
        "echo ",
        r"echo\s{1,3}+[\"']?(?:[\w.\-]{1,40}+:)?(?P<bare>[^\s\"'|:]{4,200}+)[\"']?"
        r"\s{0,3}+\|\s{0,3}+(?:sudo -S|passwd|chpasswd|\w{1,12} login)",
    ),
    _syntax("net user", r"net user\s{1,3}[\w.\-]{1,40}+\s{1,3}(?P<bare>[^\s/]{4,128}+)\s{1,3}/add", re.IGNORECASE),
    # ~/.pgpass
    _syntax(":5432:", r"^[\w.\-]{1,120}+:5432:[\w*\-]{1,60}+:[\w\-]{1,60}+:(?P<bare>[^\s:]{4,200}+)$", re.MULTILINE),
)
_FLAG = pattern(
    r"-(?<![\w\-]-)-?(?:[A-Za-z][\w\-]{0,30}?)?"
    r"(?:passwor[dt]|passwd|passphrase|pass|pwd|token|secret|api-?key|access-?key|auth-?key)(?P<rest>[\w\-]{0,16}+)"
    rf"[ \t]{{1,4}}(?![\-=]){_VALUE}"
)
_LOGIN = pattern(r"(?:login|creds?|credentials|zugangsdaten|identifiants)(?!\w)[ \t:=\-]{1,4}(?:are|is)?[ \t]{0,2}")
_PAIRED = pattern(
    r"[\"'`]?(?P<user>[\w.@+\-]{2,60}+)[\"'`]?[ \t]{0,2}(?:/|:|\||,|and)[ \t]{0,2}"
    r"[\"'`]?(?P<bare>[^\s\"'`<>(){}\[\];]{6,128}+)(?![(\[{=])"
)
_COOKIES = pattern(r"cookie[\"']?[ \t]{0,3}[:=][ \t]{0,3}(?P<pairs>[^\r\n]{8,4000}+)")
_PAIR = pattern(
    r"(?i:[\w.\-]{0,40}?(?:sess|sid|auth|token|jwt|login|remember)[\w.\-]{0,30}+)=(?P<value>[^\s;,\"'\\]{16,2000}+)"
)


def command_secrets(text: str, lower: str) -> Iterator[Finding]:
    for syntax in _SYNTAXES:
        if syntax.sign in lower:
            for found in syntax.line.finditer(text):
                yield from _password(found)
    if " -" in text or "--" in text:
        for found in _FLAG.finditer(text):
            if "file" not in found["rest"] and "stdin" not in found["rest"]:
                yield from _password(found, "bare")
    if "login" in lower or "cred" in lower or "zugangsdaten" in lower:
        yield from _logins(text, lower)
    if "cookie" in lower:
        yield from _cookies(text, lower)


def _password(found: re.Match[str], bare: Writing = "line") -> Iterator[Finding]:
    group = "quoted" if found.groupdict().get("quoted") else "bare"
    if is_password(found[group], "quoted" if group == "quoted" else bare) or is_random(found[group], 16):
        yield Finding("secret", "password", *found.span(group), 0.85)


def _logins(text: str, lower: str) -> Iterator[Finding]:
    """The passwords in `login: name / password`, as people write it to each other."""
    for word in _LOGIN.finditer(lower):
        found = _PAIRED.match(text, word.end())
        if found is not None and is_password(found["bare"].rstrip(".,;)"), "prose"):
            yield Finding("secret", "password", *found.span("bare"), 0.75)


def _cookies(text: str, lower: str) -> Iterator[Finding]:
    for found in _COOKIES.finditer(lower):
        for pair in _PAIR.finditer(text, *found.span("pairs")):
            if is_random(pair["value"], 16) or is_uuid(pair["value"]):
                yield Finding("secret", "session_cookie", *pair.span("value"), 0.8)
