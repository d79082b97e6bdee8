"""What one installation keeps for itself: its key, and the names that it is known by."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FIRST_PERSON, _NOBODY = 1000, 65_534


def key(folder: Path | None) -> bytes:
    """The key of this installation, made when it is first asked for. Without a folder it lasts for this process."""
    if folder is None:
        return os.urandom(32)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "system.key"
    fd, draft = tempfile.mkstemp(dir=folder)
    try:
        with open(fd, "wb") as file:
            file.write(os.urandom(32))
        # A link to a whole file is there at once or not at all: another process never reads half a key.
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:
        os.replace(draft, path)  # a file system without links
    finally:
        Path(draft).unlink(missing_ok=True)
    found = path.read_bytes()
    if len(found) != 32:
        raise ValueError(f"{path} is no key: it should have 32 bytes")
    return found


def names() -> Iterator[tuple[str, str]]:
    """The names of this machine and of the people who have an account on it."""
    yield "host", socket.gethostname()
    try:
        import pwd  # not on Windows
    except ImportError:
        yield "user", os.environ.get("USERNAME", "")
        return
    for account in pwd.getpwall():
        if _FIRST_PERSON <= account.pw_uid < _NOBODY:
            yield "user", account.pw_name
