"""Secrets identified by the syntax around them: private keys, JWTs, credentials in URLs and headers, on command lines,
in cookies and in login files.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64, a2b_base64
from collections.abc import Iterator
from typing import NamedTuple

from portico.screening.entropy import is_fake_key, is_placeholder, is_random, is_uuid, shannon_entropy
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import lazy_pattern
from portico.screening.passwords import ValueStyle, is_password

# Private keys. The body is what may occur between the two markers, in a file or in a string literal: Base64, headers,
# escaped newlines, quotes. It ends at the next marker of any kind, so no text is read twice.
_PEM = lazy_pattern(r"-----BEGIN (?:[A-Z0-9 ]{0,40}+(?<=PRIVATE KEY)|PGP PRIVATE KEY BLOCK)-----")
_PEM_BODY = lazy_pattern(r"(?:[0-9A-Za-z+/=\s\\\"',.:;()<>@_#&$]|-(?!----)){0,20000}+")
_PEM_END = lazy_pattern(r"-----END [A-Z0-9 ]{0,40}-----")
_PEM_LINE = lazy_pattern(r"[0-9A-Za-z+/]{24,}+")
_PUTTY = lazy_pattern(r"Private-Lines: [0-9]{1,3}\s{1,4}((?:[0-9A-Za-z+/=]{1,80}+(?:\s{1,4}+|\Z)){1,200}+)")


def find_private_keys(text: str) -> Iterator[Finding]:
    at = 0
    while (at := text.find("-----BEGIN ", at)) >= 0:
        begin = _PEM.match(text, at)
        if begin is None:
            at += 11
            continue
        body = _PEM_BODY.match(text, begin.end())
        at = body.end() if body is not None else begin.end()
        # Documentation often shows only the markers, or dots between them.
        if body is None or not _has_key(body[0]):
            continue
        end = _PEM_END.match(text, at)
        at = end.end() if end is not None else at
        yield Finding("secret", "private_key", begin.start(), at, 0.99)
    if "Private-Lines: " in text:
        for match in _PUTTY.finditer(text):
            yield Finding("secret", "private_key", *match.span(1), 0.97)


# Password hashes as in /etc/shadow and .htpasswd: modular crypt (md5, Apache's md5, bcrypt, sha256, sha512, yescrypt,
# scrypt, argon2, sha1) and LDAP's {SHA} and {SSHA}. The scheme determines the length.
_CRYPT_SALT = r"(?:rounds=[0-9]{1,9}\$)?[./0-9A-Za-z]{1,16}+\$"
_CRYPT = lazy_pattern(
    r"\$(?:"
    rf"(?:1|apr1)\${_CRYPT_SALT}[./0-9A-Za-z]{{22}}"
    r"|2[abxy]?\$[0-3][0-9]\$[./0-9A-Za-z]{53}"
    rf"|5\${_CRYPT_SALT}[./0-9A-Za-z]{{43}}"
    rf"|6\${_CRYPT_SALT}[./0-9A-Za-z]{{86}}"
    r"|g?y\$[./0-9A-Za-z]{1,16}+\$[./0-9A-Za-z]{1,86}+\$[./0-9A-Za-z]{43}"
    r"|7\$[./0-9A-Za-z]{11,97}+\$[./0-9A-Za-z]{43}"
    r"|argon2(?:id|i|d)\$(?:v=[0-9]{1,3}\$)?m=[0-9]{1,9},t=[0-9]{1,5},p=[0-9]{1,5}\$[0-9A-Za-z+/]{8,88}+\$"
    r"[0-9A-Za-z+/]{16,172}+"
    r"|sha1\$[0-9]{1,9}\$[./0-9A-Za-z]{1,64}+\$[./0-9A-Za-z]{28}"
    r"|pbkdf2-sha(?:1|256|512)\$[0-9]{1,9}\$[./0-9A-Za-z]{8,88}+\$[./0-9A-Za-z]{27,86}+"
    r")(?![./0-9A-Za-z$])"
    r"|\{(?:SHA|SSHA|SMD5|MD5|SHA(?:256|384|512)|SSHA(?:256|384|512))\}[0-9A-Za-z+/]{22,172}+={0,2}"
)


def password_hashes(text: str) -> Iterator[Finding]:
    for match in _CRYPT.finditer(text):
        if not is_fake_key(match[0].rpartition("$")[2].rpartition("}")[2]):
            yield Finding("secret", "password_hash", match.start(), match.end(), 0.95)


# Okta's API tokens are recognizable only by their first two characters and their length, so a keyword must be near.
_OKTA = lazy_pattern(r"(?<![0-9A-Za-z_\-])00[0-9A-Za-z_\-]{40}(?![0-9A-Za-z_\-])")
_OKTA_REACH = 200


def okta_tokens(text: str, lower: str) -> Iterator[Finding]:
    for match in _OKTA.finditer(text):
        context = lower[max(0, match.start() - _OKTA_REACH) : match.end() + _OKTA_REACH]
        if ("okta" in context or "ssws" in context) and is_random(match[0], named=True):
            yield Finding("secret", "okta_token", match.start(), match.end(), 0.93)


# The same again in Base64, as Kubernetes stores it.
_WRAPPED = lazy_pattern(r"LS0tLS1CRUdJTi[0-9A-Za-z+/]{60,20000}+={0,2}")


def find_base64_keys(text: str) -> Iterator[Finding]:
    for match in _WRAPPED.finditer(text):
        if "PRIVATE KEY" in _decode_basic(match[0][:120]):
            yield Finding("secret", "private_key", match.start(), match.end(), 0.97)


def _has_key(body: str) -> bool:
    """Return whether a body contains key material: a mention has nothing after it, and an example has dots or repeated
    letters.
    """
    return any(shannon_entropy(line[0][:64]) > 3.2 and not is_fake_key(line[0]) for line in _PEM_LINE.finditer(body))


_JWT = lazy_pattern(
    r"(?<![0-9A-Za-z_\-])(eyJ[0-9A-Za-z_\-]{10,1500}+)\.([0-9A-Za-z_\-]{0,8000}+)\.([0-9A-Za-z_\-]{16,1500}+)"
    r"(?:\.[0-9A-Za-z_\-]{4,8000}+\.[0-9A-Za-z_\-]{16,64}+)?"
)


def find_jwts(text: str) -> Iterator[Finding]:
    """Yield JSON Web Tokens, recognized by their header."""
    for match in _JWT.finditer(text):
        header = _decode_basic(match[1].replace("-", "+").replace("_", "/"))
        if header.startswith('{"') and ('"alg"' in header or '"typ"' in header or '"enc"' in header):
            yield Finding("secret", "jwt", match.start(), match.end(), 0.97)


# User and password before the @ of a URL. A password may contain an @, so the last one before the host counts.
_USERINFO = lazy_pattern(
    r"://(?P<user>[^\s:/?#@\"'<>`\\]{0,128}+):(?P<password>[^\s/\"'<>`\\]{1,256})@(?P<host>[0-9A-Za-z$\[{_%.\-]{1,255}+)"
    r"|://(?P<token>[0-9A-Za-z_\-]{20,255}+)@(?=[0-9A-Za-z])"
)
_LOCAL = "localhost 127.0.0.1 0.0.0.0 db postgres mysql redis rabbitmq mongo mongodb host hostname"
_LOCAL_HOSTS = frozenset(_LOCAL.split())
_EXAMPLES = "password pass passwd pwd pw secret token mypassword mypass yourpassword changeme"
_PLACEHOLDER_PASSWORDS = frozenset(_EXAMPLES.split())
_DATABASE = lazy_pattern(
    r"(?:postgres|mysql|mariadb|mongodb|redis|amqp|mssql|oracle|sqlserver|cockroach|clickhouse|jdbc|neo4j|bolt|ldap)"
)


def find_url_passwords(text: str) -> Iterator[Finding]:
    for match in _USERINFO.finditer(text):
        if match["token"] is not None:
            if is_random(match["token"], 20):
                yield Finding("secret", "url_password", *match.span("token"), 0.9)
        elif not _is_default_credential(*match.group("user", "password", "host")):
            scheme = text[max(0, match.start() - 24) : match.start()].lower()
            name = "database_url" if _DATABASE.search(scheme) else "url_password"
            yield Finding("secret", name, *match.span("password"), 0.93)


def _is_default_credential(user: str, password: str, host: str) -> bool:
    """Return whether credentials are examples, variables or container defaults: `postgres:postgres@localhost`."""
    low = password.lower()
    if is_placeholder(password) or low in _PLACEHOLDER_PASSWORDS or len(set(low)) < 3:
        return True
    if low == user.lower():
        return host.partition(":")[0].lower() in _LOCAL_HOSTS
    # `host:port`, `:tag@sha256`
    return not user and password.isdigit()


_BASIC = lazy_pattern(r"[Bb]asic\s{1,3}+([0-9A-Za-z+/]{8,400}+={0,2}+)(?![0-9A-Za-z+/=])")
_BEARER = lazy_pattern(r"[BbTt](?:earer|oken)\s{1,3}[\"'`]?([0-9A-Za-z_\-.~+/=|]{16,2000}+)")
_SCHEME = lazy_pattern(
    r"authorization[\"']?[ \t]{0,3}+[:=,][ \t]{0,3}+[\"'`]{0,2}+[a-z\-]{2,20}+[ \t](?:token=)?[\"'`]?"
)
_CREDENTIAL = lazy_pattern(r"[0-9A-Za-z_\-.~+/=|]{16,2000}+")
_AUTHS = lazy_pattern(r"\"auth\"\s{0,4}+:\s{0,4}+\"([0-9A-Za-z+/]{8,400}+={0,2}+)\"")


def find_header_credentials(text: str, lower: str) -> Iterator[Finding]:
    """Yield `Authorization: Basic …` and `Bearer …`, also in container configuration."""
    if "basic " in lower or '"auth"' in lower:
        for match in (*_BASIC.finditer(text), *_AUTHS.finditer(text)):
            user, colon, password = _decode_basic(match[1]).partition(":")
            if (
                colon
                and user.isprintable()
                and password.isprintable()
                and len(password) > 2
                and not is_fake_key(password)
            ):
                yield Finding("secret", "basic_auth", *match.span(1), 0.95)
    if "bearer" in lower or "token " in lower:
        for match in _BEARER.finditer(text):
            value = match[1].rstrip(".,")
            if is_random(value) or is_uuid(value):
                yield Finding("secret", "bearer_token", match.start(1), match.start(1) + len(value), 0.9)

    if "authorization" in lower:
        for scheme in _SCHEME.finditer(lower):
            credential = _CREDENTIAL.match(text, scheme.end())
            if credential is not None and (is_random(credential[0], named=True) or is_uuid(credential[0])):
                yield Finding("secret", "credential", *credential.span(), 0.9)


def _decode_basic(value: str) -> str:
    try:
        # Cut to whole groups: JWTs omit the padding, and the beginning is enough to recognize the content.
        return a2b_base64(value[: len(value) // 4 * 4] if "=" not in value else value).decode("utf-8", "replace")
    except NotBase64:
        return ""


# Command lines, logins and cookies

_VALUE = r"(?:(?P<quote>[\"'])(?P<quoted>[^\"'\r\n]{3,256}+)(?P=quote)|(?P<bare>[^\s\"'<>|;&]{3,256}+))"


class CommandSyntax(NamedTuple):
    """How a program takes a password. `sign` must be in the lowercase text; `line` matches the value."""

    keyword: str
    line: re.Pattern[str]


def _syntax(sign: str, line: str, flags: int = 0) -> CommandSyntax:
    return CommandSyntax(sign, lazy_pattern(line.replace("VALUE", _VALUE), flags))


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
_FLAG = lazy_pattern(
    r"-(?<![\w\-]-)-?(?:[A-Za-z][\w\-]{0,30}?)?"
    r"(?:passwor[dt]|passwd|passphrase|pass|pwd|token|secret|api-?key|access-?key|auth-?key)(?P<rest>[\w\-]{0,16}+)"
    rf"[ \t]{{1,4}}(?![\-=]){_VALUE}"
)
_LOGIN = lazy_pattern(
    r"(?:login|creds?|credentials|zugangsdaten|identifiants)(?!\w)[ \t:=\-]{1,4}(?:are|is)?[ \t]{0,2}"
)
_PAIRED = lazy_pattern(
    r"[\"'`]?(?P<user>[\w.@+\-]{2,60}+)[\"'`]?[ \t]{0,2}(?:/|:|\||,|and)[ \t]{0,2}"
    r"[\"'`]?(?P<bare>[^\s\"'`<>(){}\[\];]{6,128}+)(?![(\[{=])"
)
_COOKIES = lazy_pattern(r"cookie[\"']?[ \t]{0,3}[:=][ \t]{0,3}(?P<pairs>[^\r\n]{8,4000}+)")
_PAIR = lazy_pattern(
    r"(?i:[\w.\-]{0,40}?(?:sess|sid|auth|token|jwt|login|remember)[\w.\-]{0,30}+)=(?P<value>[^\s;,\"'\\]{16,2000}+)"
)


def find_command_line_secrets(text: str, lower: str) -> Iterator[Finding]:
    for syntax in _SYNTAXES:
        if syntax.keyword in lower:
            for match in syntax.line.finditer(text):
                yield from _password(match)
    if " -" in text or "--" in text:
        for match in _FLAG.finditer(text):
            # `--password-file PATH` and `--password-stdin` are the recommended ways, and name no secret.
            if "file" not in match["rest"] and "stdin" not in match["rest"]:
                yield from _password(match, "bare")
    if "login" in lower or "cred" in lower or "zugangsdaten" in lower:
        yield from _find_login_pairs(text, lower)
    if "cookie" in lower:
        yield from _find_session_cookies(text, lower)


def _password(match: re.Match[str], bare: ValueStyle = "line") -> Iterator[Finding]:
    group = "quoted" if match.groupdict().get("quoted") else "bare"
    if is_password(match[group], "quoted" if group == "quoted" else bare) or is_random(match[group], 16):
        yield Finding("secret", "password", *match.span(group), 0.85)


def _find_login_pairs(text: str, lower: str) -> Iterator[Finding]:
    """Yield the passwords in `login: name / password`, as written in messages."""
    for word in _LOGIN.finditer(lower):
        match = _PAIRED.match(text, word.end())
        if match is not None and is_password(match["bare"].rstrip(".,;)"), "prose"):
            yield Finding("secret", "password", *match.span("bare"), 0.75)


def _find_session_cookies(text: str, lower: str) -> Iterator[Finding]:
    for match in _COOKIES.finditer(lower):
        for pair in _PAIR.finditer(text, *match.span("pairs")):
            if is_random(pair["value"], 16) or is_uuid(pair["value"]):
                yield Finding("secret", "session_cookie", *pair.span("value"), 0.8)
