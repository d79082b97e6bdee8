"""Which words name a person or a machine: by the field they stand in, by their form, by the words before them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

Kind = str
"""user, host, address, sid, mail, machine; and under `strict` mac, id, url."""

# The names of fields are those of Windows, journald, syslog, macOS, osquery and of our own results.
_FIELDS = {
    "user": r".*user_?name|.*account_?name|.*_user|user|logname|acct|owner|ruser|display_?name|.*principal_?name",
    "sid": r".*sid|user_?id|securityid",
    "host": r".*computer(?:_?name)?|.*host(?:_?name)?|.*workstation(?:_?name)?|.*domain(?:_?name)?|.*server_?name"
    r"|.*machine_?name",
    "address": r"(?:.*_)?ip|(?:source|destination|client|remote|local|src|dst)_?ip|.*address|.*_?addr",
    "mail": r".*e?mail",
    "machine": r".*machine_?id|.*serial(?:_?number)?|uuid",
}
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _FIELDS.items()]

# Accounts, domains and addresses that every machine has, and what is written where there is none.
_EVERYWHERE = """
    -, system, localsystem, local system, root, nobody, administrator, administrators, guest, guests, users, everyone,
    defaultaccount, daemon, bin, sys, localhost, localhost.localdomain, workgroup, builtin, n/a, null, none, unknown,
    true, false, yes, no, nt authority, nt service, network service, local service, anonymous logon, anonymous,
    window manager, font driver host, dwm-1, dwm-2, dwm-3, umfd-0, umfd-1, 127.0.0.1, ::1, 0.0.0.0, ::, 255.255.255.255,
    adm, apache, backup, ftp, games, gdm, git, lp, mail, man, messagebus, mysql, named, news, nginx, ntp, operator,
    polkitd, postfix, postgres, proxy, rpc, sshd, sync, syslog, uucp, www-data
"""
WELL_KNOWN = frozenset(name.strip() for name in _EVERYWHERE.split(","))
_WELL_KNOWN_SID = re.compile(r"S-1-(?:[0-4]-\d+|5-(?:\d{1,2}|32-\d{3}|80-0|90-0-\d+|96-0-\d+)|16-\d+)", re.IGNORECASE)
_WORDS = (
    "and at by for from id in is logged login name not of on or password public shared the to user was with invalid"
)
_NO_NAME = frozenset(_WORDS.split())


# Forms, each with something that a text must contain to have any: most texts have none.
FORMS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("sid", "S-1-", re.compile(r"\bS-1-\d{1,3}(?:-\d{1,10}){1,15}\b")),
    (
        "mail",
        "@",
        # Not the units of systemd, which look the same: `getty@tty1.service`.
        re.compile(
            r"(?<![\w.%+-])[A-Za-z0-9._%+-]{1,64}@(?![\w.-]*\.(?:service|scope|slice|socket|target|timer|mount|path)\b)"
            r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"
        ),
    ),
    ("address", ".", re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")),
    (
        "address",
        ":",
        re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?<=:)(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"),
    ),
)
# What is private only to the strict: hardware addresses, identifiers, and where a URL leads.
STRICT_FORMS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("mac", "", re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])")),
    ("id", "-", re.compile(r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b")),
    ("id", "", re.compile(r"\b[0-9a-f]{32}\b")),
    ("url", "://", re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>]{1,2000}")),
)
# A name is given away by what stands before it, and a folder may be called after its owner.
_NAME = r"[\"']?([A-Za-z_][\w.$-]{0,63})"
_SPOKEN: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("user",), re.compile(rf"\b[Uu]ser(?:[Nn]ame)?(?:=|: ){_NAME}|\b(?:for|invalid|illegal) user {_NAME}")),
    (("logname=", "acct=", "uid="), re.compile(rf"\b(?:logname|acct|uid)={_NAME}")),
    ((" for ",), re.compile(rf" for {_NAME} (?:from|by) ")),
    (("home", "sers"), re.compile(rf"[/\\](?:home|[Uu]sers)[/\\]{_NAME}")),
)
_HOST = re.compile(r"(?:\brhost=|\bfrom (?:\S{1,64} \()?)([A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,63}){1,8})")


# A line of a text log has its host behind the time.
_LINE = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,32}) ([A-Za-z][\w.-]{1,252}) \S{1,100}:",
    re.M,
)
_LETTER = re.compile(r"[^\W\d_]|::|\d\.\d")

_kinds: dict[str, Kind | None] = {}


def kind_of(field: str) -> Kind | None:
    """What a field of this name names. Such names are few, so each is looked at once."""
    if field not in _kinds:
        if len(_kinds) > 10_000:
            _kinds.clear()
        _kinds[field] = next((kind for kind, names in _KINDS if names.fullmatch(field)), None)
    return _kinds[field]


def in_field(kind: Kind, value: str) -> Iterator[tuple[Kind, str]]:
    """The names in a field: `DOMAIN\\user` and `user@domain` are two, and a host may come with its domain."""
    value = value.strip()
    if not 1 < len(value) <= 256 or value.startswith("%%") or not _LETTER.search(value):
        return
    if kind == "sid":
        if FORMS[0][2].fullmatch(value):
            yield kind, value
    elif kind == "address":
        bare = value.strip("[]").partition("%")[0]
        if is_address(bare):
            yield kind, bare
    elif kind == "user":
        domain, _, name = value.rpartition("\\")
        yield from in_field("host", domain)
        name, _, realm = name.partition("@")
        yield from in_field("host", realm)
        # A machine has an account, too, and its name ends so.
        yield ("host", name[:-1]) if name.endswith("$") else (kind, name)
    elif kind == "host" and is_address(value.strip("\\")):
        yield "address", value.strip("\\")
    elif kind == "host":
        whole = value.strip("\\").removesuffix("$")
        yield kind, whole
        first, _, domain = whole.partition(".")
        # Neither "com" nor "co" of "co.uk" is a name.
        if domain and len(first) > 2:
            yield kind, first
        if "." in domain:
            yield from in_field(kind, domain)
    else:
        yield kind, value


def in_text(text: str) -> Iterator[tuple[Kind, str]]:
    """Names that a text gives away by the words around them."""
    for signs, pattern in _SPOKEN:
        if any(sign in text for sign in signs):
            for found in pattern.finditer(text):
                name = next(filter(None, found.groups())).rstrip(".-$")
                if name.lower() not in _NO_NAME:
                    yield "user", name
    if text.count(":") > 2:
        for found in _LINE.finditer(text):
            yield from in_field("host", found[1])
    if "rhost=" in text or "from " in text:
        for found in _HOST.finditer(text):
            yield from in_field("host", found[1].rstrip("."))


def is_well_known(name: str) -> bool:
    """Whether it is on every machine, and so says nothing about this one."""
    return name.casefold() in WELL_KNOWN or _WELL_KNOWN_SID.fullmatch(name) is not None


def looks_like_address(text: str) -> bool:
    """Whether a text that no field calls an address is one: `a::b` could be, but is rather C++."""
    return is_address(text) and any(character.isdigit() for character in text)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
