"""What is kept from everybody, even below an allowed root: keys, passwords, and the insides of processes.

A name is looked up rather than matched, so that a walk over a hundred thousand files hardly notices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

_FOLDERS = """
    .aws .azure .bitcoin .electrum .gnupg .kube .mozilla .password-store .ssh .thunderbird
    gcloud keychains keyrings private_keys
"""
# The last line are hives: one for each user of Windows, and the two that hold everybody's passwords.
_NAMES = """
    .bash_history .env .git-credentials .htpasswd .my.cnf .mysql_history .netrc .npmrc .pgpass .psql_history .pypirc
    .python_history .rediscli_history .vault-token .zsh_history _netrc authorized_keys credentials.json
    id_dsa id_ecdsa id_ed25519 id_rsa key3.db key4.db krb5.keytab logins.json secrets.json secrets.yaml secrets.yml
    ntuser.dat ntuser.dat.log1 ntuser.dat.log2 usrclass.dat sam sam.log1 security security.log1 default
"""
FOLDERS = frozenset(_FOLDERS.split())
NAMES = frozenset(_NAMES.split()) | {"login data", "web data"}
# Only hives are called so in this one folder; elsewhere these are ordinary words.
_ONLY_IN_CONFIG = frozenset({"sam", "security", "default", "sam.log1", "security.log1"})
SUFFIXES = (".jks", ".kdb", ".kdbx", ".key", ".keystore", ".keytab", ".ovpn", ".p12", ".pem", ".pfx", ".ppk")
PATHS = re.compile(
    r"/(?:"
    r"proc/(?:[^/]+/(?:task/[^/]+/)?(?:environ|mem|maps|smaps|auxv|root|cwd|exe|fd|fdinfo|map_files|stack|syscall)(?:/|$)"
    r"|kcore|kmem|keys|key-users|kallsyms|vmcore)"
    r"|etc/(?:shadow|gshadow|sudoers|krb5\.keytab|security/opasswd|ssh/ssh_host_|ssl/private|wireguard|ppp/.*-secrets"
    r"|NetworkManager/system-connections)"
    r"|var/(?:lib/(?:sss|private|docker|containerd|NetworkManager)|backups/(?:shadow|gshadow)|spool/cron)"
    r"|run/(?:secrets|credentials|user/[^/]+/keyring)"
    r"|dev/|sys/(?:kernel/(?:debug|tracing|security)|firmware)"
    r"|private/(?:etc/master\.passwd|var/db/(?:dslocal|shadow))"
    r")"
)


_TOPS = ("/proc", "/etc", "/var", "/run", "/dev", "/sys", "/private")


class Denials:
    """The list, and what an operator adds to it: patterns such as `*.sqlite` or `/srv/payroll/*`."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        patterns = [pattern if "/" in pattern else f"*/{pattern}" for pattern in more]
        self._more = re.compile("|".join(map(translate, patterns)), re.IGNORECASE) if patterns else None

    def path(self, path: str) -> bool:
        """Whether this path, resolved, is kept from everybody."""
        parts = path.replace("\\", "/").split("/")
        folder = parts[-2] if len(parts) > 1 else ""
        inside = any(part.lower() in FOLDERS for part in parts)
        return inside or self.name(parts[-1], folder) or self.place(path)

    def name(self, name: str, folder: str) -> bool:
        """Whether a file or folder of this name is, whichever way leads to it."""
        low = name.lower()
        if low in NAMES:
            return low not in _ONLY_IN_CONFIG or folder.lower() == "config"
        return low in FOLDERS or low.endswith(SUFFIXES)

    def place(self, path: str) -> bool:
        """Whether it is because of where it lies."""
        return PATHS.match(path) is not None or (self._more is not None and self._more.match(path) is not None)

    def by_place(self, folder: str) -> bool:
        """Whether anything right in a folder may be denied because of where it lies; it mostly is not."""
        return self._more is not None or folder == "/" or folder.startswith(_TOPS)
