"""`portico doctor`: check the environment, the store, the port, client configurations and a server's health."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from portico import __version__
from portico.cli import environment
from portico.cli.connect import add_cli_hint, create_client, is_url, time_limit
from portico.cli.data_dir import DEFAULT_STORE_NAME
from portico.cli.files import read_text
from portico.cli.install import CLIENT_CONFIGS, EDITORS, MAX_FILE_BYTES, URL_MEMBERS, ClientConfigFile
from portico.cli.jsonc import InvalidJsonc
from portico.cli.logging import configure_logging
from portico.cli.output import Printer
from portico.cli.specs import parse_target_command
from portico.cli.terminal_text import plural, to_single_line
from portico.client.client import Client
from portico.plugins import find_plugin, install_command
from portico.protocol.errors import PorticoError, ToolError, UsageError
from portico.server.tasks import engine
from portico.store import migrations
from portico.store.data_directory import find_store, resolve_data_directory
from portico.store.database import Database, parse_database_url as parse_store
from portico.store.transaction import Transaction
from portico.transports import targets
from portico.transports.http_client.responses import MAX_REASON_CHARS

MIN_PYTHON_VERSION = (3, 11)
# Half of it is the busy timeout of the database, so that a lock is reported as such.
STORE_TIMEOUT_SECONDS = 5.0
MAX_NOISE_CHARS = 100
# The content types of a response to a request.
MESSAGE_TYPES = ("application/json", "text/event-stream")


class Extra(NamedTuple):
    """An optional dependency: the module that shows whether it is installed, and its purpose."""

    module: str
    purpose: str


# By the requirement that installs them. pip only warns about an extra that a package does not have.
EXTRAS = {
    "portico[schema]": Extra("jsonschema_rs", "contracts, output validation"),
    "portico[pydantic]": Extra("pydantic", "Pydantic models"),
    "portico[oauth]": Extra("joserfc", "JWT login"),
    "portico[audit]": Extra("cryptography", "signed audit"),
    "portico[cli]": Extra("rich", "coloured tables"),
    "portico[port]": Extra("libcst", "portico port"),
    "portico[testing]": Extra("pytest", "pytest plugin"),
    "portico[otel]": Extra("opentelemetry.sdk", "OpenTelemetry"),
    "portico[openapi]": Extra("yaml", "OpenAPI in YAML"),
    "portico[postgres]": Extra("psycopg", "PostgreSQL stores"),
    "portico[gateway]": Extra("portico_gateway", "gateways, rules, audit"),
    "portico[services]": Extra("portico_services", "memory, work items, system"),
    "portico[console]": Extra("portico_console", "console in a browser"),
    "portico-gateway[cel]": Extra("cel_expr_python", "CEL conditions in rules"),
    "portico-services[memory-vectors]": Extra("numpy", "vector search"),
    "portico-services[memory-vectors-fast]": Extra("ctranslate2", "faster vector search"),
    "portico-services[live]": Extra("eryx", "sandboxed Python"),
    "portico-services[system]": Extra("psutil", "processes, event logs"),
}
MARKS = {"ok": "✓", "note": "–", "warning": "!", "error": "✗"}
# The default port of `portico serve`.
DEFAULT_PORT = 8080

Level = Literal["ok", "note", "warning", "error"]


class HealthCheck(Struct):
    """Result of one check. `hint`: the remedy."""

    subject: str
    level: Level
    text: str
    hint: str = ""


def run(argv: list[str]) -> int:
    """Run `portico doctor`."""
    arguments = parse_target_command("doctor", argv)
    # Failures are results of checks here; logged as well, they would appear twice.
    configure_logging("critical")
    printer = Printer(arguments.format)
    checks = asyncio.run(_run_checks(arguments, printer))
    has_errors = any(item.level == "error" for item in checks)
    if printer.is_json:
        printer.print_json({"ok": not has_errors, "findings": checks})
    else:
        printer.print_table(["", "", ""], [[MARKS[item.level], item.subject, _describe(item)] for item in checks])
    printer.flush()
    return 1 if has_errors else 0


def _describe(item: HealthCheck) -> str:
    return f"{item.text}: {item.hint}" if item.hint else item.text


async def _run_checks(arguments: argparse.Namespace, printer: Printer) -> list[HealthCheck]:
    results = [
        _python(),
        *_packages(),
        _platform(),
        *_extras(),
        _data(arguments),
        await _store(arguments),
        _port(arguments.port),
        *_clients(),
    ]
    if arguments.target is not None:
        results += await _target(arguments, printer)
    return results


# Environment


def _python() -> HealthCheck:
    detail = f"{environment.describe_python()}, Portico {__version__}"
    if sys.version_info < MIN_PYTHON_VERSION:
        return HealthCheck("python", "error", detail, "Portico needs 3.11 or newer")
    return HealthCheck("python", "ok", detail)


def _packages() -> list[HealthCheck]:
    """Report the versions of the packages, which are released together, and of their dependencies."""
    packages = environment.package_versions()
    text = _join_versions(packages)
    dependencies = HealthCheck("dependencies", "ok", _join_versions(environment.dependency_versions()))
    if len(set(packages.values())) > 1:
        hint = "install the same version of all portico packages"
        return [HealthCheck("packages", "error", text, hint), dependencies]
    return [HealthCheck("packages", "ok", text), dependencies]


def _join_versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _platform() -> HealthCheck:
    details = (environment.describe_platform(), environment.describe_event_loop(), environment.describe_sqlite())
    return HealthCheck("platform", "ok", ", ".join(details))


def _extras() -> list[HealthCheck]:
    """Report the installed extras, and the others for each package: one text for all would not fit a table cell."""
    installed = [name for name, extra in EXTRAS.items() if _is_installed(extra.module)]
    checks = [HealthCheck("extras", "ok", f"installed: {', '.join(installed) or 'none'}")]
    missing: dict[str, list[str]] = {}
    for name, extra in EXTRAS.items():
        if name not in installed:
            missing.setdefault(name.partition("[")[0], []).append(f"{name} ({extra.purpose})")
    return [
        *checks,
        *(
            HealthCheck(f"extras, {package}", "note", f"not installed: {', '.join(names)}", _install_hint(package))
            for package, names in missing.items()
        ),
    ]


def _install_hint(package: str) -> str:
    """Return how to install the extras of a package that may itself be missing."""
    name = package.removeprefix("portico").lstrip("-")
    return install_command(name) if name and find_plugin(name) is None else "pip install 'NAME'"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    # For a dotted name `find_spec` imports the parent package, which may be the missing one.
    except ModuleNotFoundError:
        return False


def _data(arguments: argparse.Namespace) -> HealthCheck:
    folder = resolve_data_directory(arguments.data)
    # The directory may not exist yet: check the closest one that does.
    nearest = next(item for item in (folder, *folder.absolute().parents) if item.exists())
    if not nearest.is_dir():
        return HealthCheck("data", "error", f"cannot create {folder}: {nearest} is not a directory", "--data DIR")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return HealthCheck("data", "error", f"{folder}: {nearest} is not writable", "--data DIR, or PORTICO_DATA")
    return HealthCheck("data", "ok", str(folder) if folder.exists() else f"{folder} will be created")


# The store


async def _store(arguments: argparse.Namespace) -> HealthCheck:
    url = find_store(arguments.store, arguments.data, DEFAULT_STORE_NAME)
    display_url = _without_password(url)
    try:
        return _absent_store(url, display_url) or await _open_store(url, display_url)
    except TimeoutError:
        return HealthCheck("store", "error", f"{display_url} did not answer within {STORE_TIMEOUT_SECONDS:g} s")
    except PorticoError as failure:
        return HealthCheck("store", "error", f"{display_url}: {failure}")


async def _open_store(url: str, display_url: str) -> HealthCheck:
    async with asyncio.timeout(STORE_TIMEOUT_SECONDS), Database(url, timeout=STORE_TIMEOUT_SECONDS / 2) as store:
        await _try_writing(store)
        text, level = await _migrations(store)
        return HealthCheck("store", level, f"{display_url} is writable; {text}")


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    # Users paste this output into bug reports. The last @ counts: a password may contain one.
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if separator and "@" in rest else url


def _absent_store(url: str, display_url: str) -> HealthCheck | None:
    """Check a store file that does not exist. Opening it would create it."""
    kind, address = parse_store(url)
    if kind != "sqlite" or os.path.exists(address):
        return None
    folder = Path(address).absolute().parent
    if folder.exists() and not os.access(folder, os.W_OK):
        return HealthCheck("store", "error", f"cannot create {display_url}: its directory is not writable")
    return HealthCheck("store", "note", f"{display_url} does not exist yet; a server creates it")


class _CheckFailed(Exception):
    """Raised to roll back a test write."""


async def _try_writing(store: Database) -> None:
    # DDL in a transaction that is rolled back: the write is tested without leaving a trace.
    def attempt(tx: Transaction) -> None:
        tx.execute("create table portico_doctor (tried integer)")
        raise _CheckFailed

    try:
        await store.write(attempt)
    except _CheckFailed:
        pass


async def _migrations(store: Database) -> tuple[str, Level]:
    """Compare the store's applied migrations with the known ones."""
    try:
        # A store without the table is new, or belongs to another program.
        rows = await store.read(lambda tx: tx.fetch_all(_MigrationRow, "select history, number from portico_migration"))
    except PorticoError:
        return "it is empty", "ok"
    behind, ahead = 0, []
    for history, folder in _histories().items():
        applied = {row.number for row in rows if row.history == history}
        expected_numbers = {migration.number for migration in migrations.load_migrations(folder, store.engine)}
        if applied:
            behind += len(expected_numbers - applied)
            ahead += [history] if applied - expected_numbers else []
    if ahead:
        return f"the store was used by a newer Portico ({', '.join(ahead)}), so this version will reject it", "error"
    return (f"{behind} pending migrations, applied at the next start" if behind else "its tables are up to date"), "ok"


class _MigrationRow(Struct):
    history: str
    number: int


def _histories() -> dict[str, Path]:
    """Return the migration directories by history. The services are loaded only here, because they import much more."""
    # Without the plugin its tables cannot be compared: only the plugin knows its migrations.
    services = find_plugin("services")
    return {"tasks": engine.MIGRATIONS, **({} if services is None else services.store_histories())}


# The port


def _port(port: int | None) -> HealthCheck:
    port_number = DEFAULT_PORT if port is None else port
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port_number))
        except PermissionError:
            return HealthCheck("port", "error", f"this user may not bind port {port_number}", "--port above 1023")
        except OSError as failure:
            # The default port matters only to users of `serve` over HTTP; a port that was named is wanted.
            level: Level = "note" if port is None else "error"
            return HealthCheck(
                "port", level, f"127.0.0.1:{port_number} is in use ({failure.strerror})", "--port another"
            )
    return HealthCheck("port", "ok", f"127.0.0.1:{port_number} is free")


# Clients


def _clients() -> Iterator[HealthCheck]:
    for client, scopes in CLIENT_CONFIGS.items():
        for scope, config_file in scopes.items():
            path = config_file.path()
            if path.exists():
                yield _configuration(f"{client} ({scope})", path, config_file)


def _configuration(subject: str, path: Path, config_file: ClientConfigFile) -> HealthCheck:
    try:
        value = EDITORS[config_file.format].read(read_text(str(path), MAX_FILE_BYTES).removeprefix("\ufeff"))
    except InvalidJsonc as mistake:
        return HealthCheck(subject, "error", f"{path}, {mistake}")
    except UsageError as failure:
        return HealthCheck(subject, "error", str(failure))
    servers = value.get(config_file.key)
    if not isinstance(servers, dict) or not servers:
        return HealthCheck(subject, "note", f"{path} has no servers", "add one with `portico install`")
    problems = [f"{name}: {reason}" for name, entry in servers.items() if (reason := _entry_problem(entry))]
    if problems:
        return HealthCheck(subject, "error", f"{path}: {'; '.join(problems)}")
    return HealthCheck(subject, "ok", f"{path}: {', '.join(map(str, servers))}")


def _entry_problem(entry: Any) -> str:
    """Return why a client could not start a server, or an empty string."""
    if isinstance(entry, dict) and entry.get("type") == "builtin":
        return ""  # an extension that Goose brings along
    # Clients have different names for the same members: Goose `cmd` and `uri`, Windsurf `serverUrl`, Gemini `httpUrl`.
    members = [entry.get(name) for name in ("command", "cmd", *URL_MEMBERS)] if isinstance(entry, dict) else []
    if not any(isinstance(member, str) for member in members):
        return "it has neither a command nor a url"
    command = entry.get("command", entry.get("cmd"))
    # The client expands variables itself, so the result is unknown here.
    if command is None or "${" in command:
        return ""
    if shutil.which(os.path.expanduser(command)) is None:
        return f"command {command} not found"
    words = entry.get("args") or []
    files = [word for word in words if isinstance(word, str) and os.path.isabs(word) and ".py" in word]
    missing = [word for word in files if not os.path.exists(word.partition(".py")[0] + ".py")]
    return f"file {missing[0]} not found" if missing else ""


# A target


async def _target(arguments: argparse.Namespace, printer: Printer) -> list[HealthCheck]:
    target = arguments.target
    if targets.configuration_kind(target) != "several":
        return await _one_target("target", target, arguments, printer)
    # Each server is checked separately, so that there is one result per server.
    names = targets.server_names(target)
    checks = (_one_target(f"target, {name}", f"{target.strip()}:{name}", arguments, printer) for name in names)
    return [finding for findings in await asyncio.gather(*checks) for finding in findings]


async def _one_target(subject: str, target: Any, arguments: argparse.Namespace, printer: Printer) -> list[HealthCheck]:
    try:
        async with time_limit(arguments), create_client(target, arguments, printer) as client:
            tools = await client.list_tools()
            info = client.server_info
            name = info.label if info else "a server without a name"
            text = (
                f"{name} answers, protocol version {client.protocol_version}, {len(tools)} {plural('tool', len(tools))}"
            )
            missing = client.missing_servers.items()
            return [
                HealthCheck(subject, "ok", text),
                *(HealthCheck(f"{subject}, {name}", "error", reason) for name, reason in missing),
                *_check_stdout_noise(subject, client),
            ]
    except (PorticoError, ToolError) as failure:
        results = [HealthCheck(subject, "error", str(add_cli_hint(failure, arguments)))]
        # Only a server at a URL can require a login, and only a failure needs the additional requests.
        return [*results, *await _login(str(target), arguments)] if is_url(target) else results


def _check_stdout_noise(subject: str, client: Client) -> Iterator[HealthCheck]:
    """Report lines on standard output that are not messages: many clients disconnect because of them."""
    noise: list[str] = getattr(client.upstream.transport, "noise", [])
    if noise:
        text = f"prints non-protocol output to standard output: {to_single_line(noise[0], MAX_NOISE_CHARS)!r}"
        yield HealthCheck(f"{subject}, output", "error", text, "print it to standard error")


async def _login(url: str, arguments: argparse.Namespace) -> list[HealthCheck]:
    """Check each step of the OAuth discovery."""
    try:
        async with asyncio.timeout(arguments.timeout):
            from portico.transports.http_client import oauth_debugger

            return [_login_check(step) for step in await oauth_debugger.debug_discovery(url)]
    except TimeoutError:
        return [HealthCheck("login", "error", f"the login was not checked: no answer within {arguments.timeout:g} s")]


def _login_check(step: Any) -> HealthCheck:
    """Return the result for one step: without a token a server answers 200 or 401, metadata is answered with 200."""
    problem = "; ".join(finding.text for finding in step.findings if finding.level == "error")
    level: Level = "error" if problem else "ok"
    status = step.status or 0
    if not problem and step.name == "server" and status >= 400 and status != 401:
        level, problem = "error", to_single_line(step.reason, MAX_REASON_CHARS) or "expected 401"
    elif not problem and step.name == "server" and status == 200 and _content_type(step) not in MESSAGE_TYPES:
        level, problem = "error", f"expected a message, got {_content_type(step) or 'no content type'}"
    elif not problem and step.name != "server" and status != 200:
        level, problem = "note", "no document here"
    text = f"{step.request['method']} {step.request['url']}: {step.status or 'no answer'}, {problem or 'as expected'}"
    return HealthCheck(f"login, {step.name}", level, text)


def _content_type(step: Any) -> str:
    value = next((value for name, value in step.headers if name.lower() == "content-type"), "")
    return to_single_line(value.partition(";")[0].strip().lower(), MAX_NOISE_CHARS)
