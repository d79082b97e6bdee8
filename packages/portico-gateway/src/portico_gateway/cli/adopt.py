"""`portico adopt`: make the hosts on this machine run their servers through the hub, and undo it.

The files belong to other programs, which write them too. A backup beside each file has its exact bytes, and its name
is derived from the file's, so that `--undo` needs no other record. If the host has written the file since, `--undo`
restores the entries one by one and leaves its other changes alone.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from portico.cli.files import create_file
from portico.cli.install import CLIENT_CONFIGS, MAX_FILE_BYTES, ClientConfigFile, format_difference, portico_command
from portico.cli.jsonc import InvalidJsonc, delete_value, read, set_value
from portico.cli.specs import parser_for
from portico.cli.terminal_text import escape_control
from portico.protocol.errors import UsageError
from portico_gateway.hub.bridge import InvalidArguments, parse_arguments

CLIENTS = ("claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "zed")
# Beside the file of the host, which may be on another file system than the hub.
# The digest of the adopted file, by which `--undo` recognises later changes. Not a copy: the file may have secrets.
BACKUP_SUFFIX, DIGEST_SUFFIX = ".portico-adopt.bak", ".portico-adopt.sha256"
_BYTE_ORDER_MARK = "\ufeff"
_ABSENT = object()


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
        _replace(path, before, result, config_file.key)
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
    if _bridge_arguments(command, args) is not None:
        return {}  # adopted before
    variables = [word for variable in inner.get("env") or {} for word in ("--env", variable)]
    # The host starts the bridge in this directory, too; named here, it is part of the server's configuration.
    directory = ["--cwd", entry["cwd"]] if isinstance(entry.get("cwd"), str) else []
    first, *rest = ["portico"] if shared else portico_command()
    bridge = [*rest, "connect", name, *variables, *directory, "--", command, *args]
    return {(*prefix, program): first, (*prefix, "args"): bridge}


def _bridge_arguments(command: str, args: list[str]) -> list[str] | None:
    """Return the arguments of `portico connect`, or None if the command is another one."""
    if Path(command).stem == "portico" and args[:1] == ["connect"]:
        return args[1:]
    return args[3:] if args[:3] == ["-m", "portico", "connect"] else None


# Undoing


def _undo(client: str, config_file: ClientConfigFile, path: Path, arguments: argparse.Namespace) -> None:
    backup, digest = _records_of(path)
    current = _read(path)
    original = _read(backup) if backup.exists() else None
    names: list[str] = []
    if original is not None and not arguments.server and _matches(digest, current):
        restored, is_complete = original, True
    else:
        try:
            restored, names, is_complete = _restore_entries(current, original, config_file.key, arguments.server)
        except InvalidJsonc as mistake:
            raise UsageError(f"{path}, {mistake}; the file was not changed") from None
        if not names:
            _print(f"{client}: nothing to restore in {path}")
            return
    _print(format_difference(path, current.decode("utf-8-sig"), restored.decode("utf-8-sig")))
    if arguments.write:
        _write(path, current, restored)
        if is_complete:
            for record in (backup, digest):
                record.unlink(missing_ok=True)
        if names:
            verb = "runs" if len(names) == 1 else "run"
            _print(f"{client}: {', '.join(names)} {verb} without the hub again; the rest of {path} is unchanged")
        else:
            print(f"{client}: {path} is as it was before")


def _restore_entries(
    current: bytes, original: bytes | None, key: str, servers: list[str] | None
) -> tuple[bytes, list[str], bool]:
    """Return a file without the hub, the restored servers, and whether none of the file is left.

    `original` is the file before it was adopted, if that is known. It has details that the arguments of the
    bridge lack, such as an empty list of arguments. Raises InvalidJsonc.
    """
    mark = _BYTE_ORDER_MARK.encode() if current.startswith(_BYTE_ORDER_MARK.encode()) else b""
    text, names, is_complete = current.decode("utf-8-sig"), [], True
    before: dict[tuple[str, ...], Any] = {}
    if original is not None:
        try:
            document = read(original.decode("utf-8-sig")).value
        except InvalidJsonc:
            document = None  # altered by a user; the entries themselves suffice
        before = {(*table, name): entry for table, name, entry in _entries(document, key)}
    for table, name, entry in _entries(read(text).value, key):
        original_command = _original_command(entry)
        if original_command is None:
            continue
        if servers and name not in servers:
            is_complete = False
            continue
        prefix, program, (command, *args) = original_command
        old = before.get((*table, name))
        inner = old.get(prefix[0]) if isinstance(old, dict) and prefix else old
        text = set_value(text, (*table, name, *prefix, program), command)
        value: Any = args
        if isinstance(inner, dict) and inner.get(program) == command and (inner.get("args") or []) == args:
            value = inner.get("args", _ABSENT)
        place = (*table, name, *prefix, "args")
        text = delete_value(text, place) if value is _ABSENT else set_value(text, place, value)
        names.append(name)
    return mark + text.encode(), names, is_complete


def _original_command(entry: Any) -> tuple[tuple[str, ...], str, list[str]] | None:
    """Return the path of an adopted entry's command, the name of its member, and the command without the hub."""
    if not isinstance(entry, dict):
        return None
    prefix, inner = (("command",), entry["command"]) if isinstance(entry.get("command"), dict) else ((), entry)
    program, args = ("path" if prefix else "command"), inner.get("args")
    command = inner.get(program)
    if not isinstance(command, str) or not isinstance(args, list) or not all(isinstance(item, str) for item in args):
        return None
    words = _bridge_arguments(command, args)
    if words is None:
        return None
    try:
        original = parse_arguments(words)[3]
    except InvalidArguments:
        return None
    return None if original is None else (prefix, program, original)


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


def _records_of(path: Path) -> tuple[Path, Path]:
    """Return the paths of a file's backup, and of the digest of its adopted version."""
    return path.with_name(path.name + BACKUP_SUFFIX), path.with_name(path.name + DIGEST_SUFFIX)


def _replace(path: Path, before: bytes, after: bytes, key: str) -> None:
    """Write a file, with a backup of its version without the hub and the digest of its new one."""
    backup, digest = _records_of(path)
    old = _read(backup) if backup.exists() else None
    # Adopted again, for example with a new server: the backup stays the file without the hub. If the host has written
    # the file in the meantime, the backup has that, too.
    if old is None or not _matches(digest, before):
        _install(backup, _restore_entries(before, old, key, None)[0], path)
    try:
        _write(path, before, after)
    except UsageError:
        if old is None:
            backup.unlink(missing_ok=True)
        else:
            _install(backup, old, path)
        raise
    _install(digest, sha256(after).hexdigest().encode(), path)


def _matches(digest: Path, data: bytes) -> bool:
    return digest.exists() and _read(digest) == sha256(data).hexdigest().encode()


def _write(path: Path, before: bytes, after: bytes) -> None:
    """Replace a file atomically, unless it was changed since it was read."""
    _install(path, after, path, expected=before)


def _install(path: Path, data: bytes, model: Path, expected: bytes | None = None) -> None:
    """Write a file atomically, with the access rights of `model`. It must have the `expected` bytes until then."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        about = model.stat()
        mode = stat.S_IMODE(about.st_mode)
        create_file(str(temporary), data.decode(), mode)
        # The umask must not make the file less accessible than it was.
        os.chmod(temporary, mode)
        if os.geteuid() == 0:
            # With sudo, the file must not become root's.
            os.chown(temporary, about.st_uid, about.st_gid)
        if expected is not None and _read(path) != expected:
            raise UsageError(f"{path} was changed by another program and was not overwritten; try again")
        os.replace(temporary, path)
    except OSError as failure:
        raise UsageError(f"cannot write {path}: {failure.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
