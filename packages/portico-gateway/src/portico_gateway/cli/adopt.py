"""`portico adopt`: make the hosts on this machine run their servers through the hub, and undo it.

The files belong to other programs, which write them too. A backup beside each file has its exact bytes, and its name
is derived from the file's, so that `--undo` needs no other record.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from portico.cli.files import create_file
from portico.cli.install import CLIENT_CONFIGS, MAX_FILE_BYTES, ClientConfigFile, format_difference, portico_command
from portico.cli.jsonc import InvalidJsonc, read, set_value
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_control
from portico.protocol.errors import UsageError

CLIENTS = ("claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "zed")
# Beside the file of the host, which may be on another file system than the hub.
# The digest of the adopted file, by which `--undo` recognises later changes. Not a copy: the file may have secrets.
BACKUP_SUFFIX, DIGEST_SUFFIX = ".portico-adopt.bak", ".portico-adopt.sha256"
_BYTE_ORDER_MARK = "\ufeff"


def run(words: list[str]) -> int:
    arguments = parser_for("adopt").parse(words)
    for client in arguments.clients:
        if client not in CLIENTS:
            raise UsageError(f"unknown client {client!r} (expected one of {', '.join(CLIENTS)})")
    status = 0
    is_adopted = False
    for client in arguments.clients or CLIENTS:
        config_file = CLIENT_CONFIGS[client].get(arguments.scope)
        if config_file is None:
            if arguments.clients:
                raise UsageError(f"{client} has no configuration per project")
            continue
        # Follow a symbolic link: users store these files elsewhere, and replacing the link would disconnect them.
        path = Path(os.path.realpath(config_file.path()))
        if not path.exists():
            continue
        is_adopted = True
        try:
            (_undo if arguments.undo else _adopt)(client, config_file, path, arguments)
        except UsageError as reason:
            print(f"portico: {client}: {escape_control(str(reason))}", file=sys.stderr)
            status = 1
    if not is_adopted:
        print("No configuration was found.")
    elif not arguments.write:
        print("Nothing was written; use --write to apply the changes.")
    return status


def _print(text: str) -> None:
    # The configuration of a project comes with its repository.
    print(escape_control(text))


# Adopting


def _adopt(client: str, config_file: ClientConfigFile, path: Path, arguments: argparse.Namespace) -> None:
    before = _read(path)
    text = before.decode("utf-8-sig")
    mark = _BYTE_ORDER_MARK if before.startswith(_BYTE_ORDER_MARK.encode()) else ""
    after, names = text, []
    try:
        for table, name, entry in _entries(read(text).value, config_file.key):
            if arguments.server and name not in arguments.server:
                continue
            members = _adopted_members(name, entry, shared=arguments.scope == "project")
            # Member by member, so that comments and other members of the entry stay as they are.
            for member, value in members.items():
                after = set_value(after, (*table, name, *member), value)
            if members:
                names.append(name)
    except InvalidJsonc as mistake:
        raise UsageError(f"{path}, {mistake}; the file was not changed") from None
    if not names:
        print(f"{client}: nothing to change in {path}")
        return
    result = (mark + after).encode()
    _print(format_difference(path, text, after))
    if arguments.write:
        _replace(path, before, result)
        verb = "runs" if len(names) == 1 else "run"
        _print(f"{client}: {', '.join(names)} now {verb} through the hub; the old file is {path.name}{BACKUP_SUFFIX}")


def _entries(document: Any, key: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Iterate over the servers of a file: the path of their table, the name and the entry.

    Claude Code stores the servers that a user added in a project in the same file, below `projects`.
    """
    if not isinstance(document, dict):
        return
    projects = document.get("projects")
    tables: list[tuple[tuple[str, ...], Any]] = [((key,), document.get(key))]
    if isinstance(projects, dict):
        tables += [
            (("projects", path, key), item.get(key)) for path, item in projects.items() if isinstance(item, dict)
        ]
    for table, servers in tables:
        if isinstance(servers, dict):
            yield from ((table, name, entry) for name, entry in servers.items())


def _adopted_members(name: str, entry: Any, *, shared: bool) -> dict[tuple[str, ...], Any]:
    """Return the members of an entry to set; empty for an entry that stays as it is."""
    # The bridge would read such a name as an option.
    if not isinstance(entry, dict) or not name or name.startswith("-"):
        return {}
    # Zed had the command in a separate object before it adopted the common form.
    prefix, inner = (("command",), entry["command"]) if isinstance(entry.get("command"), dict) else ((), entry)
    program, args = ("path" if prefix else "command"), inner.get("args") or []
    command = inner.get(program)
    if not isinstance(command, str) or not isinstance(args, list) or not all(isinstance(item, str) for item in args):
        return {}
    if (Path(command).stem == "portico" and args[:1] == ["connect"]) or args[:3] == ["-m", "portico", "connect"]:
        return {}  # adopted before
    variables = [word for variable in inner.get("env") or {} for word in ("--env", variable)]
    # The host starts the bridge in this directory, too; named here, it is part of the server's configuration.
    directory = ["--cwd", entry["cwd"]] if isinstance(entry.get("cwd"), str) else []
    first, *rest = ["portico"] if shared else portico_command()
    bridge = [*rest, "connect", name, *variables, *directory, "--", command, *args]
    return {(*prefix, program): first, (*prefix, "args"): bridge}


# Undoing


def _undo(client: str, config_file: ClientConfigFile, path: Path, arguments: argparse.Namespace) -> None:
    backup, digest = (path.with_name(path.name + suffix) for suffix in (BACKUP_SUFFIX, DIGEST_SUFFIX))
    if not backup.exists():
        print(f"{client}: {path} was not adopted")
        return
    current, original = _read(path), _read(backup)
    if not _matches(digest, current):
        raise UsageError(
            f"{path} was changed after it was adopted; restoring it would lose the changes; see {backup.name}"
        )
    _print(format_difference(path, current.decode("utf-8-sig"), original.decode("utf-8-sig")))
    if arguments.write:
        _write(path, current, original)
        backup.unlink()
        digest.unlink()
        print(f"{client}: {path} is as it was before")


# Files


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        data.decode("utf-8")
    except OSError as failure:
        raise UsageError(f"cannot read {path}: {failure.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not UTF-8; it was not changed") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path} exceeds {MAX_FILE_BYTES} bytes")
    return data


def _replace(path: Path, before: bytes, after: bytes) -> None:
    """Write a file, with a backup of its first version and the digest of its new one."""
    backup, digest = (path.with_name(path.name + suffix) for suffix in (BACKUP_SUFFIX, DIGEST_SUFFIX))
    mode = path.stat().st_mode & 0o777
    if backup.exists() and not _matches(digest, before):
        raise UsageError(
            f"{backup.name} exists, but {path} was changed since; remove the backup if you no longer need it"
        )
    # Adopted again, for example with a new server: the backup stays the file without the hub.
    if not backup.exists():
        _create(backup, before, mode)
    digest.unlink(missing_ok=True)
    _create(digest, sha256(after).hexdigest().encode(), mode)
    _write(path, before, after)


def _matches(digest: Path, data: bytes) -> bool:
    return digest.exists() and _read(digest) == sha256(data).hexdigest().encode()


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        create_file(str(path), data.decode(), mode)
    except OSError as failure:
        raise UsageError(f"cannot write {path}: {failure.strerror}") from None


def _write(path: Path, before: bytes, after: bytes) -> None:
    """Replace a file atomically, unless it was changed since it was read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        mode = path.stat().st_mode & 0o777
        create_file(str(temporary), after.decode(), mode)
        # The umask must not make the file less accessible than it was.
        os.chmod(temporary, mode)
        if _read(path) != before:
            raise UsageError(f"{path} was changed by another program and was not overwritten; try again")
        os.replace(temporary, path)
    except OSError as failure:
        raise UsageError(f"cannot write {path}: {failure.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
