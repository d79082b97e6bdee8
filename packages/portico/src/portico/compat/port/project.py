"""Rewrites a file or a directory: the changes, and the steps that remain."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from portico.compat.fastmcp.config_file import fastmcp_source
from portico.compat.port.codemod import ManualStep, rewrite
from portico.protocol.errors import UsageError

MAX_FILE_BYTES = 2 * 1024 * 1024
_IGNORED_DIRECTORIES = frozenset({"node_modules", "__pycache__", "build", "dist", "site-packages"})
_REQUIREMENT = re.compile(r"""^\s*["']?(fastmcp|mcp)\b\s*(\[[\w,\s-]*\])?\s*(["']|[<>=!~;,]|$)""")
_LISTS = ("pyproject.toml", "requirements*.txt", "setup.cfg", "*fastmcp.json")


class FileRewrite(NamedTuple):
    """A file before and after rewriting."""

    path: Path
    before: bytes
    after: bytes
    findings: list[ManualStep]

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff."""

        def lines(source: bytes) -> list[str]:
            return source.decode(errors="replace").splitlines(keepends=True)

        name = str(self.path).lstrip("/")
        diff_lines = difflib.unified_diff(lines(self.before), lines(self.after), f"a/{name}", f"b/{name}")
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff_lines
        )

    def write(self) -> None:
        """Write the file atomically, so that an interruption leaves the old file or the new one."""
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


def port_project(path: Path) -> Iterator[FileRewrite]:
    """Yield each affected file. Nothing is written and no code is run."""
    if not path.exists():
        raise UsageError(f"{path} not found")
    if path.suffix == ".json":
        source = fastmcp_source(str(path))
        if source is None:
            raise UsageError(f"{path}: expected a Python file, a directory, or a fastmcp.json with a `source`")
        folder = path.parent
        yield from _port_list(path)
        path = Path(source.partition(".py:")[0].removesuffix(".py") + ".py")
        # A file of a foreign project must not choose which other files of this machine are rewritten.
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"`source` must be in {folder}, got {path}; to rewrite it, pass its own path")
    for item in _files(path):
        ported = _port_file(item)
        if ported.is_changed or ported.findings:
            yield ported
    for item in _dependency_lists(path):
        yield from _port_list(item)


def _port_list(path: Path) -> Iterator[FileRewrite]:
    findings = list(_requirements(path))
    if findings:
        yield FileRewrite(path, b"", b"", findings)


def _port_file(path: Path) -> FileRewrite:
    try:
        size = path.stat().st_size
        source = path.read_bytes() if size <= MAX_FILE_BYTES else b""
    except OSError as failure:
        return FileRewrite(path, b"", b"", [ManualStep(1, "the file", f"cannot be read: {failure.strerror}")])
    if size > MAX_FILE_BYTES:
        return FileRewrite(
            path,
            b"",
            b"",
            [ManualStep(1, "the file", (f"skipped: it has {size:,} bytes (maximum {MAX_FILE_BYTES:,})"))],
        )
    try:
        rewritten = rewrite(source)
    except SyntaxError as mistake:
        concerned = b"mcp" in source
        results = (
            [ManualStep(mistake.lineno or 0, "the file", f"{mistake.msg}; nothing in it was changed")]
            if concerned
            else []
        )
        return FileRewrite(path, source, source, results)
    return FileRewrite(path, source, rewritten.source, rewritten.findings)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        root = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _IGNORED_DIRECTORIES
            and not name.startswith(".")
            and not (root / name).is_symlink()
            and not (root / name / "pyvenv.cfg").exists()
        )
        yield from (root / name for name in sorted(names) if name.endswith(".py") and not (root / name).is_symlink())


def _dependency_lists(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for pattern in _LISTS:
            yield from sorted(item for item in path.glob(pattern) if item.is_file())


def _requirements(path: Path) -> Iterator[ManualStep]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for number, line in enumerate(text[:MAX_FILE_BYTES].splitlines(), 1):
        for part in re.split(r"[\[,](?=\s*[\"'])", line):
            match = _REQUIREMENT.match(part)
            if match is not None:
                yield ManualStep(
                    number, match[1], "replace it with portico, and keep it only while a file still needs it"
                )
