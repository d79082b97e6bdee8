"""`portico install`: add a server to a client's configuration.

The files belong to other programs, which write them too. Nothing is written without --write, a backup of the old file
is stored next to it, and an unreadable file is left unchanged.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from portico.auth.url_policy import is_loopback_name
from portico.cli import jsonc, toml_edit
from portico.cli.connection_errors import is_url, parse_environment, parse_headers
from portico.cli.files import create_file, read_text
from portico.cli.jsonc import InvalidJsonc
from portico.cli.specs import apply_serve_defaults, parse_serve, parser_for
from portico.cli.terminal_text import escape_control, report_write_errors
from portico.compat.fastmcp.config_file import fastmcp_source
from portico.protocol.errors import UsageError

# Claude Code stores its history in the same file, which grows to tens of megabytes.
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_SOURCE_BYTES = 2 * 1024 * 1024
MAX_NAME_CHARS = 64
GOOSE_TIMEOUT_SECONDS = 300

# The members that hold a URL in the files of the various clients.
URL_MEMBERS = ("url", "serverUrl", "httpUrl", "uri")
# An environment variable in a header, as written on the command line.
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class ClientConfigFile(NamedTuple):
    """A client's configuration file and the object in it that maps names to servers."""

    path: Callable[[], Path]
    key: str = "mcpServers"
    # Whether an entry has a `type`: "stdio" or "http".
    includes_type: bool = False
    format: str = "json"
    # The member that holds the URL of an HTTP server; None if the client only starts commands.
    url: str | None = "url"
    # How the client refers to an environment variable in a header; None if it cannot.
    variable: str | None = None


def _application(folder: str, file: str, windows: str = "") -> Callable[[], Path]:
    """Return the path of a file in the system's settings directory for applications."""

    def path() -> Path:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / folder / file
        if sys.platform == "win32":
            return _app_data() / (windows or folder) / file
        return _config_home() / folder / file

    return path


def _app_data() -> Path:
    return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _dot_config(folder: str, file: str, windows: str) -> Callable[[], Path]:
    """Return the path of a file that is below ~/.config on macOS, too."""
    return lambda: _app_data() / windows / file if sys.platform == "win32" else _config_home() / folder / file


def _home_path(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _project(*parts: str) -> Callable[[], Path]:
    return lambda: Path.cwd().joinpath(*parts)


def _codex_home() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"


_CLAUDE_CODE = ClientConfigFile(_home_path(".claude.json"), includes_type=True, variable="${%s}")
_CURSOR = ClientConfigFile(_home_path(".cursor", "mcp.json"), variable="${env:%s}")
_VSCODE = ClientConfigFile(
    _application("Code/User", "mcp.json"), key="servers", includes_type=True, variable="${env:%s}"
)
_ZED = ClientConfigFile(_dot_config("zed", "settings.json", "Zed"), key="context_servers")
_GEMINI = ClientConfigFile(_home_path(".gemini", "settings.json"), url="httpUrl", variable="${%s}")
_CODEX = ClientConfigFile(_codex_home, key="mcp_servers", format="toml", variable="%s")

# By client and scope: one user, or everyone who works on the project in this directory.
CLIENT_CONFIGS: dict[str, dict[str, ClientConfigFile]] = {
    "claude-desktop": {"user": ClientConfigFile(_application("Claude", "claude_desktop_config.json"), url=None)},
    "claude-code": {"user": _CLAUDE_CODE, "project": _CLAUDE_CODE._replace(path=_project(".mcp.json"))},
    "cursor": {"user": _CURSOR, "project": _CURSOR._replace(path=_project(".cursor", "mcp.json"))},
    "vscode": {"user": _VSCODE, "project": _VSCODE._replace(path=_project(".vscode", "mcp.json"))},
    "windsurf": {
        "user": ClientConfigFile(
            _home_path(".codeium", "windsurf", "mcp_config.json"), url="serverUrl", variable="${env:%s}"
        )
    },
    "zed": {"user": _ZED, "project": _ZED._replace(path=_project(".zed", "settings.json"))},
    "gemini": {"user": _GEMINI, "project": _GEMINI._replace(path=_project(".gemini", "settings.json"))},
    "codex": {"user": _CODEX, "project": _CODEX._replace(path=_project(".codex", "config.toml"))},
    "goose": {
        "user": ClientConfigFile(
            _dot_config("goose", "config.yaml", "Block/goose/config"), key="extensions", format="yaml", url="uri"
        )
    },
}
# Prints an entry in the format that most clients share, and changes no file.
JSON_CLIENT = "json"
_PLAIN = ClientConfigFile(_project("mcp.json"), variable="${%s}")


class Editor(NamedTuple):
    """Functions that read a file of one format, and add and remove an entry."""

    read: Callable[[str], dict[str, Any]]
    put: Callable[[str, Any, Any], str]
    drop: Callable[[str, Any], str]


EDITORS = {
    "json": Editor(lambda text: jsonc.read(text).value, jsonc.set_value, jsonc.delete_value),
    "toml": Editor(toml_edit.read_toml, toml_edit.put_toml, toml_edit.drop_toml),
    "yaml": Editor(toml_edit.read_yaml, toml_edit.put_yaml, toml_edit.drop_yaml),
}


def run(argv: list[str]) -> None:
    """Run `portico install`."""
    options: list[str] = []
    # Split before parsing: the words after -- are options of `serve`, and both commands may have one of the same name.
    if "--" in argv:
        at = argv.index("--")
        argv, options = argv[:at], argv[at + 1 :]
    arguments = parser_for("install").parse(argv)
    shared = arguments.scope == "project"
    name = arguments.name or default_name(options)
    if arguments.client == JSON_CLIENT:
        _print_entry(name, _entry_for(_PLAIN, name, options, arguments, shared=shared), arguments)
        return
    config_file = _config_file(arguments.client, arguments.scope)
    # Follow a symbolic link: users store these files elsewhere, and replacing the link would disconnect them.
    path = Path(os.path.realpath(config_file.path()))
    before = _read(path)
    editor = EDITORS[config_file.format]
    if arguments.remove:
        after = _edit(path, before, lambda text: editor.drop(text, (config_file.key, name)))
        if after == before:
            raise UsageError(f"{_shorten_path(path)} has no server named {name!r}; name one with --name")
    else:
        block = _entry_for(config_file, name, options, arguments, shared=shared)

        def add(text: str) -> str:
            servers = editor.read(text).get(config_file.key)
            current_entry = servers.get(name) if isinstance(servers, dict) else None
            return editor.put(
                text, (config_file.key, name), _merge_entry(path, name, current_entry, block, replace=arguments.replace)
            )

        after = _edit(path, before, add)
    _write_changes(path, before, after, arguments)


def _print_entry(name: str, block: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.write or arguments.remove:
        raise UsageError("`portico install json` prints an entry and changes no file: omit --write and --remove")
    _print(json.dumps({"mcpServers": {name: block}}, indent=2, ensure_ascii=False))


def _merge_entry(path: Path, name: str, existing: Any, block: dict[str, Any], *, replace: bool) -> dict[str, Any]:
    """Return the entry to write over an existing one with this name. A different server is replaced only on request."""
    if existing is None or replace:
        return block
    if not isinstance(existing, dict) or _identity(existing) != _identity(block):
        raise UsageError(
            f"{_shorten_path(path)} already has a different server named {name!r}: {_describe_entry(existing)}. "
            "Use --replace to replace it, or --name NAME to add this one under another name"
        )
    # The same server: keep settings that the user added.
    inner = {
        key: {**existing[key], **block[key]} for key in ("env", "envs", "headers") if key in existing and key in block
    }
    return {**existing, **block, **inner}


_IDENTITY_MEMBERS = ("command", "cmd", "args", *URL_MEMBERS)


def _identity(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the members of an entry that identify its server."""
    return {key: entry[key] for key in _IDENTITY_MEMBERS if entry.get(key) not in (None, [])}


def _describe_entry(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"a {type(entry).__name__}"
    url = next((entry[key] for key in URL_MEMBERS if key in entry), None)
    return str(url or " ".join(map(str, [entry.get("command") or entry.get("cmd"), *(entry.get("args") or [])])))


# Names


def _check_url(url: str) -> None:
    """Raise UsageError for a URL that no client could connect to."""
    # Imported here: the HTTP client is not needed to add other servers.
    from portico.transports.http_client.pool import HttpUrl

    HttpUrl(url)


def default_name(options: list[str]) -> str:
    """Return a default name for the server that these `serve` options start: its own, else the file name.

    Nothing is executed.
    """
    target = parse_serve(options).target
    if target is None:
        return "portico"
    if is_url(target):
        _check_url(target)
        parts = urlsplit(target)
        host = "localhost" if is_loopback_name(parts.hostname or "") else parts.hostname or "server"
        return _sanitize_name(f"{host}-{parts.port}" if parts.port else host)
    module_path, _, object = target.partition(".py:") if ".py:" in target else (target.removesuffix(".py"), "", "")
    if target.endswith((".json", ".toml")):
        return _sanitize_name(Path(target).stem)
    if not target.partition(":")[0].endswith(".py"):
        return _sanitize_name(target.partition(":")[0].rpartition(".")[2])
    return _sanitize_name(_name_in_source(Path(f"{module_path}.py"), object) or Path(module_path).name)


def _sanitize_name(name: str) -> str:
    """Return a name that every client accepts: letters, digits, - and _."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:MAX_NAME_CHARS] or "server"


def _name_in_source(path: Path, object: str) -> str | None:
    """Return the name that a file gives its server, as in `server = Server("weather")`, read from its source."""
    try:
        # Parsed rather than imported: installing must not run a file that the user may not have reviewed yet.
        tree = ast.parse(read_text(str(path), MAX_SOURCE_BYTES))
    # Only the suggested name depends on it, so a file that cannot be parsed is not an error here.
    except (UsageError, SyntaxError, ValueError, RecursionError):
        return None
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        class_name = ast.unparse(node.value.func).rpartition(".")[2]
        first = [*node.value.args, *(keyword.value for keyword in node.value.keywords if keyword.arg == "name")][:1]
        if class_name in ("Server", "Gateway", "FastMCP", "MCPServer", "LowLevelServer"):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and first and isinstance(first[0], ast.Constant):
                    names[target.id] = str(first[0].value)
    # Several servers without a selected object are ambiguous, so the file name is used instead of a guess.
    return names.get(object or "server") or (next(iter(names.values())) if len(names) == 1 and not object else None)


# Entries


def _entry_for(
    config_file: ClientConfigFile, name: str, options: list[str], arguments: argparse.Namespace, *, shared: bool
) -> dict[str, Any]:
    headers = [*arguments.header, *(f"Authorization: Bearer ${{{item}}}" for item in arguments.token_env)]
    environment = parse_environment(arguments.env) or {}
    target = parse_serve(options).target
    if target is None or not is_url(target):
        if headers:
            raise UsageError("--header and --token-env require a server at a URL")
        return _finish_entry(config_file, name, build_entry(config_file, options, shared=shared), environment)
    # Options of `serve` have no effect on a server that runs elsewhere, so they are rejected rather than dropped.
    if len(options) != 1:
        raise UsageError(f"expected only the URL after --, got {' '.join(options)!r}")
    _check_url(target)
    native = _url_entry(config_file, target, headers)
    if native is not None:
        if environment:
            raise UsageError("--env requires a server that the client starts; a server at a URL already runs")
        return _finish_entry(config_file, name, native, {})
    # The client starts a bridge, which reads the values of ${NAME} from its environment.
    words = [word for header in headers for word in ("--header", header)]
    return _finish_entry(config_file, name, build_entry(config_file, [target, *words], shared=shared), environment)


def build_entry(config_file: ClientConfigFile, options: list[str], *, shared: bool) -> dict[str, Any]:
    """Return the entry that starts `portico serve`.

    Graphical programs do not have the PATH of a shell, so the entry has the absolute path of the command, except in a
    file that is shared with the project.
    """
    command, *first = ["portico"] if shared else portico_command()
    type = {"type": "stdio"} if config_file.includes_type else {}
    return {**type, "command": command, "args": [*first, "serve", *_resolve_options(options, shared=shared)]}


def _url_entry(config_file: ClientConfigFile, url: str, headers: list[str]) -> dict[str, Any] | None:
    """Return an entry with a URL, or None if the client does not support URLs or these headers."""
    if config_file.url is None:
        return None
    parsed = parse_headers(headers)
    type = {"type": "http"} if config_file.includes_type else {}
    block: dict[str, Any] = {**type, config_file.url: url}
    if config_file.format == "toml":
        return _codex_headers(block, parsed)
    # Written as is, the client would send the literal ${NAME} as a header.
    if config_file.variable is None and any(_VARIABLE.search(value) for value in parsed.values()):
        return None
    if parsed:
        replacement = (config_file.variable or "%s").replace("%s", r"\1")
        block["headers"] = {key: _VARIABLE.sub(replacement, value) for key, value in parsed.items()}
    return block


def _codex_headers(block: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
    """Add headers to a Codex entry, or return None if they cannot be expressed.

    Codex names variables that hold a whole token or header, and does not substitute variables inside a text.
    """
    for key, value in headers.items():
        bearer = re.fullmatch(r"Bearer " + _VARIABLE.pattern, value)
        match = _VARIABLE.fullmatch(value)
        if bearer and key.lower() == "authorization":
            block["bearer_token_env_var"] = bearer[1]
        elif match:
            block.setdefault("env_http_headers", {})[key] = match[1]
        elif _VARIABLE.search(value):
            return None
        else:
            block.setdefault("http_headers", {})[key] = value
    return block


def _finish_entry(
    config_file: ClientConfigFile, name: str, block: dict[str, Any], environment: dict[str, str]
) -> dict[str, Any]:
    """Return the entry with its environment and the members that this client requires."""
    if config_file.format != "yaml":
        return {**block, "env": environment} if environment else block
    common = {"enabled": True, "name": name, "timeout": GOOSE_TIMEOUT_SECONDS}
    if "uri" in block:
        return {**common, "type": "streamable_http", **block}
    return {**common, "type": "stdio", "cmd": block["command"], "args": block["args"], "envs": environment}


def _config_file(client: str, scope: str) -> ClientConfigFile:
    scopes = CLIENT_CONFIGS[client]
    # Not every client has a file per project; writing the user's file instead would install more widely than requested.
    if scope not in scopes:
        raise UsageError(
            f"{client} does not support --scope {scope}: use {' or '.join(f'--scope {name}' for name in scopes)}"
        )
    return scopes[scope]


def portico_command() -> list[str]:
    # The command of this environment comes first: another `portico` on PATH may be an older one.
    sibling = Path(sys.executable).with_name("portico.exe" if sys.platform == "win32" else "portico")
    if sibling.is_file():
        return [str(sibling)]
    command = shutil.which("portico")
    return [os.path.abspath(command)] if command else [sys.executable, "-m", "portico"]


def _resolve_options(options: list[str], *, shared: bool) -> list[str]:
    """Return the `portico serve` options with absolute paths. Raises UsageError if `serve` would reject them."""
    arguments = apply_serve_defaults(parse_serve(options))
    if arguments.transport != "stdio":
        raise UsageError("the client starts this server and talks to it over stdio: omit --transport and its options")
    target = arguments.target
    # A shared file is checked in: an absolute path of this machine would be wrong on every other one.
    if target is None or is_url(target) or shared:
        return options
    file, colon, name = target.rpartition(":") if target.rpartition(":")[0].endswith(".py") else (target, "", "")
    if not file.endswith((".py", ".json", ".toml")):
        return options
    if not Path(file).is_file():
        raise UsageError(f"file {file!r} not found")
    # The client starts it in another directory. A fastmcp.json may select HTTP, so stdio is requested explicitly.
    stdio = [] if fastmcp_source(file) is None or "--transport" in options else ["--transport", "stdio"]
    return [os.path.abspath(file) + colon + name if word == target else word for word in options] + stdio


def _read(path: Path) -> str:
    try:
        return read_text(str(path), MAX_FILE_BYTES) if path.exists() else ""
    except UsageError as failure:
        raise UsageError(f"{failure}; the file was not changed") from None


def _edit(path: Path, before: str, edit: Callable[[str], str]) -> str:
    # Editors on Windows write it, and the parsers reject it. It is written again, so that only the entry changes.
    byte_order_mark = "\ufeff" if before.startswith("\ufeff") else ""
    try:
        return byte_order_mark + edit(before.removeprefix(byte_order_mark))
    except InvalidJsonc as mistake:
        raise UsageError(f"{path}, {mistake}; the file was not changed") from None


def _write_changes(path: Path, before: str, after: str, arguments: argparse.Namespace) -> None:
    # Before the diff and the backup, so that running the same command twice leaves no second backup behind.
    if before == after:
        _print(f"{_shorten_path(path)}: nothing to change")
        return
    _print(format_difference(path, before, after))
    if not arguments.write:
        _print("Nothing was written; use --write to apply the change.")
        return
    backup = _replace(path, before, after)
    _print(f"{_shorten_path(path)}: written" + (f"; the backup is {backup.name}" if backup else ""))
    _print("Restart the client, or reload its configuration.")


def format_difference(path: Path, before: str, after: str) -> str:
    """Return the change of a file as a unified diff."""
    # A diff rather than the whole file, which may be megabytes of settings and history.
    old, new = before.splitlines(), after.splitlines()
    names = (_shorten_path(path) if before else os.devnull, _shorten_path(path))
    return "\n".join(difflib.unified_diff(old, new, *names, lineterm=""))


def _shorten_path(path: Path) -> str:
    """Return the path relative to the current directory or the home directory, if it is inside one of them."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _replace(path: Path, before: str, after: str) -> Path | None:
    """Replace the file atomically, unless it was changed since it was read, and return the path of the backup."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Such files may contain keys of other servers, so the backup gets the same permissions.
        mode = path.stat().st_mode & 0o777 if before else 0o600
        create_file(str(temporary), after, mode)
        backup = _back_up(path, before, mode) if before else None
        # Clients write these files too; the check shortens the race to the moment before the rename.
        if _read(path) != before:
            raise UsageError(f"{path} was changed by another program and was not overwritten. Try again")
        os.replace(temporary, path)
    except OSError as failure:
        raise UsageError(f"cannot write {path}: {failure.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return backup


def _back_up(path: Path, before: str, mode: int) -> Path:
    """Create a backup next to the file and return its path."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    # Two runs within a second must not overwrite the first backup.
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        backup = path.with_name(f"{path.name}.{stamp}{suffix}.bak")
        try:
            create_file(str(backup), before, mode)
            return backup
        except FileExistsError:
            continue
    raise UsageError(f"too many backups of {path}; the file was not changed")


def _print(text: str) -> None:
    with report_write_errors():
        print("\n".join(escape_control(line) for line in text.split("\n")))
