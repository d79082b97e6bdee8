"""A repository, through git's plumbing: no working tree is touched, no shell is involved, and nothing of what it holds
is ever run.

A repository's configuration can name programs in dozens of places, and every version of git has more of them. So it is
not obeyed: git works in a directory of ours that shares the objects and the refs, with a configuration of ours. Of the
repository's own it has only the settings in `_HARMLESS`. What the user has configured for all repositories counts.
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
from portico_services.memory.errors import SyncFailed

GIT_SECONDS = 120.0
# A memory has at most 200,000 characters, and a head. All that are read at once have to fit into our memory.
LONGEST_FILE = 1_000_000
# What is read is screened, which takes about a second for each million: the rest is left for the next sync.
MAX_READ_BYTES = 16_000_000
LONGEST_LIST = 30_000_000
MOST_PROBLEMS = 50
MOST_TRIES = 5
_SHA = re.compile(r"[0-9a-f]{40,64}")
_PLAIN = ("100644", "100755")
_SPEAKABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_REMOTE = ("ls-remote", "fetch", "push")
_LOCATIONS = """
    DIR WORK_TREE INDEX_FILE COMMON_DIR OBJECT_DIRECTORY ALTERNATE_OBJECT_DIRECTORIES NAMESPACE PREFIX QUARANTINE_PATH
"""
_ELSEWHERE = frozenset(f"GIT_{name}" for name in _LOCATIONS.split())
_WHO = b"Memory <memory@localhost>"

# The settings of the repository's own that are obeyed: how its files are written, who commits, and what a server asks
# for that knows its users by a header. None of them names a program, a file or another address.
_HARMLESS = re.compile(
    r"core\.(repositoryformatversion|sharedrepository)|extensions\.(objectformat|refstorage|noop)|user\.(name|email)"
    r"|http\.(.*\.)?extraheader"
)
_OURS = """\
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
_SHARED = ("objects", "refs", "packed-refs", "reftable", "shallow")
_PRIVATE = "portico-"
_STALE_SECONDS = 3600.0
# Others, such as `ext::`, are programs.
_PROTOCOLS = "file:git:http:https:ssh"
# The other end of an address on this machine is a program that obeys the configuration and the hooks there.
_BESIDE = (
    "git -c core.hooksPath=/dev/null -c core.alternateRefsCommand=true -c core.fsmonitor=false -c receive.autogc=false "
    "-c receive.denyCurrentBranch=refuse -c gc.auto=0 {program}"
)


class Blob(NamedTuple):
    sha: str
    size: int


class GitListing(NamedTuple):
    """The files of a commit by their path, the names that can be ours and are no such files, and a word about whatever
    was left out."""

    blobs: dict[str, Blob]
    unfit: list[str]
    problems: list[str]
    # Of a difference: what is not there any more.
    removed: Sequence[str] = ()


class _Entry(NamedTuple):
    """A file as git lists it; the size is no number where it is no file."""

    path: str
    mode: str
    sha: str
    size: str


def _sorted_out(found: Iterable[_Entry], names: re.Pattern[str]) -> GitListing:
    blobs: dict[str, Blob] = {}
    unfit: list[str] = []
    problems: list[str] = []
    for path, mode, sha, size in found:
        fits = size.isdecimal() and int(size) <= LONGEST_FILE
        if mode in _PLAIN and fits and names.fullmatch(path):
            blobs[path] = Blob(sha, int(size))
            continue
        if names.fullmatch(path):
            unfit.append(path)
        if len(problems) < MOST_PROBLEMS:
            what = "it is too long" if size.isdecimal() and not fits else "it is no memory"
            problems.append(f"{path[:100]}: {what}")
    return GitListing(blobs, unfit, problems)


class Git:
    def __init__(self, root: str | os.PathLike[str], private: Path, config: Mapping[str, list[str]]) -> None:
        self.root = Path(root)
        self._private = private
        self._config = config

    @classmethod
    @contextmanager
    def opened(cls, root: str | os.PathLike[str]) -> Iterator[Git]:
        inside = git_project.shared_directory(root)
        if inside is None:
            raise SyncFailed("This is not a git repository, so there is nothing to sync with.")
        try:
            _sweep(inside)
            # Beside the rest of the repository: `includeIf "gitdir:…"` of the user goes by where it is.
            private = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=inside))
        except OSError as failure:
            raise SyncFailed(f"The repository cannot be written to: {failure.strerror}.") from None
        try:
            yield cls(root, private, _set_up(private, inside))
        except OSError as failure:
            raise SyncFailed(f"The repository cannot be worked with: {failure.strerror}.") from None
        finally:
            shutil.rmtree(private, ignore_errors=True)

    def blob_id(self, content: str) -> str:
        """The name that git has for a file with this content."""
        data = content.encode()
        kind = hashlib.sha256 if self._one("extensions.objectformat") == "sha256" else hashlib.sha1
        return kind(b"blob %d\0" % len(data) + data).hexdigest()

    def remotes(self) -> list[str]:
        return [
            key[len("remote.") : -len(".url")]
            for key, values in self._config.items()
            if key.startswith("remote.") and key.endswith(".url") and values[0].strip()
        ]

    def tip(self, remote: str, ref: str) -> str | None:
        """The commit that a remote has at a ref; None where it has none."""
        listed = self._run(["ls-remote", *self._beside(remote, "upload-pack"), "--", self._url(remote), ref]).decode()
        found = listed.split()[:1]
        return found[0] if found and _SHA.fullmatch(found[0]) else None

    def fetch(self, remote: str, ref: str, into: str) -> str | None:
        """The commit that a remote had at a ref, which is here now."""
        alone = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance")
        beside = self._beside(remote, "upload-pack")
        for _ in range(MOST_TRIES):
            done = self._try(["fetch", *alone, *beside, "--", self._url(remote), f"+{ref}:{into}"])
            if done.returncode == 0:
                return self.commit(into)
            # Another process of this clone fetches at the same moment, and has the ref.
            if b"cannot lock ref" not in done.stderr:
                break
        raise _failed("fetch", done)

    def push(self, remote: str, commit: str, ref: str, expected: str | None) -> bool:
        """Whether the remote accepted it; not if another clone has pushed since we looked."""
        alone = ("--quiet", "--no-verify", "--no-signed", "--no-recurse-submodules", "--no-follow-tags")
        lease = f"--force-with-lease={ref}:{expected or ''}"
        where = self._beside(remote, "receive-pack", push=True)
        done = self._try(["push", *alone, lease, *where, "--", self._url(remote, push=True), f"{commit}:{ref}"])
        if done.returncode == 0:
            return True
        if _OTHERS_FIRST.search(done.stderr):
            return False
        raise _failed("push", done)

    def _one(self, key: str) -> str | None:
        return next(iter(self._config.get(key, ())), None)

    def _url(self, remote: str, *, push: bool = False) -> str:
        url = (self._one(f"remote.{remote}.pushurl") if push else None) or self._one(f"remote.{remote}.url")
        assert url is not None
        return url

    def _beside(self, remote: str, program: str, *, push: bool = False) -> list[str]:
        url = self._url(remote, push=push)
        if not url.startswith("file://") and not git_project.is_path(url):
            return []
        return [f"--{program}={_BESIDE.format(program=program)}"]

    def commit(self, ref: str) -> str | None:
        done = self._try(["rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"])
        found = done.stdout.decode(errors="replace").strip()
        return found if done.returncode == 0 and _SHA.fullmatch(found) else None

    def follows(self, later: str | None, earlier: str | None) -> bool:
        """Whether a commit is among those that another was built on; not where this repository does not know it."""
        if later is None or earlier is None:
            return False
        return self._try(["merge-base", "--is-ancestor", earlier, later]).returncode == 0

    def listing(self, commit: str, folders: Sequence[str], names: re.Pattern[str]) -> GitListing:
        """What is in some folders of a commit under names that can be ours. Others can push anything there: what is no
        plain file or is too long is left out, and mentioned."""
        listed = self._bounded(["ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", *folders], LONGEST_LIST)
        found: list[_Entry] = []
        for line in listed.decode(errors="replace").split("\0"):
            about, tab, path = line.partition("\t")
            if tab:
                mode, _, sha, size = (*about.split(), "", "", "", "")[:4]
                found.append(_Entry(path, mode, sha, size))
        return _sorted_out(found, names)

    def changed(self, before: str, after: str, folders: Sequence[str], names: re.Pattern[str]) -> GitListing:
        """The same for what is different in another commit. Raises SyncFailed where git has forgotten one of them."""
        words = ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", before, after, "--", *folders]
        said = self._bounded(words, LONGEST_LIST).decode(errors="replace").split("\0")
        # `:100644 100644 before after M`, and the path.
        pairs = [(about.split(), path) for about, path in zip(said[::2], said[1::2], strict=False)]
        kept = [(path, about[1], about[3]) for about, path in pairs if about[4:] != ["D"]]
        sizes = self._sizes(sha for _, mode, sha in kept if mode in _PLAIN)
        found = [_Entry(path, mode, sha, sizes.get(sha, "")) for path, mode, sha in kept]
        return _sorted_out(found, names)._replace(removed=[path for about, path in pairs if about[4:] == ["D"]])

    def _sizes(self, shas: Iterable[str]) -> dict[str, str]:
        asked = "".join(f"{sha}\n" for sha in shas).encode()
        said = self._run(["cat-file", "--batch-check=%(objectname) %(objectsize)"], stdin=asked) if asked else b""
        return dict(line.split(" ", 1) for line in said.decode().splitlines())

    def contents(self, blobs: Iterable[Blob]) -> dict[str, str]:
        """Those of these files that are there, as many as can be held."""
        room, shas = MAX_READ_BYTES, []
        for sha, size in blobs:
            if size <= room:
                room -= size
                shas.append(sha)
        said = self._run(["cat-file", "--batch"], stdin="".join(f"{sha}\n" for sha in shas).encode()) if shas else b""
        found: dict[str, str] = {}
        at = 0
        for sha in shas:
            end = said.index(b"\n", at)
            size_said = said[at:end].rpartition(b" ")[2]
            at = end + 1
            if size_said.isdigit():
                found[sha] = said[at : at + int(size_said)].decode(errors="replace")
                at += int(size_said) + 1
        return found

    def origins(self, tip: str, since: str | None, folder: str) -> dict[str, str]:
        """For the files that were changed in a folder since a commit: the commit that did it last, and whom git names
        as its author."""
        known = [f"^{since}"] if self.follows(tip, since) else []
        words = ["log", "--first-parent", "-m", "--root", "--no-renames", "--no-show-signature", "--name-only", "-z"]
        said = self._bounded([*words, "--format=%x01%H %an <%ae>", tip, *known, "--", f"{folder}/"], LONGEST_LIST)
        found: dict[str, str] = {}
        for one in said.decode(errors="replace").split("\x01")[1:]:
            head, *paths = one.split("\0")
            sha, _, author = head.partition(" ")
            for path in paths:
                found.setdefault(path.strip("\n"), f"{author} {sha[:12]}")
        return found

    def write(self, changes: Mapping[str, str | None], message: str, parent: str | None, ref: str) -> str:
        """A commit on top of another with some files changed, None for those that go; it is at the ref when this
        returns. Whatever else is there stays as it is."""
        lines: list[bytes] = [b"commit %s\n" % ref.encode(), b"committer %s\n" % self._committer()]
        lines += [_data(message.encode())]
        if parent is not None:
            lines.append(b"from %s\n" % parent.encode())
        for path, content in sorted(changes.items()):
            if not _SPEAKABLE.fullmatch(path):
                # A line break in it would begin another command.
                raise SyncFailed(f"{path[:80]!r} cannot be the name of a file here.")
            if content is None:
                lines.append(b"D %s\n" % path.encode())
            else:
                lines += [b"M 100644 inline %s\n" % path.encode(), _data(content.encode())]
        lines.append(b"done\n")
        return self._imported(lines, ref)

    def alone(self, commit: str, message: str, ref: str) -> str:
        """The same files in a commit without a past: what is gone from them is in no commit any more."""
        tree = self._run(["rev-parse", "--verify", f"{commit}^{{tree}}"]).strip()
        lines = [b"commit %s\n" % ref.encode(), b"committer %s\n" % self._committer(), _data(message.encode())]
        lines += [b"deleteall\n", b'M 040000 %s ""\n' % tree, b"done\n"]
        return self._imported(lines, ref)

    def _imported(self, lines: Sequence[bytes], ref: str) -> str:
        self._run(["fast-import", "--quiet", "--done", "--force"], stdin=b"".join(lines))
        made = self.commit(ref)
        if made is None:
            raise SyncFailed("git wrote no commit.")
        return made

    def forget(self, ref: str) -> None:
        self._try(["update-ref", "-d", ref])

    def set(self, ref: str, commit: str) -> None:
        self._run(["update-ref", ref, commit])

    def _committer(self) -> bytes:
        """As git would have it, or a name of our own where git has none."""
        done = self._try(["var", "GIT_COMMITTER_IDENT"])
        said = done.stdout.strip()
        if done.returncode == 0 and said and b"\n" not in said:
            return said
        return b"%s %d +0000" % (_WHO, time.time())

    def _run(self, words: Sequence[str], stdin: bytes = b"") -> bytes:
        done = self._try(words, stdin)
        if done.returncode != 0:
            raise _failed(words[0], done)
        return done.stdout

    def _bounded(self, words: Sequence[str], most: int) -> bytes:
        """What a command says, of which there may be no end."""
        with subprocess.Popen(
            self._command(words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_surroundings(self._private)
        ) as process:
            late = threading.Timer(GIT_SECONDS, process.kill)
            late.start()
            try:
                assert process.stdout is not None
                said = process.stdout.read(most + 1)
                if len(said) > most:
                    process.kill()
                    raise SyncFailed("There is too much on the other side to be read: it holds more than memories.")
                status = process.wait()
            finally:
                late.cancel()
        if status != 0:
            raise SyncFailed(f"git {words[0]} failed.")
        return said

    def _command(self, words: Sequence[str]) -> list[str]:
        return ["git", "-C", str(self.root), *words]

    def _try(self, words: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return _git(self._command(words), stdin, self._private)


def _git(command: Sequence[str], stdin: bytes, private: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, timeout=GIT_SECONDS, env=_surroundings(private), check=False
        )
    except FileNotFoundError:
        raise SyncFailed("git is not installed here.") from None
    except subprocess.TimeoutExpired:
        late = f"git did not finish within {GIT_SECONDS:g} s. Is the remote reachable?"
        raise SyncFailed(late, retryable=True) from None


def _set_up(private: Path, inside: Path) -> dict[str, list[str]]:
    """Make the directory that git works in; the repository's own configuration, as it is read and not obeyed."""
    (private / "HEAD").write_text("ref: refs/heads/none\n")
    (private / "config").write_text(_OURS)
    for name in _SHARED:
        if name in ("objects", "refs", "packed-refs") or (inside / name).exists():
            (private / name).symlink_to(inside.resolve() / name)
    listed = ["git", "-C", str(private), "config", "--file", str(inside / "config"), "--no-includes", "--list", "-z"]
    done = _git(listed, b"", private)
    if done.returncode != 0:
        raise _failed("config", done)
    said: dict[str, list[str]] = {}
    for entry in done.stdout.decode(errors="replace").split("\0"):
        key, _, value = entry.partition("\n")
        said.setdefault(key, []).append(value)
    kept = [(key, value) for key, values in said.items() if _HARMLESS.fullmatch(key) for value in values]
    (private / "config").write_text("".join(_setting(key, value) for key, value in kept) + _OURS)
    return said


def _setting(key: str, value: str) -> str:
    section, _, rest = key.partition(".")
    within, _, name = rest.rpartition(".")
    head = f"{section} {_quoted(within)}" if within else section
    return f"[{head}]\n\t{name} = {_quoted(value)}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _sweep(inside: Path) -> None:
    """Remove what processes that were killed have left."""
    for left in inside.glob(f"{_PRIVATE}*"):
        if time.time() - left.lstat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _surroundings(private: Path) -> dict[str, str]:
    """Without the variables that a hook of another repository sets: git would take that for the one that is meant."""
    ours = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    # There is no one to be asked for a password.
    ours |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "LC_ALL": "C"}
    ours |= {"GIT_DIR": str(private), "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}
    ours.setdefault("GIT_ALLOW_PROTOCOL", _PROTOCOLS)
    ours.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    return ours


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


# What git says when something is in the way that may be gone in a minute; none of the rest will be.
_PASSING = re.compile(
    r"could not resolve|couldn't resolve|temporary failure|timed? ?out|connection (was )?(refused|reset|closed)|refused"
    r"|failed to connect|couldn't connect|unreachable|no route to host|early eof|hung up unexpectedly"
    r"|unexpected disconnect|rpc failed|error: (429|5\d\d)|returned error: (429|5\d\d)|cannot lock ref|try again",
    re.IGNORECASE,
)
# What was pushed meanwhile, as our git says it, and as the other end does.
_OTHERS_FIRST = re.compile(
    rb"stale info|fetch first|! \[rejected\]|cannot lock ref|incorrect old value|reference already exists"
)
# A rule or a hook there: `! [remote rejected] … (protected branch hook declined)`
_REJECTED = re.compile(r"! \[remote rejected\].*\(([^()]{1,200})\)")
# Its words for what has to be put right first, and ours: it says them in several lines, with addresses in them.
_LASTING = (
    (
        re.compile(r"does not appear to be a git repository|repository .*not found|does not exist|error: 404", re.I),
        "there is no repository at the address of this remote",
    ),
    (
        re.compile(
            r"authentication failed|could not read (username|password)|permission denied|access denied|not allowed"
            r"|invalid username|error: 40[13]|host key verification",
            re.I,
        ),
        "the remote does not let us in",
    ),
)


def _failed(what: str, done: subprocess.CompletedProcess[bytes]) -> SyncFailed:
    """git's own words, without addresses, which may hold passwords, and without paths."""
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    said = "\n".join(lines)
    if what not in _REMOTE:
        return SyncFailed(f"git {what} failed: {_told(lines)}")
    lasting = next((ours for theirs, ours in _LASTING if theirs.search(said)), None)
    passing = lasting is None and _PASSING.search(said) is not None
    if rejected := _REJECTED.search(said):
        lasting, passing = f"the remote refuses it ({_without_paths(rejected[1])})", False
    why = f"{lasting}." if lasting is not None else _told(lines)
    advice = "Try again later" if passing else "That has to be put right before the next sync"
    return SyncFailed(
        f"git {what} failed: {why} {advice}. Nothing is lost: what is here goes along then.", retryable=passing
    )


def _told(lines: Sequence[str]) -> str:
    """The first of git's lines that says what went wrong: the later ones only say that it did."""
    said = next((line for line in lines if line.startswith(("fatal:", "error:", "ssh:"))), None)
    said = said or (lines[0] if lines else "it did not say why")
    return _without_paths(said)[:200].rstrip(".") + "."


def _without_paths(said: str) -> str:
    return re.sub(r"\S*[/\\]\S*", "…", said)
