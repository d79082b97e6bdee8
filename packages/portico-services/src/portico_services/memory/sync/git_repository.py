"""Access to a git repository through plumbing commands: no working tree, no shell, and nothing in the repository is
executed.

A repository's configuration can name programs in dozens of places, with more in every version of git. It is therefore
ignored: git works in a private directory that shares the objects and refs but has a separate configuration. Only the
settings in `_SAFE_CONFIG_KEYS` are copied. The user's global configuration applies.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from portico_services import git_project
from portico_services.memory.errors import SyncError

GIT_TIMEOUT_SECONDS = 120.0
# A memory has at most 200,000 characters plus metadata. All files read at once must fit into memory.
MAX_FILE_BYTES = 1_000_000
# Incoming text is screened at about one second per million characters; the rest is left for the next sync.
MAX_READ_BYTES = 16_000_000
MAX_LISTING_BYTES = 30_000_000
MAX_REPORTED_PROBLEMS = 50
MAX_PUSH_ATTEMPTS = 5
_SHA = re.compile(r"[0-9a-f]{40,64}")
_FILE_MODES = ("100644", "100755")
_SAFE_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_REMOTE_COMMANDS = ("ls-remote", "fetch", "push")
_LOCATIONS = """
    DIR WORK_TREE INDEX_FILE COMMON_DIR OBJECT_DIRECTORY ALTERNATE_OBJECT_DIRECTORIES NAMESPACE PREFIX QUARANTINE_PATH
"""
_GIT_LOCATION_VARIABLES = frozenset(f"GIT_{name}" for name in _LOCATIONS.split())
_COMMITTER = b"Memory <memory@localhost>"

# Repository settings that are copied: the object format, the committer, and HTTP headers for servers that authenticate
# by header. None of them names a program, a file or another address.
_SAFE_CONFIG_KEYS = re.compile(
    r"core\.(repositoryformatversion|sharedrepository)|extensions\.(objectformat|refstorage|noop)|user\.(name|email)"
    r"|http\.(.*\.)?extraheader"
)
_PRIVATE_CONFIG = """\
[core]
	bare = true
	hooksPath = /dev/null
	fsmonitor = false
[gc]
	auto = 0
[maintenance]
	auto = false
[fetch]
	fsckObjects = true
"""
_SHARED_ENTRIES = ("objects", "refs", "packed-refs", "reftable", "shallow")
_PRIVATE_DIR_PREFIX = "portico-"
_STALE_SECONDS = 3600.0
# Other protocols, such as `ext::`, run programs.
_PROTOCOLS = "file:git:http:https:ssh"
# For a local remote, the other end is a git process that obeys the configuration and hooks there.
_HELPER_COMMAND = (
    "git -c core.hooksPath=/dev/null -c core.alternateRefsCommand=true -c core.fsmonitor=false -c receive.autogc=false "
    "-c receive.denyCurrentBranch=refuse -c gc.auto=0 {program}"
)


class GitBlob(NamedTuple):
    """Blob id and size of a file."""

    sha: str
    size: int


class GitTree(NamedTuple):
    """Files of a commit by path, invalid files under valid names, and a message for each file that was skipped."""

    blobs: dict[str, GitBlob]
    invalid: list[str]
    problems: list[str]
    # In a diff: deleted paths.
    removed: Sequence[str] = ()


class _Entry(NamedTuple):
    """A file as git lists it; the size is not a number if the entry is not a file."""

    path: str
    mode: str
    sha: str
    size: str


def _classify_entries(entries: Iterable[_Entry], names: re.Pattern[str]) -> GitTree:
    blobs: dict[str, GitBlob] = {}
    unfit: list[str] = []
    problems: list[str] = []
    for path, mode, sha, size in entries:
        fits = size.isdecimal() and int(size) <= MAX_FILE_BYTES
        if mode in _FILE_MODES and fits and names.fullmatch(path):
            blobs[path] = GitBlob(sha, int(size))
            continue
        if names.fullmatch(path):
            unfit.append(path)
        if len(problems) < MAX_REPORTED_PROBLEMS:
            problem = "too large" if size.isdecimal() and not fits else "not a memory"
            problems.append(f"{path[:100]}: {problem}")
    return GitTree(blobs, unfit, problems)


class GitRepository:
    """A git repository with an isolated configuration."""

    def __init__(self, root: str | os.PathLike[str], private: Path, config: Mapping[str, list[str]]) -> None:
        self.root = Path(root)
        self._private = private
        self._config = config

    @classmethod
    @contextmanager
    def open(cls, root: str | os.PathLike[str]) -> Iterator[GitRepository]:
        """Open the repository of a folder. Raises `SyncError` if it is not one or is not writable."""
        inside = git_project.git_common_dir(root)
        if inside is None:
            raise SyncError("Sync requires a git repository; this directory is not in one.")
        try:
            # Remove directories left by killed processes.
            for left in inside.glob(f"{_PRIVATE_DIR_PREFIX}*"):
                if time.time() - left.lstat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
            # Inside the repository directory, because `includeIf "gitdir:…"` in the user's configuration depends on the
            # path.
            private = Path(tempfile.mkdtemp(prefix=_PRIVATE_DIR_PREFIX, dir=inside))
        except OSError as failure:
            raise SyncError(f"The repository cannot be written to: {failure.strerror}.") from None
        try:
            yield cls(root, private, _create_private_dir(private, inside))
        except OSError as failure:
            raise SyncError(f"The repository cannot be used: {failure.strerror}.") from None
        finally:
            shutil.rmtree(private, ignore_errors=True)

    def blob_id(self, content: str) -> str:
        """Return the git blob id of a content."""
        data = content.encode()
        # Repositories with the sha256 object format have other blob ids.
        kind = hashlib.sha256 if self._config_value("extensions.objectformat") == "sha256" else hashlib.sha1
        return kind(b"blob %d\0" % len(data) + data).hexdigest()

    def remotes(self) -> list[str]:
        return [
            key[len("remote.") : -len(".url")]
            for key, values in self._config.items()
            if key.startswith("remote.") and key.endswith(".url") and values[0].strip()
        ]

    def tip(self, remote: str, ref: str) -> str | None:
        """Return the commit at a ref of a remote, or None if the ref does not exist."""
        # `--` ends the options: a URL that begins with a dash must not become one.
        listed = self._run(
            ["ls-remote", *self._isolation_option(remote, "upload-pack"), "--", self._url(remote), ref]
        ).decode()
        part = listed.split()[:1]
        return part[0] if part and _SHA.fullmatch(part[0]) else None

    def fetch(self, remote: str, ref: str, into: str) -> str | None:
        """Fetch a ref of a remote into a local ref and return the commit."""
        alone = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance")
        isolation_options = self._isolation_option(remote, "upload-pack")
        for _ in range(MAX_PUSH_ATTEMPTS):
            done = self._try(["fetch", *alone, *isolation_options, "--", self._url(remote), f"+{ref}:{into}"])
            if done.returncode == 0:
                return self.commit(into)
            # Another process of this clone is fetching at the same time and holds the ref.
            if b"cannot lock ref" not in done.stderr:
                break
        raise _git_error("fetch", done)

    def push(self, remote: str, commit: str, ref: str, expected: str | None) -> bool:
        """Push a commit and return whether the remote accepted it; False if another clone pushed since the fetch."""
        # Options override the user’s configuration, which could sign, follow tags or run a hook on every sync.
        alone = ("--quiet", "--no-verify", "--no-signed", "--no-recurse-submodules", "--no-follow-tags")
        # Compare and swap: the push succeeds only if the remote ref still points at the fetched commit. An empty value
        # means that the ref must not exist yet.
        lease = f"--force-with-lease={ref}:{expected or ''}"
        where = self._isolation_option(remote, "receive-pack", push=True)
        done = self._try(["push", *alone, lease, *where, "--", self._url(remote, push=True), f"{commit}:{ref}"])
        if done.returncode == 0:
            return True
        if _NON_FAST_FORWARD.search(done.stderr):
            return False
        raise _git_error("push", done)

    def _config_value(self, key: str) -> str | None:
        return next(iter(self._config.get(key, ())), None)

    def _url(self, remote: str, *, push: bool = False) -> str:
        url = (self._config_value(f"remote.{remote}.pushurl") if push else None) or self._config_value(
            f"remote.{remote}.url"
        )
        assert url is not None
        return url

    def _isolation_option(self, remote: str, program: str, *, push: bool = False) -> list[str]:
        """Return the option that isolates the helper process of a local remote."""
        url = self._url(remote, push=push)
        # For other remotes this process runs on a machine that is not ours.
        if not url.startswith("file://") and not git_project.is_local_path(url):
            return []
        return [f"--{program}={_HELPER_COMMAND.format(program=program)}"]

    def commit(self, ref: str) -> str | None:
        done = self._try(["rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"])
        result = done.stdout.decode(errors="replace").strip()
        return result if done.returncode == 0 and _SHA.fullmatch(result) else None

    def is_ancestor(self, later: str | None, earlier: str | None) -> bool:
        """Return whether a commit is an ancestor of another one. False if the repository does not have it."""
        if later is None or earlier is None:
            return False
        return self._try(["merge-base", "--is-ancestor", earlier, later]).returncode == 0

    def list_tree(self, commit: str, folders: Sequence[str], names: re.Pattern[str]) -> GitTree:
        """Return the files in some folders of a commit whose names match.

        Others can push anything there: entries that are not plain files or are too large are skipped and reported.
        """
        listed = self._read_bounded(
            ["ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *folders], MAX_LISTING_BYTES
        )
        results: list[_Entry] = []
        for line in listed.decode(errors="replace").split("\0"):
            about, tab, path = line.partition("\t")
            if tab:
                mode, _, sha, size = (*about.split(), "", "", "", "")[:4]
                results.append(_Entry(path, mode, sha, size))
        return _classify_entries(results, names)

    def diff_trees(self, before: str, after: str, folders: Sequence[str], names: re.Pattern[str]) -> GitTree:
        """Return the files that differ between two commits. Raises `SyncError` if git no longer has one of them."""
        words = ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", before, after, "--", *folders]
        fields = self._read_bounded(words, MAX_LISTING_BYTES).decode(errors="replace").split("\0")
        # `:100644 100644 before after M`, followed by the path.
        pairs = [(about.split(), path) for about, path in zip(fields[::2], fields[1::2], strict=False)]
        remaining = [(path, about[1], about[3]) for about, path in pairs if about[4:] != ["D"]]
        sizes = self._sizes(sha for _, mode, sha in remaining if mode in _FILE_MODES)
        result = [_Entry(path, mode, sha, sizes.get(sha, "")) for path, mode, sha in remaining]
        return _classify_entries(result, names)._replace(removed=[path for about, path in pairs if about[4:] == ["D"]])

    def _sizes(self, shas: Iterable[str]) -> dict[str, str]:
        stdin = "".join(f"{sha}\n" for sha in shas).encode()
        output = self._run(["cat-file", "--batch-check=%(objectname) %(objectsize)"], stdin=stdin) if stdin else b""
        return dict(line.split(" ", 1) for line in output.decode().splitlines())

    def read_blobs(self, blobs: Iterable[GitBlob]) -> dict[str, str]:
        """Return the contents of the blobs that exist, up to MAX_READ_BYTES in total."""
        room, shas = MAX_READ_BYTES, []
        for sha, size in blobs:
            # A large file does not end the loop: smaller ones behind it may still fit.
            if size <= room:
                room -= size
                shas.append(sha)
        output = self._run(["cat-file", "--batch"], stdin="".join(f"{sha}\n" for sha in shas).encode()) if shas else b""
        result: dict[str, str] = {}
        at = 0
        for sha in shas:
            end = output.index(b"\n", at)
            listed_size = output[at:end].rpartition(b" ")[2]
            at = end + 1
            if listed_size.isdigit():
                result[sha] = output[at : at + int(listed_size)].decode(errors="replace")
                at += int(listed_size) + 1
        return result

    def read_origins(self, tip: str, since: str | None, folder: str) -> dict[str, str]:
        """Return the author and the last commit of each file changed in a folder since a commit."""
        exclusions = [f"^{since}"] if self.is_ancestor(tip, since) else []
        words = ["log", "--first-parent", "-m", "--root", "--no-renames", "--no-show-signature", "--name-only", "-z"]
        output = self._read_bounded(
            [*words, "--format=%x01%H %an <%ae>", tip, *exclusions, "--", f"{folder}/"], MAX_LISTING_BYTES
        )
        result: dict[str, str] = {}
        for part in output.decode(errors="replace").split("\x01")[1:]:
            head, *paths = part.split("\0")
            sha, _, author = head.partition(" ")
            for path in paths:
                # The log is newest first, so the first entry of a path wins.
                result.setdefault(path.strip("\n"), f"{author} {sha[:12]}")
        return result

    def write_commit(self, changes: Mapping[str, str | None], message: str, parent: str | None, ref: str) -> str:
        """Create a commit on top of `parent` with these files changed (None deletes a file), and point the ref at it.

        All other files stay unchanged.
        """
        lines: list[bytes] = [b"commit %s\n" % ref.encode(), b"committer %s\n" % self._committer()]
        lines += [_data(message.encode())]
        if parent is not None:
            lines.append(b"from %s\n" % parent.encode())
        for path, content in sorted(changes.items()):
            if not _SAFE_REF.fullmatch(path):
                # A line break in a path would start another fast-import command.
                raise SyncError(f"Invalid file name {path[:80]!r}.")
            if content is None:
                lines.append(b"D %s\n" % path.encode())
            else:
                lines += [b"M 100644 inline %s\n" % path.encode(), _data(content.encode())]
        lines.append(b"done\n")
        return self._run_fast_import(lines, ref)

    def alone(self, commit: str, message: str, ref: str) -> str:
        """Create a commit with the same files and no parent, so that removed content is in no commit."""
        tree = self._run(["rev-parse", "--verify", f"{commit}^{{tree}}"]).strip()
        lines = [b"commit %s\n" % ref.encode(), b"committer %s\n" % self._committer(), _data(message.encode())]
        lines += [b"deleteall\n", b'M 040000 %s ""\n' % tree, b"done\n"]
        return self._run_fast_import(lines, ref)

    def _run_fast_import(self, lines: Sequence[bytes], ref: str) -> str:
        self._run(["fast-import", "--quiet", "--done", "--force"], stdin=b"".join(lines))
        commit = self.commit(ref)
        if commit is None:
            raise SyncError("git fast-import created no commit.")
        return commit

    def forget(self, ref: str) -> None:
        self._try(["update-ref", "-d", ref])

    def set(self, ref: str, commit: str) -> None:
        self._run(["update-ref", ref, commit])

    def _committer(self) -> bytes:
        """Return the committer configured in git, or a default identity."""
        done = self._try(["var", "GIT_COMMITTER_IDENT"])
        identity = done.stdout.strip()
        if done.returncode == 0 and identity and b"\n" not in identity:
            return identity
        return b"%s %d +0000" % (_COMMITTER, time.time())

    def _run(self, words: Sequence[str], stdin: bytes = b"") -> bytes:
        done = self._try(words, stdin)
        if done.returncode != 0:
            raise _git_error(words[0], done)
        return done.stdout

    def _read_bounded(self, words: Sequence[str], limit: int) -> bytes:
        """Run a command and return its output. Raises `SyncError` if it exceeds `limit` bytes."""
        with subprocess.Popen(
            self._command(words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment(self._private)
        ) as process:
            # `subprocess.run` has a timeout but reads without a limit; this reads a limited amount and needs its own
            # timeout.
            late = threading.Timer(GIT_TIMEOUT_SECONDS, process.kill)
            late.start()
            try:
                assert process.stdout is not None
                output = process.stdout.read(limit + 1)
                if len(output) > limit:
                    process.kill()
                    raise SyncError("The remote ref is too large to read; it contains more than memories.")
                status = process.wait()
            finally:
                late.cancel()
        if status != 0:
            raise SyncError(f"git {words[0]} failed.")
        return output

    def _command(self, words: Sequence[str]) -> list[str]:
        return ["git", "-C", str(self.root), *words]

    def _try(self, words: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return _git(self._command(words), stdin, self._private)


def _git(command: Sequence[str], stdin: bytes, private: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            timeout=GIT_TIMEOUT_SECONDS,
            env=_environment(private),
            check=False,
        )
    except FileNotFoundError:
        raise SyncError("Sync requires git, which is not installed.") from None
    except subprocess.TimeoutExpired:
        late = f"git did not finish within {GIT_TIMEOUT_SECONDS:g} s. Is the remote reachable?"
        raise SyncError(late, retryable=True) from None


def _create_private_dir(private: Path, inside: Path) -> dict[str, list[str]]:
    """Create the private git directory and return the repository's configuration, which is read but not obeyed."""
    (private / "HEAD").write_text("ref: refs/heads/none\n")
    (private / "config").write_text(_PRIVATE_CONFIG)
    for name in _SHARED_ENTRIES:
        if name in ("objects", "refs", "packed-refs") or (inside / name).exists():
            (private / name).symlink_to(inside.resolve() / name)
    listed = ["git", "-C", str(private), "config", "--file", str(inside / "config"), "--no-includes", "--list", "-z"]
    done = _git(listed, b"", private)
    if done.returncode != 0:
        raise _git_error("config", done)
    options: dict[str, list[str]] = {}
    for entry in done.stdout.decode(errors="replace").split("\0"):
        key, _, value = entry.partition("\n")
        options.setdefault(key, []).append(value)
    # An allow list: many git options name programs to run, and the repository’s configuration may come from others.
    remaining = [
        (key, value) for key, values in options.items() if _SAFE_CONFIG_KEYS.fullmatch(key) for value in values
    ]
    (private / "config").write_text("".join(_setting(key, value) for key, value in remaining) + _PRIVATE_CONFIG)
    return options


def _setting(key: str, value: str) -> str:
    section, _, rest = key.partition(".")
    within, _, name = rest.rpartition(".")
    head = f"{section} {_quote_path(within)}" if within else section
    return f"[{head}]\n\t{name} = {_quote_path(value)}\n"


def _quote_path(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _environment(private: Path) -> dict[str, str]:
    """Return the environment for git, without location variables that a hook of another repository may have set."""
    ours = {name: value for name, value in os.environ.items() if name not in _GIT_LOCATION_VARIABLES}
    # No one can answer a password prompt.
    ours |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "LC_ALL": "C"}
    # Replacement objects would let a pushed ref change the content of any blob, and lazy fetches contact other remotes.
    ours |= {"GIT_DIR": str(private), "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}
    ours.setdefault("GIT_ALLOW_PROTOCOL", _PROTOCOLS)
    ours.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    return ours


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


# Error messages of git for transient failures.
_TRANSIENT_ERROR = re.compile(
    r"could not resolve|couldn't resolve|temporary failure|timed? ?out|connection (was )?(refused|reset|closed)|refused"
    r"|failed to connect|couldn't connect|unreachable|no route to host|early eof|hung up unexpectedly"
    r"|unexpected disconnect|rpc failed|error: (429|5\d\d)|returned error: (429|5\d\d)|cannot lock ref|try again",
    re.IGNORECASE,
)
# Messages for a concurrent push, from the local git and from the remote.
_NON_FAST_FORWARD = re.compile(
    rb"stale info|fetch first|! \[rejected\]|cannot lock ref|incorrect old value|reference already exists"
)
# Rejection by a rule or hook of the remote: `! [remote rejected] … (protected branch hook declined)`.
_REJECTED = re.compile(r"! \[remote rejected\].*\(([^()]{1,200})\)")
# Messages for permanent failures, and our replacement: git uses several lines with addresses in them.
_PERMANENT_ERRORS = (
    (
        re.compile(r"does not appear to be a git repository|repository .*not found|does not exist|error: 404", re.I),
        "no repository exists at the URL of this remote",
    ),
    (
        re.compile(
            r"authentication failed|could not read (username|password)|permission denied|access denied|not allowed"
            r"|invalid username|error: 40[13]|host key verification",
            re.I,
        ),
        "authentication or permission failed",
    ),
)


def _git_error(command: str, done: subprocess.CompletedProcess[bytes]) -> SyncError:
    """Return an error with git's message, without URLs, which may contain passwords, and without paths."""
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    text = "\n".join(lines)
    if command not in _REMOTE_COMMANDS:
        return SyncError(f"git {command} failed: {_first_error_line(lines)}")
    lasting = next((ours for theirs, ours in _PERMANENT_ERRORS if theirs.search(text)), None)
    passing = lasting is None and _TRANSIENT_ERROR.search(text) is not None
    if rejected := _REJECTED.search(text):
        lasting, passing = f"the remote rejected the push ({_redact_paths(rejected[1])})", False
    why = f"{lasting}." if lasting is not None else _first_error_line(lines)
    advice = "Try again later" if passing else "Fix this before the next sync"
    return SyncError(
        f"git {command} failed: {why} {advice}. No memory is lost: local changes are sent with the next sync.",
        retryable=passing,
    )


def _first_error_line(lines: Sequence[str]) -> str:
    """Return the first line that names the cause; later lines only repeat that git failed."""
    error = next((line for line in lines if line.startswith(("fatal:", "error:", "ssh:"))), None)
    error = error or (lines[0] if lines else "no error message")
    return _redact_paths(error)[:200].rstrip(".") + "."


def _redact_paths(message: str) -> str:
    # Everything with a slash: URLs may contain passwords, and paths reveal the user’s directories.
    return re.sub(r"\S*[/\\]\S*", "…", message)
