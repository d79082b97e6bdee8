"""`portico doctor`: what would keep a server from working here, found before it does: Python and the extras, the store,
the port, the configurations of clients, and of a target whether it answers, and where its login breaks."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import socket
import sys
from collections.abc import Awaitable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from msgspec import Struct

from portico import __version__
from portico._lazy import LazyModule
from portico.cli.connect import client_for, explained, is_url, time_limit
from portico.cli.data_dir import NAME
from portico.cli.files import read_text
from portico.cli.install import LONGEST_FILE, PLACES, ConfigurationFile
from portico.cli.jsonc import InvalidConfiguration, read
from portico.cli.logging import set_log_level
from portico.cli.output import Printer
from portico.cli.specs import parse
from portico.cli.terminal_text import one_line, plural
from portico.client.client import Client
from portico.plugins import find_plugin
from portico.protocol.errors import Error, ToolError, UsageError
from portico.server.tasks import engine
from portico.store import migrations
from portico.store.data_directory import data_directory
from portico.store.database import Database
from portico.store.database import parse as parse_store
from portico.store.transaction import Transaction
from portico.transports import targets
from portico.transports.http_client.responses import MAX_REASON_CHARS

if TYPE_CHECKING:
    from portico.transports.http_client import oauth_debugger
else:
    oauth_debugger = LazyModule("portico.transports.http_client.oauth_debugger")

LOWEST = (3, 11)
STORE_SECONDS = 5.0
MAX_NOISE_CHARS = 100


class Extra(NamedTuple):
    """An optional dependency: the module that shows whether it is installed, and what it is for."""

    module: str
    purpose: str


EXTRAS = {
    "schema": Extra("jsonschema_rs", "contracts, output validation"),
    "pydantic": Extra("pydantic", "Pydantic models"),
    "oauth": Extra("joserfc", "JWT login"),
    "audit": Extra("cryptography", "signed audit"),
    "cli": Extra("rich", "coloured tables"),
    "port": Extra("libcst", "portico port"),
    "testing": Extra("pytest", "pytest plugin"),
    "otel": Extra("opentelemetry.sdk", "OpenTelemetry"),
    "openapi": Extra("yaml", "OpenAPI in YAML"),
    "cel": Extra("cel_expr_python", "CEL conditions in rules"),
    "postgres": Extra("psycopg", "PostgreSQL stores"),
    "memory-vectors": Extra("numpy", "search by meaning"),
    "memory-vectors-fast": Extra("ctranslate2", "faster search by meaning"),
    "live": Extra("eryx", "sandboxed Python"),
    "system": Extra("psutil", "processes, event logs"),
}
MARKS = {"ok": "✓", "note": "–", "warning": "!", "error": "✗"}
# Of a server that was not told another.
USUAL_PORT = 8080

Level = Literal["ok", "note", "warning", "error"]
T = TypeVar("T")


class HealthFinding(Struct):
    """One thing that was looked at. `hint`: what to do about it."""

    about: str
    level: Level
    text: str
    hint: str = ""


def run(words: list[str]) -> int:
    arguments = parse("doctor", words)
    set_log_level("critical")
    printer = Printer(arguments.output)
    found = asyncio.run(_examine(arguments, printer))
    wrong = any(one.level == "error" for one in found)
    if printer.form == "json":
        printer.json({"ok": not wrong, "findings": found})
    else:
        printer.table(["", "", ""], [[MARKS[one.level], one.about, _words(one)] for one in found])
    printer.flush()
    return 1 if wrong else 0


def _words(one: HealthFinding) -> str:
    return f"{one.text}: {one.hint}" if one.hint else one.text


async def _examine(arguments: argparse.Namespace, printer: Printer) -> list[HealthFinding]:
    found = [_python(), _extras(), _data(arguments), await _store(arguments), _port(arguments.port), *_clients()]
    if arguments.target is not None:
        found += await _target(arguments, printer)
    return found


# Here


def _python() -> HealthFinding:
    said = f"{platform.python_implementation()} {platform.python_version()}, Portico {__version__}"
    if sys.version_info < LOWEST:
        return HealthFinding("python", "error", said, "Portico needs 3.11 or newer")
    return HealthFinding("python", "ok", said)


def _extras() -> HealthFinding:
    installed = [name for name, extra in EXTRAS.items() if _is_there(extra.module)]
    missing = [f"{name} ({extra.purpose})" for name, extra in EXTRAS.items() if name not in installed]
    text = f"installed: {', '.join(installed) or 'none'}"
    if not missing:
        return HealthFinding("extras", "ok", text)
    text = f"{text}; not installed: {', '.join(missing)}"
    return HealthFinding("extras", "note", text, "pip install 'portico[NAME]'")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _data(arguments: argparse.Namespace) -> HealthFinding:
    folder = data_directory(arguments.data)
    nearest = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not nearest.is_dir():
        return HealthFinding("data", "error", f"{folder} cannot be made: {nearest} is no folder", "--data DIR")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return HealthFinding(
            "data", "error", f"{folder}: {nearest} cannot be written to", "--data DIR, or PORTICO_DATA"
        )
    return HealthFinding("data", "ok", str(folder) if folder.exists() else f"{folder} will be made")


# The store


async def _store(arguments: argparse.Namespace) -> HealthFinding:
    said = arguments.store or os.environ.get("PORTICO_STORE") or str(data_directory(arguments.data) / f"{NAME}.db")
    url, shown = os.path.expanduser(said), _without_password(said)  # noqa: ASYNC240
    try:
        return _absent_store(url, shown) or await _open_store(url, shown)
    except TimeoutError:
        return HealthFinding("store", "error", f"{shown} did not answer within {STORE_SECONDS:g} s")
    except Error as failure:
        return HealthFinding("store", "error", f"{shown}: {failure}")


async def _open_store(url: str, shown: str) -> HealthFinding:
    async with asyncio.timeout(STORE_SECONDS), Database(url, patience=STORE_SECONDS / 2) as store:
        await _try_writing(store)
        text, level = await _migrations(store)
        return HealthFinding("store", level, f"{shown} opens and can be written; {text}")


def _without_password(url: str) -> str:
    scheme, there, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if there and "@" in rest else url


def _absent_store(url: str, shown: str) -> HealthFinding | None:
    """A file that is not there. Opening it would make it."""
    kind, address = parse_store(url)
    if kind != "sqlite" or os.path.exists(address):
        return None
    folder = Path(address).absolute().parent
    if folder.exists() and not os.access(folder, os.W_OK):
        return HealthFinding("store", "error", f"{shown} cannot be made: its folder cannot be written to")
    return HealthFinding("store", "note", f"{shown} is not there yet; a server makes it")


class _Undone(Exception):
    """Takes back what was tried."""


async def _try_writing(store: Database) -> None:
    def attempt(tx: Transaction) -> None:
        tx.run("create table portico_doctor (tried integer)")
        raise _Undone

    try:
        await store.write(attempt)
    except _Undone:
        pass


async def _migrations(store: Database) -> tuple[str, Level]:
    """What the store has seen of the migrations that we know."""
    try:
        rows = await store.read(lambda tx: tx.all(_MigrationRow, "select history, number from portico_migration"))
    except Error:
        return "it is empty", "ok"
    behind, ahead = 0, []
    for history, folder in _histories().items():
        applied = {row.number for row in rows if row.history == history}
        known = {one.number for one in migrations.load(folder, store.engine)}
        if applied:
            behind += len(known - applied)
            ahead += [history] if applied - known else []
    if ahead:
        return f"a newer Portico has used it ({', '.join(ahead)}): this one will refuse it", "error"
    return (f"{behind} migrations to come, at the next start" if behind else "its tables are up to date"), "ok"


class _MigrationRow(Struct):
    history: str
    number: int


def _histories() -> dict[str, Path]:
    """The services import more than a server of one's own has, so they are looked up here only."""
    services = find_plugin("services")
    return {"tasks": engine.MIGRATIONS, **({} if services is None else services.store_histories())}


# The port


def _port(port: int | None) -> HealthFinding:
    wanted = USUAL_PORT if port is None else port
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind(("127.0.0.1", wanted))
        except PermissionError:
            return HealthFinding("port", "error", f"{wanted} is not for this user", "--port above 1023")
        except OSError as failure:
            level: Level = "note" if port is None else "error"
            return HealthFinding("port", level, f"127.0.0.1:{wanted} is taken ({failure.strerror})", "--port another")
    return HealthFinding("port", "ok", f"127.0.0.1:{wanted} is free")


# Clients


def _clients() -> Iterator[HealthFinding]:
    for client, scopes in PLACES.items():
        for scope, place in scopes.items():
            path = place.path()
            if path.exists():
                yield _configuration(f"{client} ({scope})", path, place)


def _configuration(about: str, path: Path, place: ConfigurationFile) -> HealthFinding:
    try:
        value = read(read_text(str(path), LONGEST_FILE).removeprefix("\ufeff")).value
    except InvalidConfiguration as mistake:
        return HealthFinding(about, "error", f"{path}, {mistake}")
    except UsageError as failure:
        return HealthFinding(about, "error", str(failure))
    servers = value.get(place.key)
    if not isinstance(servers, dict) or not servers:
        return HealthFinding(about, "note", f"{path} has no server", "`portico install` puts one there")
    wrong = [f"{name}: {reason}" for name, entry in servers.items() if (reason := _wrong(entry))]
    if wrong:
        return HealthFinding(about, "error", f"{path}: {'; '.join(wrong)}")
    return HealthFinding(about, "ok", f"{path}: {', '.join(map(str, servers))}")


def _wrong(entry: Any) -> str:
    """What would keep a client from starting a server; nothing, if all is well."""
    if not isinstance(entry, dict) or not isinstance(entry.get("command", entry.get("url")), str):
        return "it has neither a command nor a url"
    command = entry.get("command")
    if command is None or "${" in command:
        return ""
    if shutil.which(os.path.expanduser(command)) is None:
        return f"there is no command {command}"
    words = entry.get("args") or []
    files = [word for word in words if isinstance(word, str) and os.path.isabs(word) and ".py" in word]
    lost = [word for word in files if not os.path.exists(word.partition(".py")[0] + ".py")]
    return f"there is no file {lost[0]}" if lost else ""


# A target


async def _target(arguments: argparse.Namespace, printer: Printer) -> list[HealthFinding]:
    target = arguments.target
    if targets.configuration_kind(target) != "several":
        return await _one_target("target", target, arguments, printer)
    # Each server is tried by itself, so that there is a finding for each.
    names = targets.server_names(target)
    each = (_one_target(f"target, {name}", f"{target.strip()}:{name}", arguments, printer) for name in names)
    return [finding for findings in await asyncio.gather(*each) for finding in findings]


async def _one_target(about: str, target: Any, arguments: argparse.Namespace, printer: Printer) -> list[HealthFinding]:
    try:
        async with time_limit(arguments), client_for(target, arguments, printer) as client:
            tools = await client.list_tools()
            info = client.server_info
            name = f"{info.name} {info.version}" if info else "a server without a name"
            text = f"{name} answers, protocol version {client.revision}, {len(tools)} {plural('tool', len(tools))}"
            missing = client.missing_servers.items()
            return [
                HealthFinding(about, "ok", text),
                *(HealthFinding(f"{about}, {name}", "error", reason) for name, reason in missing),
                *_noise(about, client),
            ]
    except (Error, ToolError) as failure:
        found = [HealthFinding(about, "error", str(explained(failure)))]
        return [*found, *await _login(str(target))] if is_url(target) else found


def _noise(about: str, client: Client) -> Iterator[HealthFinding]:
    """Report lines on standard output that are not messages: many clients disconnect there."""
    noise: list[str] = getattr(client.upstream.link, "noise", [])
    if noise:
        text = f"prints to standard output what is not a message: {one_line(noise[0], MAX_NOISE_CHARS)!r}"
        yield HealthFinding(f"{about}, output", "error", text, "print it to standard error")


async def _login(url: str) -> list[HealthFinding]:
    """Check each step that leads to a token."""
    return [_login_finding(step) for step in await _within(oauth_debugger.debug_discovery(url))]


def _login_finding(step: Any) -> HealthFinding:
    """Judge one response: without a token a server answers 200 or 401, and metadata is answered with 200."""
    wrong = "; ".join(one.text for one in step.findings if one.level == "error")
    level: Level = "error" if wrong else "ok"
    status = step.status or 0
    if not wrong and step.name == "server" and status >= 400 and status != 401:
        level, wrong = "error", one_line(step.reason, MAX_REASON_CHARS) or "expected 401"
    elif not wrong and step.name != "server" and status != 200:
        level, wrong = "note", "no document here"
    text = f"{step.request['method']} {step.request['url']}: {step.status or 'no answer'}, {wrong or 'as expected'}"
    return HealthFinding(f"login, {step.name}", level, text)


async def _within(steps: Awaitable[list[T]]) -> list[T]:
    try:
        async with asyncio.timeout(30):
            return await steps
    except TimeoutError:
        return []
