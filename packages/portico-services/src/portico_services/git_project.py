"""The project that a folder belongs to: the repository it is in by its git remote, or else the folder by its path.

Read from the repository's own files, because it is asked at every start: starting git three times would take longer
than everything else together. A worktree is followed to the repository it belongs to.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec import Struct

LONGEST_FILE = 256 * 1024
BY_PATH = "path/"
LONGEST_NAME = 300
# Of a path, what would end a condition of a filter or cannot be stored.
_UNFIT = re.compile(r'[\s,"%\x00-\x1f\ud800-\udfff]')
_SCP = re.compile(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^@/]*@)?([^/:]*)(?::\d+)?/(.+)", re.IGNORECASE)
# Hosts to which `Owner/Name` and `owner/name` are one, and what they are called where only that port is open.
_CASELESS = ("github.com/", "gitlab.com/", "bitbucket.org/", "codeberg.org/", "dev.azure.com/")
_ALSO_CALLED = {
    "ssh.github.com": "github.com", "www.github.com": "github.com", "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": "bitbucket.org", "ssh.dev.azure.com": "dev.azure.com",
}  # fmt: skip
_SECTION = re.compile(r'\s*\[\s*remote\s+"([^"]*)"\s*\]')
_USER_SECTION = re.compile(r"\s*\[\s*user\s*\]", re.IGNORECASE)
_NAME = re.compile(r"\s*name\s*=\s*(.*?)\s*", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*url\s*=\s*(.*?)\s*")


class Where(Struct, frozen=True):
    project: str
    branch: str | None = None
    root: str | None = None
    # What the project was called when folders went by their last name alone, and others of that name were called so,
    # too; or when capitals told repositories apart.
    former: str | None = None

    @property
    def homes(self) -> tuple[str, ...]:
        """The names that things of this project are stored under; the first is the one of today."""
        return (self.project,) if self.former is None else (self.project, self.former)


def look(folder: str | os.PathLike[str] | None = None) -> Where:
    """The repository that a folder is in; the folder itself where there is none."""
    here = (Path(folder) if folder is not None else Path.cwd()).resolve()
    for root in (here, *here.parents):
        inside = _inside(root)
        if inside is not None:
            remote, home = _remote(inside), _home(root, inside)
            project = normalised(remote, home) if remote else by_path(home)
            former = _former(remote or str(root)) if project.startswith(BY_PATH) else _as_written(remote, project)
            if not remote and home != root:
                former = by_path(root)  # as a worktree was called when it was a project of its own
            return Where(project, _branch(inside), str(root), former)
    return Where(by_path(here), former=_former(str(here)))


def by_path(folder: str | os.PathLike[str]) -> str:
    """The name of a project that has no other: `path/home/ann/app`. A very long one is cut, and still its own."""
    path = Path(folder).as_posix().lstrip("/")
    name = BY_PATH + _UNFIT.sub(lambda found: quote(found[0], errors="surrogatepass"), path)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{BY_PATH}{sha256(name.encode()).hexdigest()[:16]}/{name[-LONGEST_NAME // 2 :]}"


def _as_written(remote: str | None, project: str) -> str | None:
    """What a project was called when its capitals counted, if that is another name."""
    host, path = _address(remote or "") or ("", "")
    return f"{host}/{path}" if path and f"{host}/{path}".lower() == project != f"{host}/{path}" else None


def _former(place: str) -> str:
    return f"folder/{Path(place.removeprefix('file://')).name.removesuffix('.git')}"


def branch(root: str | None) -> str | None:
    """The branch that is checked out at the moment: people change it while a server runs."""
    inside = None if root is None else _inside(Path(root))
    return None if inside is None else _branch(inside)


def user_name(root: str | None) -> str | None:
    """Return whom git names as the author of commits in a repository: `user.name`, of the repository or of the user.

    Files that a configuration includes are not read.
    """
    shared = None if root is None else shared_directory(root)
    if shared is None:
        return None
    if "GIT_CONFIG_GLOBAL" in os.environ:
        own = [Path(os.environ["GIT_CONFIG_GLOBAL"])]
    else:
        settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        own = [Path(os.path.expanduser("~/.gitconfig")), Path(settings, "git", "config")]
    names = (_user_name(_text(path) or "") for path in (shared / "config", *own))
    return os.environ.get("GIT_AUTHOR_NAME") or next((name for name in names if name), None)


def _user_name(config: str) -> str | None:
    """Return `name` of the section `user` of a git configuration; of several, the last."""
    found, inside = None, False
    for line in config.splitlines():
        if line.lstrip().startswith("["):
            inside = _USER_SECTION.match(line) is not None
        elif inside and (name := _NAME.fullmatch(line)):
            found = name[1].strip('"')
    return found


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


def normalised(remote: str, root: str | os.PathLike[str] = "/") -> str:
    """`host/owner/name`, however the remote is written, and without a user name. One on this machine goes by its path,
    which may be meant from the root of the repository."""
    remote = remote.strip()
    found = _address(remote)
    if found is None:
        return by_path(os.path.normpath(os.path.join(root, _bare(remote))))
    host, path = found
    if host in ("", "localhost") and remote.lower().startswith("file:"):
        return by_path(os.path.normpath(os.path.join(root, f"/{unquote(path)}")))
    host = _ALSO_CALLED.get(host, host)
    if host == "dev.azure.com":
        path = path.removeprefix("v3/").replace("/_git/", "/")
    return spelled(f"{host}/{path}")[:LONGEST_NAME]


def spelled(project: str) -> str:
    """The one spelling of a project's name: in small letters where its host knows no capitals."""
    return project.lower() if project.lower().startswith(_CASELESS) else project


def _address(remote: str) -> tuple[str, str] | None:
    """The host and the path of a remote; None for one that is a path."""
    found = _URL.fullmatch(remote.strip()) or (_SCP.fullmatch(remote.strip()) if "://" not in remote else None)
    return None if found is None else (found[1].lower(), _bare(found[2]).lstrip("/"))


def _bare(path: str) -> str:
    return path.rstrip("/").removesuffix(".git").rstrip("/")


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


def _home(root: Path, inside: Path) -> Path:
    """The folder that a repository goes by. Of a worktree: that of the repository, which all its worktrees share."""
    shared = _shared(inside)
    if shared == inside:
        return root
    shared = shared.resolve()
    return shared.parent if shared.name == ".git" else shared


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
