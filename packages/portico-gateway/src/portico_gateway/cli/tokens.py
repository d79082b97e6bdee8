"""`portico tokens add|list|remove|revoke`"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote

from portico.auth.verifiers.token_file import TokenRow, hashed, new_token, read_rows
from portico.cli.output import plain_table
from portico.cli.specs import parser_for
from portico.protocol.errors import UsageError
from portico.store.data_directory import data_directory
from portico_gateway.credentials.revocation import revoke

_ID = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")


def run(words: list[str]) -> None:
    parser = parser_for("tokens")
    arguments = parser.read(words)
    if arguments.action == "list":
        _list(arguments)
    elif arguments.id is None:
        parser.error(f"`{arguments.action}` needs an ID: whose token it is")
    elif arguments.action == "add":
        _add(arguments)
    elif arguments.action == "revoke":
        _revoke(arguments)
    else:
        _remove(arguments)


def _add(arguments: argparse.Namespace) -> None:
    if not _ID.fullmatch(arguments.id):
        raise UsageError("an id has 1 to 200 characters, on one line")
    for scope in (*arguments.scope, *arguments.group):
        if not _SCOPE.fullmatch(scope):
            raise UsageError(f"{scope!r} is no scope: it has no blanks, quotation marks or backslashes")
    path = Path(arguments.file)
    rows = read_rows(path) if path.exists() else []
    if any(row.id == arguments.id for row in rows):
        raise UsageError(f"{path} has a token of {arguments.id!r} already; remove it first")
    token = new_token()
    ends = None
    if arguments.expires is not None:
        ends = (datetime.now(UTC) + timedelta(days=arguments.expires)).replace(microsecond=0)
    row = TokenRow(
        arguments.id, hashed(token), tuple(arguments.scope), tuple(arguments.group), arguments.all, expires=ends
    )
    _write(path, [*rows, row])
    print(token)
    print(
        f"This token is not shown again. {path} has its hash.\n"
        f"  server: portico serve … --auth-tokens {quote(str(path))}\n"
        "  client: the header `Authorization: Bearer TOKEN`, or PORTICO_CLIENT_TOKEN for `portico` commands",
        file=sys.stderr,
    )


def _list(arguments: argparse.Namespace) -> None:
    rows = read_rows(arguments.file)
    table = [
        (row.id, "everything" if row.all else " ".join(row.scopes), " ".join(row.groups), str(row.expires or ""))
        for row in rows
        if arguments.id in (None, row.id)
    ]
    sys.stdout.write(plain_table(("ID", "SCOPES", "GROUPS", "EXPIRES"), table))


def _remove(arguments: argparse.Namespace) -> None:
    rows = read_rows(arguments.file)
    left = [row for row in rows if row.id != arguments.id]
    if len(left) == len(rows):
        raise UsageError(f"{arguments.file} has no token of {arguments.id!r}")
    _write(Path(arguments.file), left)


def _revoke(arguments: argparse.Namespace) -> None:
    named = arguments.store or (None if arguments.data else os.environ.get("PORTICO_STORE"))
    store = os.path.expanduser(named) if named else str(data_directory(arguments.data) / "access.db")
    if "://" not in store and not os.path.exists(store):
        raise UsageError(f"no person has logged in: {store} is not there; --store names another database")
    found = asyncio.run(revoke(store, arguments.id, arguments.upstream))
    if not found.grants and not found.upstreams:
        raise UsageError(f"{store} has nothing of {arguments.id!r}")
    if arguments.upstream is None:
        print(f"{found.grants} {'program' if found.grants == 1 else 'programs'} can no longer act for {arguments.id}.")
    for alias in found.upstreams:
        print(f"The account at {alias} is disconnected.")


def _write(path: Path, rows: list[TokenRow]) -> None:
    """Beside it first, so that a server never reads half of it. It is for its owner alone."""
    text = "# Made by `portico tokens`: hashes of tokens, and what each may do.\n" + "".join(map(_toml, rows))
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(aside, path)
    except OSError as failure:
        raise UsageError(f"{path} cannot be written: {failure.strerror}") from None


def _toml(row: TokenRow) -> str:
    lines = ["", "[[token]]", f"id = {_quoted(row.id)}", f'hash = "{row.hash}"']
    for name, words in (("scopes", row.scopes), ("groups", row.groups)):
        if words:
            lines.append(f"{name} = [{', '.join(map(_quoted, words))}]")
    if row.all:
        lines.append("all = true")
    if row.expires is not None:
        lines.append(f"expires = {row.expires.isoformat()}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
