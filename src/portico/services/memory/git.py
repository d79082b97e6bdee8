"""A repository, through git's plumbing: no working tree is touched, no shell is involved, and nothing of what it holds
is ever run."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from portico.services.memory.errors import SyncFailed

SECONDS = 120.0
LONGEST_FILE = 1_000_000
MOST_FILES = 200_000
_SHA = re.compile(r"[0-9a-f]{40,64}")
# Hooks are programs of the repository's owner; and a remote may name a command to run instead of an address.
_SAFELY = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "gc.auto=0", "-c", "core.fsmonitor=false")  # fmt: skip # noqa: E501
_WHO = b"Memory <memory@localhost>"


class Git:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def remotes(self) -> list[str]:
        return self._run(["remote"]).decode(errors="replace").split()

    def fetch(self, remote: str, ref: str, into: str) -> str | None:
        """The commit that a remote has at a ref; None where it has none. Only names of remotes get here."""
        if not self._run(["ls-remote", "--", remote, ref]).strip():
            return None
        self._run(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", remote, f"+{ref}:{into}"])
        return self.commit(into)

    def push(self, remote: str, commit: str, ref: str, expected: str | None) -> bool:
        """Whether it was taken: somebody else may have been there since we looked."""
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

    def files(self, commit: str, folder: str) -> dict[str, str]:
        """What is in a folder of a commit, by path. What is too long is left out."""
        listed = self._run(["ls-tree", "-r", "-l", "-z", commit, "--", f"{folder}/"]).decode(errors="replace")
        paths: dict[str, str] = {}
        for line in listed.split("\0")[:MOST_FILES]:
            about, _, path = line.partition("\t")
            parts = about.split()
            if len(parts) == 4 and parts[1] == "blob" and parts[3].isdigit() and int(parts[3]) <= LONGEST_FILE:
                paths[path] = parts[2]
        return self._contents(paths)

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

    def write(self, files: Mapping[str, str], message: str, parent: str | None, ref: str) -> str:
        """A commit with exactly these files, on top of another; it is at the ref when this returns."""
        lines: list[bytes] = [b"commit %s\n" % ref.encode(), b"committer %s\n" % self._committer()]
        lines += [_data(message.encode())]
        if parent is not None:
            lines.append(b"from %s\n" % parent.encode())
        lines.append(b"deleteall\n")
        for path in sorted(files):
            lines += [b"M 100644 inline %s\n" % path.encode(), _data(files[path].encode())]
        lines.append(b"done\n")
        self._run(["fast-import", "--quiet", "--done", "--force"], stdin=b"".join(lines))
        made = self.commit(ref)
        if made is None:
            raise SyncFailed("git wrote no commit.")
        return made

    def set(self, ref: str, commit: str) -> None:
        self._run(["update-ref", ref, commit])

    def _committer(self) -> bytes:
        """As git would have it, or a name of our own where nobody has told git one."""
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

    def _try(self, words: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["git", "-C", str(self.root), *_SAFELY, *words]
        # Nobody is there to be asked for a password.
        quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "LC_ALL": "C"}
        if "GIT_SSH_COMMAND" not in os.environ:
            quiet["GIT_SSH_COMMAND"] = "ssh -oBatchMode=yes"
        try:
            return subprocess.run(
                command, input=stdin, capture_output=True, timeout=SECONDS, env={**os.environ, **quiet}, check=False
            )
        except FileNotFoundError:
            raise SyncFailed("git is not installed here.") from None
        except subprocess.TimeoutExpired:
            raise SyncFailed(f"git {words[0]} did not finish within {SECONDS:g} s. Is the remote reachable?") from None


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def _failed(what: str, done: subprocess.CompletedProcess[bytes]) -> SyncFailed:
    """git's last words, without addresses, which may hold passwords, and without paths."""
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    words = re.sub(r"\S*[/\\]\S*", "…", lines[-1] if lines else "it did not say why")
    return SyncFailed(f"git {what} failed: {words[:200]}")
