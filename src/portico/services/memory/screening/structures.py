"""Secrets known by their build: private keys, JSON web tokens, credentials in URLs and in headers."""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Iterator

from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.patterns import pattern
from portico.services.memory.screening.randomness import entropy, is_placeholder, is_random, is_uuid, stands_for

# Private keys. The body is what may stand between the two marks, in a file or in a string of some language: Base64,
# headers, written newlines, quotes. It ends at the next mark whatever that is, so no part of a text is read twice.
_PEM = pattern(r"-----BEGIN (?:[A-Z0-9 ]{0,40}+(?<=PRIVATE KEY)|PGP PRIVATE KEY BLOCK)-----")
_PEM_BODY = pattern(r"(?:[0-9A-Za-z+/=\s\\\"',.:;()<>@_#&$]|-(?!----)){0,20000}+")
_PEM_END = pattern(r"-----END [A-Z0-9 ]{0,40}-----")
_PEM_LINE = pattern(r"[0-9A-Za-z+/]{24,}+")
_PUTTY = pattern(r"Private-Lines: [0-9]{1,3}\s{1,4}((?:[0-9A-Za-z+/=]{1,80}+\s{1,4}+){1,200}+)")


def private_keys(text: str) -> Iterator[Finding]:
    at = 0
    while (at := text.find("-----BEGIN ", at)) >= 0:
        begin = _PEM.match(text, at)
        if begin is None:
            at += 11
            continue
        body = _PEM_BODY.match(text, begin.end())
        at = body.end() if body is not None else begin.end()
        if body is None or not _has_key(body[0]):
            continue
        end = _PEM_END.match(text, at)
        at = end.end() if end is not None else at
        yield Finding("secret", "private_key", begin.start(), at, 0.99)
    if "Private-Lines: " in text:
        for found in _PUTTY.finditer(text):
            yield Finding("secret", "private_key", *found.span(1), 0.97)


# The same once more in Base64, as clusters keep it.
_WRAPPED = pattern(r"LS0tLS1CRUdJTi[0-9A-Za-z+/]{60,20000}+={0,2}")


def wrapped_keys(text: str) -> Iterator[Finding]:
    for found in _WRAPPED.finditer(text):
        if "PRIVATE KEY" in _decoded(found[0][:120]):
            yield Finding("secret", "private_key", found.start(), found.end(), 0.97)


def _has_key(body: str) -> bool:
    """A mention of the mark has nothing behind it, and an example has dots or a repeated letter."""
    return any(entropy(line[0][:64]) > 3.2 and not stands_for(line[0]) for line in _PEM_LINE.finditer(body))


_JWT = pattern(
    r"(?<![0-9A-Za-z_\-])(eyJ[0-9A-Za-z_\-]{10,1500}+)\.([0-9A-Za-z_\-]{0,8000}+)\.([0-9A-Za-z_\-]{16,1500}+)"
    r"(?:\.[0-9A-Za-z_\-]{4,8000}+\.[0-9A-Za-z_\-]{16,64}+)?"
)


def web_tokens(text: str) -> Iterator[Finding]:
    """JSON web tokens: the first part says how it is signed."""
    for found in _JWT.finditer(text):
        header = _decoded(found[1].replace("-", "+").replace("_", "/"))
        if header.startswith('{"') and ('"alg"' in header or '"typ"' in header or '"enc"' in header):
            yield Finding("secret", "jwt", found.start(), found.end(), 0.97)


# Who and with what, before the @ of a URL. A password may have an @ of its own, so the last one before the host counts.
_USERINFO = pattern(
    r"://(?P<user>[^\s:/?#@\"'<>`\\]{0,128}+):(?P<password>[^\s/\"'<>`\\]{1,256})@(?P<host>[0-9A-Za-z$\[{_%.\-]{1,255}+)"
    r"|://(?P<token>[0-9A-Za-z_\-]{20,255}+)@(?=[0-9A-Za-z])"
)
_LOCAL = "localhost 127.0.0.1 0.0.0.0 db postgres mysql redis rabbitmq mongo mongodb host hostname"
_HERE = frozenset(_LOCAL.split())
_EXAMPLES = "password pass passwd pwd pw secret token mypassword mypass yourpassword changeme"
_STAND_INS = frozenset(_EXAMPLES.split())
_DATABASE = pattern(
    r"(?:postgres|mysql|mariadb|mongodb|redis|amqp|mssql|oracle|sqlserver|cockroach|clickhouse|jdbc|neo4j|bolt|ldap)"
)


def url_passwords(text: str) -> Iterator[Finding]:
    for found in _USERINFO.finditer(text):
        if found["token"] is not None:
            if is_random(found["token"], 20):
                yield Finding("secret", "url_password", *found.span("token"), 0.9)
        elif not _is_stand_in(*found.group("user", "password", "host")):
            scheme = text[max(0, found.start() - 24) : found.start()].lower()
            name = "database_url" if _DATABASE.search(scheme) else "url_password"
            yield Finding("secret", name, *found.span("password"), 0.93)


def _is_stand_in(user: str, password: str, host: str) -> bool:
    """Examples, variables, and the defaults that every container has: `postgres:postgres@localhost`."""
    low = password.lower()
    if is_placeholder(password) or low in _STAND_INS or len(set(low)) < 3:
        return True
    if low == user.lower():
        return host.partition(":")[0].lower() in _HERE
    # `host:port`, `:tag@sha256`
    return not user and password.isdigit()


_BASIC = pattern(r"[Bb]asic\s{1,3}+([0-9A-Za-z+/]{8,400}+={0,2}+)(?![0-9A-Za-z+/=])")
_BEARER = pattern(r"[BbTt](?:earer|oken)\s{1,3}[\"'`]?([0-9A-Za-z_\-.~+/=|]{16,2000}+)")
_SCHEME = pattern(r"authorization[\"']?[ \t]{0,3}+[:=,][ \t]{0,3}+[\"'`]{0,2}+[a-z\-]{2,20}+[ \t](?:token=)?[\"'`]?")
_CREDENTIAL = pattern(r"[0-9A-Za-z_\-.~+/=|]{16,2000}+")
_AUTHS = pattern(r"\"auth\"\s{0,4}+:\s{0,4}+\"([0-9A-Za-z+/]{8,400}+={0,2}+)\"")


def header_credentials(text: str, lower: str) -> Iterator[Finding]:
    """`Authorization: Basic …` and `Bearer …`, and the same in the configuration of containers."""
    if "basic " in lower or '"auth"' in lower:
        for found in (*_BASIC.finditer(text), *_AUTHS.finditer(text)):
            user, colon, password = _decoded(found[1]).partition(":")
            if (
                colon
                and user.isprintable()
                and password.isprintable()
                and len(password) > 2
                and not stands_for(password)
            ):
                yield Finding("secret", "basic_auth", *found.span(1), 0.95)
    if "bearer" in lower or "token " in lower:
        for found in _BEARER.finditer(text):
            value = found[1].rstrip(".,")
            if is_random(value) or is_uuid(value):
                yield Finding("secret", "bearer_token", found.start(1), found.start(1) + len(value), 0.9)

    if "authorization" in lower:
        for scheme in _SCHEME.finditer(lower):
            given = _CREDENTIAL.match(text, scheme.end())
            if given is not None and (is_random(given[0], named=True) or is_uuid(given[0])):
                yield Finding("secret", "credential", *given.span(), 0.9)


def _decoded(value: str) -> str:
    try:
        return a2b_base64(value[: len(value) // 4 * 4] if "=" not in value else value).decode("utf-8", "replace")
    except NotBase64:
        return ""
