"""Which registry values hold the name of a user or of a host.

A value's own name does not tell: `DisplayName` is the name of a program or a service, and `Owner` is whatever a program
wrote. Windows and some programs store names in known places, so a value is anonymized by its key and name together.
Addresses, SIDs, e-mail addresses, profile folders and the names of this machine are recognised wherever they occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from portico_services.system.anonymizer import Kind, in_field
from portico_services.system.results import RegistryValue

# The end of a key's path, and the names of its values for each kind.
_PLACES: tuple[tuple[str, dict[Kind, str]], ...] = (
    (r"Control\\ComputerName\\[^\\]+", {"host": r"ComputerName"}),
    (
        r"Services\\Tcpip6?\\Parameters(?:\\Interfaces\\[^\\]+|\\DNSRegisteredAdapters\\[^\\]+)?",
        {"host": r"(?:NV |Dhcp)?(?:Hostname|Domain)|PrimaryDomainName|AdapterDomainName|SearchList"},
    ),
    (
        r"Windows NT\\CurrentVersion\\Winlogon",
        {
            "user": r"(?:Alt)?DefaultUserName|LastUsedUsername",
            "host": r"(?:Alt)?DefaultDomainName|CachePrimaryDomain",
        },
    ),
    (
        r"Authentication\\LogonUI(?:\\SessionData\\[^\\]+)?",
        {"user": r"(?:LastLoggedOn|LoggedOn)(?:User(?:name)?|SAMUser|DisplayName)"},
    ),
    (r"Windows NT\\CurrentVersion", {"user": r"RegisteredOwner|RegisteredOrganization"}),
    (
        r"Volatile Environment(?:\\[^\\]+)?",
        {"user": r"USERNAME", "host": r"USERDOMAIN(?:_ROAMINGPROFILE)?|USERDNSDOMAIN|LOGONSERVER|CLIENTNAME"},
    ),
    (r"CurrentVersion\\Explorer", {"user": r"Logon User Name"}),
    (r"Common\\UserInfo", {"user": r"UserName|Company"}),
    (r"Microsoft\\OneDrive(?:\\Accounts\\[^\\]+)?", {"user": r"UserNameCollection|UserName|DisplayName"}),
    (r"Terminal Server Client\\Servers\\[^\\]+", {"user": r"UsernameHint"}),
    (r"Terminal Server Client\\Default", {"host": r"MRU\d+"}),
    # PuTTY, WinSCP and programs like them.
    (r"Sessions\\[^\\]+", {"user": r"UserName", "host": r"HostName|ProxyHost"}),
    (r"sysctl\\kernel", {"host": r"hostname|domainname"}),
)
_RULES = [
    (re.compile(rf"(?:.*\\)?{key}", re.IGNORECASE | re.DOTALL), kind, re.compile(values, re.IGNORECASE))
    for key, kinds in _PLACES
    for kind, values in kinds.items()
]


def names_in_values(path: str, values: Iterable[RegistryValue]) -> Iterator[tuple[Kind, str]]:
    """Yield the names of users and hosts that the values of a key hold, each with its kind."""
    rules = [(kind, names) for key, kind, names in _RULES if key.fullmatch(path)]
    for value in values if rules else ():
        for kind, names in rules:
            if names.fullmatch(value.name):
                for text in _texts(value.value):
                    yield from in_field(kind, text)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from re.split(r"[,;]", value)
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
