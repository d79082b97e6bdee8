"""`portico tokens add|list|remove|revoke-user`."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote

from portico.auth.verifiers.token_file import TokenEntry, generate_token, hash_token, load_token_file
from portico.cli.files import write_atomic
from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.protocol.errors import UsageError
from portico.store.data_directory import find_store
from portico_gateway.credentials.revocation import revoke_principal

_ID = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
# RFC 6749, section 3.3: the characters of a scope token. Groups share the rule.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")


def run(words: list[str]) -> None:
    parser = parser_for("tokens")
    arguments = parser.parse(words)
    if arguments.action == "list":
        _list(arguments)
    elif arguments.id is None:
        parser.error(f"`{arguments.action}` needs an ID: the principal of the token")
    elif arguments.action == "add":
        _add(arguments)
    elif arguments.action == "revoke-user":
        _revoke(arguments)
    else:
        _remove(arguments)


def _add(arguments: argparse.Namespace) -> None:
    if not _ID.fullmatch(arguments.id):
        raise UsageError("the ID must have 1 to 200 characters on one line")
    for scope in (*arguments.scope, *arguments.group):
        if not _SCOPE.fullmatch(scope):
            raise UsageError(
                f"invalid scope or group {scope!r}: it must not contain spaces, quotation marks or backslashes"
            )
    if arguments.expires_in_days == 0:
        raise UsageError("--expires-in-days must be at least 1, got 0; without it the token does not expire")
    path = Path(arguments.file)
    rows = load_token_file(path) if path.exists() else []
    # Two valid tokens of one ID could not be told apart in the list, and `remove` would delete both.
    if any(row.id == arguments.id for row in rows):
        raise UsageError(f"{path} already has a token for {arguments.id!r}; remove it first")
    token = generate_token()
    ends = None
    if arguments.expires_in_days is not None:
        ends = (datetime.now(UTC) + timedelta(days=arguments.expires_in_days)).replace(microsecond=0)
    row = TokenEntry(
        arguments.id,
        hash_token(token),
        tuple(arguments.scope),
        tuple(arguments.group),
        arguments.all_scopes,
        expires=ends,
    )
    _write(path, [*rows, row])
    # The token alone on standard output, so that it can be piped; the explanation goes to standard error.
    print(token)
    print(
        f"This token is not shown again. {path} contains its hash.\n"
        f"  server: portico serve … --token-file {quote(str(path))}\n"
        "  client: the header `Authorization: Bearer TOKEN`, or PORTICO_CLIENT_TOKEN for `portico` commands",
        file=sys.stderr,
    )


def _list(arguments: argparse.Namespace) -> None:
    rows = [row for row in load_token_file(arguments.file) if arguments.id in (None, row.id)]
    printer = Printer(arguments.format)
    if printer.is_json:
        printer.json_list(
            {"id": row.id, "scopes": row.scopes, "groups": row.groups, "all_scopes": row.all, "expires": row.expires}
            for row in rows
        )
    else:
        table = [
            (row.id, "all scopes" if row.all else " ".join(row.scopes), " ".join(row.groups), str(row.expires or ""))
            for row in rows
        ]
        printer.print_table(("ID", "SCOPES", "GROUPS", "EXPIRES"), table)
    printer.flush()


def _remove(arguments: argparse.Namespace) -> None:
    rows = load_token_file(arguments.file)
    left = [row for row in rows if row.id != arguments.id]
    if len(left) == len(rows):
        raise UsageError(f"{arguments.file} has no token for {arguments.id!r}")
    _write(Path(arguments.file), left)


def _revoke(arguments: argparse.Namespace) -> None:
    store = find_store(arguments.store, arguments.data, "access")
    # Opening it would create an empty database, and hide that the path is wrong.
    if "://" not in store and not os.path.exists(store):
        raise UsageError(f"no user has logged in: {store} does not exist; pass --store for another database")
    result = asyncio.run(revoke_principal(store, arguments.id, arguments.upstream))
    if not result.grants and not result.upstreams:
        raise UsageError(f"{store} has no grants or accounts of {arguments.id!r}")
    if arguments.upstream is None:
        print(
            f"{result.grants} {'program' if result.grants == 1 else 'programs'} can no longer act for {arguments.id}."
        )
    for alias in result.upstreams:
        print(f"The account at {alias} is disconnected.")


def _write(path: Path, rows: list[TokenEntry]) -> None:
    """Write the token file atomically, so that a server never reads a partial file, and readable by its owner only."""
    text = "# Written by `portico tokens`: token hashes with their scopes and groups.\n" + "".join(map(_toml, rows))
    # Private from the first byte, although it contains hashes only: it also shows who has access to what.
    write_atomic(str(path), text, 0o600)


def _toml(row: TokenEntry) -> str:
    lines = ["", "[[token]]", f"id = {_quote_toml(row.id)}", f'hash = "{row.hash}"']
    for name, words in (("scopes", row.scopes), ("groups", row.groups)):
        if words:
            lines.append(f"{name} = [{', '.join(map(_quote_toml, words))}]")
    if row.all:
        lines.append("all = true")
    if row.expires is not None:
        lines.append(f"expires = {row.expires.isoformat()}")
    return "\n".join(lines) + "\n"


def _quote_toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
