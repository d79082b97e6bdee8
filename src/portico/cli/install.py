"""`portico install`: put a server into the configuration of a client.

Those files belong to other programs, which write them too. So nothing is written without --write; a copy of the old
file is put beside it; and a file that cannot be read stays as it is.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from portico.cli.files import read_text, write_new
from portico.cli.forms import complete_serving, parser_for
from portico.cli.jsonc import InvalidConfiguration, drop, put
from portico.cli.printable import printable, writing
from portico.wire.errors import UsageError

LONGEST_FILE = 64 * 1024 * 1024


class ConfigurationFile(NamedTuple):
    """Where a client looks for servers: a file, and the object in it that has them by name."""

    path: Callable[[], Path]
    key: str = "mcpServers"
    # Whether an entry must say that the server speaks stdio.
    says_type: bool = False


def _application(folder: str, file: str) -> Callable[[], Path]:
    """A file in the folder where applications of this system have their settings."""

    def path() -> Path:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / folder / file
        if sys.platform == "win32":
            return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / folder / file
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / folder / file

    return path


def _home(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _here(*parts: str) -> Callable[[], Path]:
    return lambda: Path.cwd().joinpath(*parts)


# By the client and by whom it is for: one user, or all who work on the project in this folder.
PLACES: dict[str, dict[str, ConfigurationFile]] = {
    "claude-desktop": {"user": ConfigurationFile(_application("Claude", "claude_desktop_config.json"))},
    "claude-code": {
        "user": ConfigurationFile(_home(".claude.json"), says_type=True),
        "project": ConfigurationFile(_here(".mcp.json"), says_type=True),
    },
    "cursor": {
        "user": ConfigurationFile(_home(".cursor", "mcp.json")),
        "project": ConfigurationFile(_here(".cursor", "mcp.json")),
    },
    "vscode": {
        "user": ConfigurationFile(_application("Code/User", "mcp.json"), key="servers", says_type=True),
        "project": ConfigurationFile(_here(".vscode", "mcp.json"), key="servers", says_type=True),
    },
}


def run(words: list[str]) -> None:
    options: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    arguments = parser_for("install").read(words)
    place = _place(arguments.client, arguments.scope)
    # A link is followed: people keep these files elsewhere, and would not want it replaced.
    path = Path(os.path.realpath(place.path()))
    before = _read(path)
    if arguments.remove:
        after = _edited(path, place, arguments.name, before, drop)
    else:
        block = entry(place, options, shared=arguments.scope == "project")
        after = _edited(path, place, arguments.name, before, lambda text, at: put(text, at, block))
    _finish(path, before, after, arguments)


def entry(place: ConfigurationFile, options: list[str], *, shared: bool) -> dict[str, Any]:
    """The entry that starts `portico serve`. Graphical programs do not have the PATH of a shell, so the whole path of
    the command is given, except in a file that is shared with the project."""
    command, *first = ["portico"] if shared else _ourselves()
    type = {"type": "stdio"} if place.says_type else {}
    return {**type, "command": command, "args": [*first, "serve", *_checked(options, shared=shared)]}


def _place(client: str, scope: str) -> ConfigurationFile:
    scopes = PLACES[client]
    if scope not in scopes:
        raise UsageError(f"{client} has no configuration for a {scope}; there is --scope {', '.join(scopes)}")
    return scopes[scope]


def _ourselves() -> list[str]:
    beside = Path(sys.executable).with_name("portico.exe" if sys.platform == "win32" else "portico")
    if beside.is_file():
        return [str(beside)]
    command = shutil.which("portico")
    return [os.path.abspath(command)] if command else [sys.executable, "-m", "portico"]


def _checked(options: list[str], *, shared: bool) -> list[str]:
    """The options of `portico serve`, refused now if `serve` would refuse them later. Paths are made absolute."""
    arguments = complete_serving(parser_for("serve").read(options))
    if arguments.transport != "stdio":
        raise UsageError(
            "a client starts this server itself, and speaks to it on stdio: leave --transport and its options out"
        )
    target = arguments.target
    if target is None or shared:
        return options
    file, colon, name = target.rpartition(":") if target.rpartition(":")[0].endswith(".py") else (target, "", "")
    if not file.endswith(".py"):
        return options
    if not Path(file).is_file():
        raise UsageError(f"there is no file {file!r}")
    # The client starts it in another folder.
    return [os.path.abspath(file) + colon + name if word == target else word for word in options]


def _read(path: Path) -> str:
    try:
        return read_text(str(path), LONGEST_FILE) if path.exists() else ""
    except UsageError as failure:
        raise UsageError(f"{failure}: it stays as it is") from None


def _edited(
    path: Path, place: ConfigurationFile, name: str, before: str, edit: Callable[[str, tuple[str, ...]], str]
) -> str:
    mark = "\ufeff" if before.startswith("\ufeff") else ""
    try:
        return mark + edit(before.removeprefix(mark), (place.key, name))
    except InvalidConfiguration as mistake:
        raise UsageError(f"{path}, {mistake}. It stays as it is") from None


def _finish(path: Path, before: str, after: str, arguments: argparse.Namespace) -> None:
    if before == after:
        _say(f"{_short(path)}: nothing to change")
        return
    _say(_difference(path, before, after))
    if not arguments.write:
        _say("Nothing has been written; --write does it.")
        return
    backup = _replace(path, before, after)
    _say(f"{_short(path)}: written" + (f"; the old one is {backup.name}" if backup else ""))
    _say("Restart the client, or have it reload its configuration.")


def _difference(path: Path, before: str, after: str) -> str:
    old, new = before.splitlines(), after.splitlines()
    names = (_short(path) if before else os.devnull, _short(path))
    return "\n".join(difflib.unified_diff(old, new, *names, lineterm=""))


def _short(path: Path) -> str:
    """The path relative to the current folder or to the home folder, if it is in one of them."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _replace(path: Path, before: str, after: str) -> Path | None:
    """Write the file whole or not at all, and only if it was not changed since it was read. The copy of the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Such files hold keys of other servers, so a copy is no more readable than the file.
        mode = path.stat().st_mode & 0o777 if before else 0o600
        write_new(str(part), after, mode)
        backup = _back_up(path, before, mode) if before else None
        if _read(path) != before:
            raise UsageError(f"{path} was changed by another program just now: it stays as it is. Try again")
        os.replace(part, path)
    except OSError as failure:
        raise UsageError(f"{path} cannot be written: {failure.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return backup


def _back_up(path: Path, before: str, mode: int) -> Path:
    """The path of a new copy beside the file."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for more in ("", *(f"-{number}" for number in range(2, 100))):
        backup = path.with_name(f"{path.name}.{stamp}{more}.bak")
        try:
            write_new(str(backup), before, mode)
            return backup
        except FileExistsError:
            continue
    raise UsageError(f"there are too many copies of {path} already: it stays as it is")


def _say(text: str) -> None:
    with writing():
        print("\n".join(printable(line) for line in text.split("\n")))
