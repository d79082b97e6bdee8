"""A repository, through git's plumbing: no working tree is touched, no shell is involved, and nothing of what it holds
is ever run."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from portico.services.memory.errors import SyncFailed

GIT_SECONDS = 120.0
# A memory has at most 200,000 characters, and a head. All of them together have to fit into our memory.
LONGEST_FILE = 1_000_000
MOST_BYTES = 200_000_000
LONGEST_LIST = 30_000_000
MOST_PROBLEMS = 50
MOST_TRIES = 5
_SHA = re.compile(r"[0-9a-f]{40,64}")
# Hooks are programs of the repository's owner; and a remote may name a command to run instead of an address.
_SAFELY = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0", "-c", "core.fsmonitor=false", "-c", "fetch.fsckObjects=true")  # fmt: skip # noqa: E501
_PLAIN = ("100644", "100755")
_SPEAKABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_REMOTE = ("ls-remote", "fetch", "push")
_LOCATIONS = """
    DIR WORK_TREE INDEX_FILE COMMON_DIR OBJECT_DIRECTORY ALTERNATE_OBJECT_DIRECTORIES NAMESPACE PREFIX QUARANTINE_PATH
"""
_ELSEWHERE = frozenset(f"GIT_{name}" for name in _LOCATIONS.split())
_WHO = b"Memory <memory@localhost>"


class GitFiles(NamedTuple):
    """Files by their path, and a word about each that was left out."""

    files: dict[str, str]
    problems: list[str]


class Git:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def remotes(self) -> list[str]:
        return self._run(["remote"]).decode(errors="replace").split()

    def fetch(self, remote: str, ref: str, into: str) -> str | None:
        """The commit that a remote has at a ref; None where it has none. Only names of remotes get here."""
        if not self._run(["ls-remote", "--", remote, ref]).strip():
            return None
        alone = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
        for _ in range(MOST_TRIES):
            done = self._try(["fetch", *alone, "--", remote, f"+{ref}:{into}"])
            if done.returncode == 0:
                return self.commit(into)
            # Another process of this clone fetches at the same moment, and has the ref.
            if b"cannot lock ref" not in done.stderr:
                break
        raise _failed("fetch", done)

    def push(self, remote: str, commit: str, ref: str, expected: str | None) -> bool:
        """Whether the remote accepted it; not if another clone has pushed since we looked."""
        lease = f"--force-with-lease={ref}:{expected or ''}"
        done = self._try(["push", "--quiet", "--no-verify", lease, "--", remote, f"{commit}:{ref}"])
        if done.returncode == 0:
            return True
        if b"stale info" in done.stderr or b"rejected" in done.stderr or b"fetch first" in done.stderr:
            return False
        raise _failed("push", done)

    def commit(self, ref: str) -> str | None:
        done = self._try(["rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"])
        found = done.stdout.decode(errors="replace").strip()
        return found if done.returncode == 0 and _SHA.fullmatch(found) else None

    def files(self, commit: str, folder: str, names: re.Pattern[str]) -> GitFiles:
        """What is in a folder of a commit under names that can be ours. Others can push anything there: what is no
        plain file, is too long or too much is left out, and mentioned."""
        listed = self._bounded(["ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", f"{folder}/"], LONGEST_LIST)
        blobs: dict[str, str] = {}
        problems: list[str] = []
        room = MOST_BYTES
        for line in listed.decode(errors="replace").split("\0"):
            about, tab, path = line.partition("\t")
            if not tab:
                continue
            mode, kind, sha, size = (*about.split(), "", "", "", "")[:4]
            fits = size.isdigit() and int(size) <= min(LONGEST_FILE, room)
            if mode in _PLAIN and kind == "blob" and fits and names.fullmatch(path):
                blobs[path] = sha
                room -= int(size)
            elif len(problems) < MOST_PROBLEMS:
                problems.append(
                    f"{path[:100]}: {'it is too long' if size.isdigit() and not fits else 'it is no memory'}"
                )
        return GitFiles(self._contents(blobs), problems)

    def _contents(self, blobs: Mapping[str, str]) -> dict[str, str]:
        if not blobs:
            return {}
        wanted = "".join(f"{sha}\n" for sha in blobs.values()).encode()
        said = self._run(["cat-file", "--batch"], stdin=wanted)
        found: dict[str, str] = {}
        at = 0
        for path in blobs:
            end = said.index(b"\n", at)
            size = int(said[at:end].rpartition(b" ")[2])
            found[path] = said[end + 1 : end + 1 + size].decode(errors="replace")
            at = end + size + 2
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
            self._command(words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_surroundings()
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
        return ["git", "-C", str(self.root), *_SAFELY, *words]

    def _try(self, words: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                self._command(words),
                input=stdin,
                capture_output=True,
                timeout=GIT_SECONDS,
                env=_surroundings(),
                check=False,
            )
        except FileNotFoundError:
            raise SyncFailed("git is not installed here.") from None
        except subprocess.TimeoutExpired:
            raise SyncFailed(
                f"git {words[0]} did not finish within {GIT_SECONDS:g} s. Is the remote reachable?"
            ) from None


def _surroundings() -> dict[str, str]:
    """Without the variables that a hook of another repository sets: git would take that for the one that is meant."""
    ours = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    # There is no one to be asked for a password.
    ours |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "LC_ALL": "C"}
    ours.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    return ours


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def _failed(what: str, done: subprocess.CompletedProcess[bytes]) -> SyncFailed:
    """git's last words, without addresses, which may hold passwords, and without paths."""
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    words = re.sub(r"\S*[/\\]\S*", "…", lines[-1] if lines else "it did not say why")[:200]
    trouble = SyncFailed(f"git {what} failed: {words}")
    if what in _REMOTE:
        trouble = SyncFailed(f"git {what} failed: {words} Nothing is lost: what is here goes along with the next sync.")
        trouble.retryable = True
    return trouble
