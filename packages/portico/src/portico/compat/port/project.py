"""A file or a folder of them: what would change, and what is left to do."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from portico.compat.fastmcp.config_file import fastmcp_source
from portico.compat.port.codemod import ByHand, NotPython, rewrite
from portico.protocol.errors import UsageError

LONGEST_FILE = 2 * 1024 * 1024
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "build", "dist", "site-packages"})
_REQUIREMENT = re.compile(r"""^\s*["']?(fastmcp|mcp)\b\s*(\[[\w,\s-]*\])?\s*(["']|[<>=!~;,]|$)""")
_LISTS = ("pyproject.toml", "requirements*.txt", "setup.cfg", "*fastmcp.json")


class Ported(NamedTuple):
    """A file, as it was and as it would be."""

    path: Path
    before: bytes
    after: bytes
    findings: list[ByHand]

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        def lines(source: bytes) -> list[str]:
            return source.decode(errors="replace").splitlines(keepends=True)

        name = str(self.path).lstrip("/")
        made = difflib.unified_diff(lines(self.before), lines(self.after), f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made)

    def write(self) -> None:
        """In one step: who stops this half way has the old file or the new one."""
        mode = self.path.stat().st_mode
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.after)
            os.chmod(name, mode & 0o7777)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def port(path: Path) -> Iterator[Ported]:
    """Each file that is concerned. Nothing is written, and nothing is run."""
    if not path.exists():
        raise UsageError(f"there is no {path}")
    if path.suffix == ".json":
        source = fastmcp_source(str(path))
        if source is None:
            raise UsageError(f"{path}: expected a Python file, a folder, or a fastmcp.json with a `source`")
        yield from _port_list(path)
        path = Path(source.partition(".py:")[0].removesuffix(".py") + ".py")
    for one in _files(path):
        ported = _port_file(one)
        if ported.changed or ported.findings:
            yield ported
    for one in _dependency_lists(path):
        yield from _port_list(one)


def _port_list(path: Path) -> Iterator[Ported]:
    findings = list(_requirements(path))
    if findings:
        yield Ported(path, b"", b"", findings)


def _port_file(path: Path) -> Ported:
    try:
        size = path.stat().st_size
        source = path.read_bytes() if size <= LONGEST_FILE else b""
    except OSError as failure:
        return Ported(path, b"", b"", [ByHand(1, "the file", f"it cannot be read: {failure.strerror}")])
    if size > LONGEST_FILE:
        return Ported(path, b"", b"", [ByHand(1, "the file", f"it has {size:,} bytes, and was not looked at")])
    try:
        rewritten = rewrite(source)
    except NotPython as mistake:
        concerned = b"mcp" in source
        found = [ByHand(mistake.line, "the file", f"{mistake}; nothing in it was changed")] if concerned else []
        return Ported(path, source, source, found)
    return Ported(path, source, rewritten.source, rewritten.findings)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _PASSED_OVER
            and not name.startswith(".")
            and not (here / name).is_symlink()
            and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(names) if name.endswith(".py") and not (here / name).is_symlink())


def _dependency_lists(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for pattern in _LISTS:
            yield from sorted(one for one in path.glob(pattern) if one.is_file())


def _requirements(path: Path) -> Iterator[ByHand]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for number, line in enumerate(text[:LONGEST_FILE].splitlines(), 1):
        for part in re.split(r"[\[,](?=\s*[\"'])", line):
            found = _REQUIREMENT.match(part)
            if found is not None:
                yield ByHand(number, found[1], "put portico in its place, and keep it only while a file still needs it")
