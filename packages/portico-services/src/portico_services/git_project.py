"""Detection of the project that a directory belongs to: the git remote of its repository, or else its path.

The repository's files are read directly because detection runs at every start: three git subprocesses would take longer
than the rest of the start-up. A worktree resolves to the repository it belongs to.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec import Struct

MAX_GIT_FILE_BYTES = 256 * 1024
PATH_PREFIX = "path/"
MAX_PROJECT_NAME_CHARS = 300
# Characters of a path that would end a filter condition or cannot be stored.
_UNSAFE_CHARS = re.compile(r'[\s,"%\x00-\x1f\ud800-\udfff]')
_SCP = re.compile(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^@/]*@)?([^/:]*)(?::\d+)?/(.+)", re.IGNORECASE)
# Hosts that ignore case in `Owner/Name`, and the alternative host names they use for SSH over port 443.
_CASE_INSENSITIVE_HOSTS = ("github.com/", "gitlab.com/", "bitbucket.org/", "codeberg.org/", "dev.azure.com/")
_HOST_ALIASES = {
    "ssh.github.com": "github.com", "www.github.com": "github.com", "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": "bitbucket.org", "ssh.dev.azure.com": "dev.azure.com",
}  # fmt: skip
_SECTION = re.compile(r'\s*\[\s*remote\s+"([^"]*)"\s*\]')
_USER_SECTION = re.compile(r"\s*\[\s*user\s*\]", re.IGNORECASE)
_NAME = re.compile(r"\s*name\s*=\s*(.*?)\s*", re.IGNORECASE)
_REMOTE_URL = re.compile(r"\s*url\s*=\s*(.*?)\s*")


class ProjectInfo(Struct, frozen=True):
    project: str
    branch: str | None = None
    root: str | None = None
    # Earlier name of the project: by directory name alone, which was ambiguous, or with the remote's original case.
    former: str | None = None

    @property
    def project_aliases(self) -> tuple[str, ...]:
        """Return the names that data of this project is stored under, current name first."""
        return (self.project,) if self.former is None else (self.project, self.former)


def detect_project(folder: str | os.PathLike[str] | None = None) -> ProjectInfo:
    """Return the project of a directory: its repository, or the directory itself outside a repository."""
    start = (Path(folder) if folder is not None else Path.cwd()).resolve()
    for root in (start, *start.parents):
        inside = _git_dir(root)
        if inside is not None:
            remote, home = _read_remote(inside), _project_dir(root, inside)
            project = normalize_remote(remote, home) if remote else project_from_path(home)
            former = (
                _previous_name(remote or str(root))
                if project.startswith(PATH_PREFIX)
                else _case_preserved_name(remote, project)
            )
            if not remote and home != root:
                former = project_from_path(root)  # Worktrees used to be separate projects.
            return ProjectInfo(project, _read_branch(inside), str(root), former)
    return ProjectInfo(project_from_path(start), former=_previous_name(str(start)))


def project_from_path(folder: str | os.PathLike[str]) -> str:
    """Return the project name of a path: `path/home/ann/app`. Long names are shortened with a hash so that they stay
    unique.
    """
    path = Path(folder).as_posix().lstrip("/")
    name = PATH_PREFIX + _UNSAFE_CHARS.sub(lambda match: quote(match[0], errors="surrogatepass"), path)
    if len(name) <= MAX_PROJECT_NAME_CHARS:
        return name
    return f"{PATH_PREFIX}{sha256(name.encode()).hexdigest()[:16]}/{name[-MAX_PROJECT_NAME_CHARS // 2 :]}"


def _case_preserved_name(remote: str | None, project: str) -> str | None:
    """Return the name of a project with its original case if that differs, as used by earlier versions."""
    host, path = _split_remote(remote or "") or ("", "")
    return f"{host}/{path}" if path and f"{host}/{path}".lower() == project != f"{host}/{path}" else None


def _previous_name(path: str) -> str:
    return f"folder/{Path(path.removeprefix('file://')).name.removesuffix('.git')}"


def current_branch(root: str | None) -> str | None:
    """Return the branch that is currently checked out. Not cached: it changes while a server runs."""
    inside = None if root is None else _git_dir(Path(root))
    return None if inside is None else _read_branch(inside)


def user_name(root: str | None) -> str | None:
    """Return git's `user.name` for a repository, from its own or the user's configuration.

    Included configuration files are not read.
    """
    shared = None if root is None else git_common_dir(root)
    if shared is None:
        return None
    if "GIT_CONFIG_GLOBAL" in os.environ:
        own = [Path(os.environ["GIT_CONFIG_GLOBAL"])]
    else:
        settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        own = [Path(os.path.expanduser("~/.gitconfig")), Path(settings, "git", "config")]
    names = (_user_name(_read_text(path) or "") for path in (shared / "config", *own))
    return os.environ.get("GIT_AUTHOR_NAME") or next((name for name in names if name), None)


def _user_name(config: str) -> str | None:
    """Return `name` of the last `[user]` section of a git configuration that has one."""
    result, inside = None, False
    for line in config.splitlines():
        if line.lstrip().startswith("["):
            inside = _USER_SECTION.match(line) is not None
        elif inside and (name := _NAME.fullmatch(line)):
            result = name[1].strip('"')
    return result


def git_common_dir(root: str | os.PathLike[str]) -> Path | None:
    """Return the directory that all working trees of a repository share."""
    inside = _git_dir(Path(root))
    return None if inside is None else _common_dir(inside)


def is_local_path(remote: str) -> bool:
    """Return whether a remote is a path on this machine, written without a scheme."""
    return "://" not in remote and _SCP.fullmatch(remote) is None


def relative_to_root(path: str, root: str | None) -> str:
    """Return a file path as memories store it: relative to the repository root, with slashes. Paths outside the
    repository stay absolute.
    """
    if root is not None and os.path.isabs(path):
        relative = os.path.relpath(path, root)
        path = path if relative.startswith("..") else relative
    return path.replace(os.sep, "/")


def normalize_remote(remote: str, root: str | os.PathLike[str] = "/") -> str:
    """Return `host/owner/name` for any spelling of a remote, without user name.

    A local remote is named by its path, which may be relative to the repository root.
    """
    remote = remote.strip()
    result = _split_remote(remote)
    if result is None:
        return project_from_path(os.path.normpath(os.path.join(root, _strip_git_suffix(remote))))
    host, path = result
    # `file:` URLs are local paths even though they parse like a host and a path.
    if host in ("", "localhost") and remote.lower().startswith("file:"):
        return project_from_path(os.path.normpath(os.path.join(root, f"/{unquote(path)}")))
    host = _HOST_ALIASES.get(host, host)
    # Azure DevOps spells the same repository differently for SSH (`v3/`) and HTTPS (`_git`).
    if host == "dev.azure.com":
        path = path.removeprefix("v3/").replace("/_git/", "/")
    return normalize_project_name(f"{host}/{path}")[:MAX_PROJECT_NAME_CHARS]


def normalize_project_name(project: str) -> str:
    """Return the canonical project name: lower case if the host ignores case."""
    return project.lower() if project.lower().startswith(_CASE_INSENSITIVE_HOSTS) else project


def _split_remote(remote: str) -> tuple[str, str] | None:
    """Return the host and path of a remote, or None if it is a local path."""
    result = _URL.fullmatch(remote.strip()) or (_SCP.fullmatch(remote.strip()) if "://" not in remote else None)
    return None if result is None else (result[1].lower(), _strip_git_suffix(result[2]).lstrip("/"))


def _strip_git_suffix(path: str) -> str:
    return path.rstrip("/").removesuffix(".git").rstrip("/")


def _git_dir(root: Path) -> Path | None:
    """Return the git directory of a working tree, or None if the directory is not one."""
    inside = root / ".git"
    if inside.is_dir():
        return inside
    # In worktrees and submodules `.git` is a file that points to the git directory.
    content = _read_text(inside)
    if content is None or not content.startswith("gitdir:"):
        return None
    elsewhere = root / content.removeprefix("gitdir:").strip()
    return elsewhere if elsewhere.is_dir() else None


def _project_dir(root: Path, inside: Path) -> Path:
    """Return the directory that names a repository. All worktrees share that of the main repository."""
    shared = _common_dir(inside)
    if shared == inside:
        return root
    shared = shared.resolve()
    return shared.parent if shared.name == ".git" else shared


def _common_dir(inside: Path) -> Path:
    shared = (_read_text(inside / "commondir") or "").strip()
    return inside / shared if shared else inside


def _read_remote(inside: Path) -> str | None:
    """Return the URL of `origin`, or of the first remote."""
    result: dict[str, str] = {}
    section = None
    for line in (_read_text(_common_dir(inside) / "config") or "").splitlines():
        if line.lstrip().startswith("["):
            opened = _SECTION.match(line)
            section = opened[1] if opened else None
        elif section is not None and (address := _REMOTE_URL.fullmatch(line)):
            result.setdefault(section, address[1])
    return result.get("origin") or next(iter(result.values()), None)


def _read_branch(inside: Path) -> str | None:
    head = (_read_text(inside / "HEAD") or "").strip()
    return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None


def _read_text(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_GIT_FILE_BYTES)
    except OSError:
        return None
