"""The repository that a folder is in: the project by its git remote, and the branch.

Read from the repository's own files, because it is asked at every start: starting git three times would take longer
than everything else together. A worktree is followed to the repository it belongs to.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

LONGEST_FILE = 256 * 1024
_SCP = re.compile(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^@/]*@)?([^/:]*)(?::\d+)?/(.+)", re.IGNORECASE)
_SECTION = re.compile(r'\s*\[\s*remote\s+"([^"]*)"\s*\]')
_ADDRESS = re.compile(r"\s*url\s*=\s*(.*?)\s*")


class Where(Struct, frozen=True):
    project: str
    branch: str | None = None
    root: str | None = None


def look(folder: str | os.PathLike[str] | None = None) -> Where:
    """The repository that a folder is in; the folder itself where there is none."""
    here = (Path(folder) if folder is not None else Path.cwd()).resolve()
    for root in (here, *here.parents):
        inside = _inside(root)
        if inside is not None:
            remote = _remote(inside)
            return Where(normalised(remote) if remote else f"folder/{root.name}", _branch(inside), str(root))
    return Where(f"folder/{here.name}")


def branch(root: str | None) -> str | None:
    """The branch that is checked out at the moment: people change it while a server runs."""
    inside = None if root is None else _inside(Path(root))
    return None if inside is None else _branch(inside)


def shared_directory(root: str | os.PathLike[str]) -> Path | None:
    """Where git keeps what all working trees of a repository have in common."""
    inside = _inside(Path(root))
    return None if inside is None else _shared(inside)


def is_path(remote: str) -> bool:
    """Whether an address is a place on this machine, written without a scheme."""
    return "://" not in remote and _SCP.fullmatch(remote) is None


def within(path: str, root: str | None) -> str:
    """As memories name a file: from the root of its repository, with slashes. What is elsewhere is named in full."""
    if root is not None and os.path.isabs(path):
        near = os.path.relpath(path, root)
        path = path if near.startswith("..") else near
    return path.replace(os.sep, "/")


def normalised(remote: str) -> str:
    """`host/owner/name`, however the remote is written, and without a user name."""
    remote = remote.strip()
    found = _URL.fullmatch(remote) or (_SCP.fullmatch(remote) if "://" not in remote else None)
    if found is None:
        return f"folder/{Path(remote).name.removesuffix('.git')}"
    host, path = found[1].lower(), found[2].strip("/").removesuffix(".git")
    return f"{host}/{path}" if host else f"folder/{Path(path).name}"


def _inside(root: Path) -> Path | None:
    """Where git keeps its things for this working tree."""
    inside = root / ".git"
    if inside.is_dir():
        return inside
    said = _text(inside)
    if said is None or not said.startswith("gitdir:"):
        return None
    elsewhere = root / said.removeprefix("gitdir:").strip()
    return elsewhere if elsewhere.is_dir() else None


def _shared(inside: Path) -> Path:
    shared = (_text(inside / "commondir") or "").strip()
    return inside / shared if shared else inside


def _remote(inside: Path) -> str | None:
    """The address of `origin`, or of the first remote."""
    found: dict[str, str] = {}
    section = None
    for line in (_text(_shared(inside) / "config") or "").splitlines():
        if line.lstrip().startswith("["):
            opened = _SECTION.match(line)
            section = opened[1] if opened else None
        elif section is not None and (address := _ADDRESS.fullmatch(line)):
            found.setdefault(section, address[1])
    return found.get("origin") or next(iter(found.values()), None)


def _branch(inside: Path) -> str | None:
    head = (_text(inside / "HEAD") or "").strip()
    return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None


def _text(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_FILE)
    except OSError:
        return None
