"""`portico install`: put a server into the configuration of a client.

Those files belong to other programs, which write them too. So nothing is written without --write; a copy of the old
file is put beside it; and a file that cannot be read stays as it is.
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

from portico.auth.url_policy import names_loopback
from portico.cli import jsonc, toml_edit
from portico.cli.connection_errors import is_url, parse_environment, parse_headers
from portico.cli.files import read_text, write_new
from portico.cli.jsonc import InvalidConfiguration
from portico.cli.specs import complete_serving, parser_for
from portico.cli.terminal_text import printable, writing
from portico.protocol.errors import UsageError

LONGEST_FILE = 64 * 1024 * 1024
MAX_SOURCE_BYTES = 2 * 1024 * 1024
MAX_NAME_CHARS = 64
GOOSE_TIMEOUT_SECONDS = 300

# The members that hold a URL, in the files of all clients.
_URL_MEMBERS = ("url", "serverUrl", "httpUrl", "uri")
# The value of an environment variable in a header, as it is given on the command line.
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class ConfigurationFile(NamedTuple):
    """Where a client looks for servers: a file, and the object in it that has them by name."""

    path: Callable[[], Path]
    key: str = "mcpServers"
    # Whether an entry has a `type`: "stdio" or "http".
    says_type: bool = False
    format: str = "json"
    # The member that holds the URL of a server over HTTP; None where the client only starts commands.
    url: str | None = "url"
    # How the client writes the value of an environment variable in a header; None where it has no way.
    variable: str | None = None


def _application(folder: str, file: str, windows: str = "") -> Callable[[], Path]:
    """Return the path of a file in the folder where applications of this system have their settings."""

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
    """Return the path of a file that lies below ~/.config on macOS, too."""
    return lambda: _app_data() / windows / file if sys.platform == "win32" else _config_home() / folder / file


def _home(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _here(*parts: str) -> Callable[[], Path]:
    return lambda: Path.cwd().joinpath(*parts)


def _codex_home() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"


_CLAUDE_CODE = ConfigurationFile(_home(".claude.json"), says_type=True, variable="${%s}")
_CURSOR = ConfigurationFile(_home(".cursor", "mcp.json"), variable="${env:%s}")
_VSCODE = ConfigurationFile(_application("Code/User", "mcp.json"), key="servers", says_type=True, variable="${env:%s}")
_ZED = ConfigurationFile(_dot_config("zed", "settings.json", "Zed"), key="context_servers")
_GEMINI = ConfigurationFile(_home(".gemini", "settings.json"), url="httpUrl", variable="${%s}")
_CODEX = ConfigurationFile(_codex_home, key="mcp_servers", format="toml", variable="%s")

# By the client and by whom it is for: one user, or all who work on the project in this folder.
PLACES: dict[str, dict[str, ConfigurationFile]] = {
    "claude-desktop": {"user": ConfigurationFile(_application("Claude", "claude_desktop_config.json"), url=None)},
    "claude-code": {"user": _CLAUDE_CODE, "project": _CLAUDE_CODE._replace(path=_here(".mcp.json"))},
    "cursor": {"user": _CURSOR, "project": _CURSOR._replace(path=_here(".cursor", "mcp.json"))},
    "vscode": {"user": _VSCODE, "project": _VSCODE._replace(path=_here(".vscode", "mcp.json"))},
    "windsurf": {
        "user": ConfigurationFile(
            _home(".codeium", "windsurf", "mcp_config.json"), url="serverUrl", variable="${env:%s}"
        )
    },
    "zed": {"user": _ZED, "project": _ZED._replace(path=_here(".zed", "settings.json"))},
    "gemini": {"user": _GEMINI, "project": _GEMINI._replace(path=_here(".gemini", "settings.json"))},
    "codex": {"user": _CODEX, "project": _CODEX._replace(path=_here(".codex", "config.toml"))},
    "goose": {
        "user": ConfigurationFile(
            _dot_config("goose", "config.yaml", "Block/goose/config"), key="extensions", format="yaml", url="uri"
        )
    },
}
# Prints an entry in the form that most clients share, and changes no file.
JSON = "json"
_PLAIN = ConfigurationFile(_here("mcp.json"), variable="${%s}")


class Editor(NamedTuple):
    """How a file of one format is read, and how an entry is put into it and taken out."""

    read: Callable[[str], dict[str, Any]]
    put: Callable[[str, Any, Any], str]
    drop: Callable[[str, Any], str]


EDITORS = {
    "json": Editor(lambda text: jsonc.read(text).value, jsonc.put, jsonc.drop),
    "toml": Editor(toml_edit.read_toml, toml_edit.put_toml, toml_edit.drop_toml),
    "yaml": Editor(toml_edit.read_yaml, toml_edit.put_yaml, toml_edit.drop_yaml),
}


def run(words: list[str]) -> None:
    options: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    arguments = parser_for("install").read(words)
    shared = arguments.scope == "project"
    name = arguments.name or default_name(options)
    if arguments.client == JSON:
        _print_entry(name, _entry_for(_PLAIN, name, options, arguments, shared=shared), arguments)
        return
    place = _place(arguments.client, arguments.scope)
    # A link is followed: people keep these files elsewhere, and would not want it replaced.
    path = Path(os.path.realpath(place.path()))
    before = _read(path)
    editor = EDITORS[place.format]
    if arguments.remove:
        after = _edited(path, before, lambda text: editor.drop(text, (place.key, name)))
    else:
        block = _entry_for(place, name, options, arguments, shared=shared)

        def add(text: str) -> str:
            servers = editor.read(text).get(place.key)
            known = servers.get(name) if isinstance(servers, dict) else None
            return editor.put(text, (place.key, name), _merged(path, name, known, block, replace=arguments.replace))

        after = _edited(path, before, add)
    _finish(path, before, after, arguments)


def _print_entry(name: str, block: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.write or arguments.remove:
        raise UsageError("`portico install json` prints an entry and changes no file: leave --write and --remove out")
    _say(json.dumps({"mcpServers": {name: block}}, indent=2, ensure_ascii=False))


def _merged(path: Path, name: str, known: Any, block: dict[str, Any], *, replace: bool) -> dict[str, Any]:
    """Return the entry to write over the one that has this name. Another server is only replaced on request."""
    if known is None or replace:
        return block
    if not isinstance(known, dict) or _started(known) != _started(block):
        raise UsageError(
            f"{_short(path)} has another server with the name {name!r}: {_described(known)}. "
            "--replace replaces it; --name NAME adds this one under another name"
        )
    # The same server: settings that the user has added stay.
    inner = {key: {**known[key], **block[key]} for key in ("env", "envs", "headers") if key in known and key in block}
    return {**known, **block, **inner}


_STARTS = ("command", "cmd", "args", *_URL_MEMBERS)


def _started(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the members of an entry that say which server it is."""
    return {key: entry[key] for key in _STARTS if entry.get(key) not in (None, [])}


def _described(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"a {type(entry).__name__}"
    url = next((entry[key] for key in _URL_MEMBERS if key in entry), None)
    return str(url or " ".join(map(str, [entry.get("command") or entry.get("cmd"), *(entry.get("args") or [])])))


# Names


def default_name(options: list[str]) -> str:
    """Return the name of the server that these options of `serve` start: its own, else its file's. Nothing is run."""
    target = parser_for("serve").read(options).target
    if target is None:
        return "portico"
    if is_url(target):
        parts = urlsplit(target)
        host = "localhost" if names_loopback(parts.hostname or "") else parts.hostname or "server"
        return _usable(f"{host}-{parts.port}" if parts.port else host)
    place, _, object = target.partition(".py:") if ".py:" in target else (target.removesuffix(".py"), "", "")
    if target.endswith((".json", ".toml")):
        return _usable(Path(target).stem)
    if not target.partition(":")[0].endswith(".py"):
        return _usable(target.partition(":")[0].rpartition(".")[2])
    return _usable(_written_name(Path(f"{place}.py"), object) or Path(place).name)


def _usable(name: str) -> str:
    """Return a name that every client accepts: letters, digits, - and _."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:MAX_NAME_CHARS] or "server"


def _written_name(path: Path, object: str) -> str | None:
    """Return the name that a file gives its server, as in `server = Server("weather")`, read from its source."""
    try:
        tree = ast.parse(read_text(str(path), MAX_SOURCE_BYTES))
    except (UsageError, SyntaxError, ValueError, RecursionError):
        return None
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        made = ast.unparse(node.value.func).rpartition(".")[2]
        first = [*node.value.args, *(one.value for one in node.value.keywords if one.arg == "name")][:1]
        if made in ("Server", "Gateway", "FastMCP", "MCPServer", "LowLevelServer"):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and first and isinstance(first[0], ast.Constant):
                    names[target.id] = str(first[0].value)
    return names.get(object or "server") or (next(iter(names.values())) if len(names) == 1 and not object else None)


# Entries


def _entry_for(
    place: ConfigurationFile, name: str, options: list[str], arguments: argparse.Namespace, *, shared: bool
) -> dict[str, Any]:
    headers = [*arguments.header, *(f"Authorization: Bearer ${{{one}}}" for one in arguments.token_env)]
    environment = parse_environment(arguments.env) or {}
    target = parser_for("serve").read(options).target
    if target is None or not is_url(target):
        if headers:
            raise UsageError("--header and --token-env are for a server at a URL")
        return _laid_out(place, name, entry(place, options, shared=shared), environment)
    if options != [target]:
        raise UsageError(f"nothing but the URL is expected behind --, and there is {' '.join(options)!r}")
    native = _url_entry(place, target, headers)
    if native is not None:
        if environment:
            raise UsageError("--env is for a server that the client starts; this one runs already, at its URL")
        return _laid_out(place, name, native, {})
    # The client starts a bridge, which takes the values of ${NAME} from its environment.
    words = [word for header in headers for word in ("--header", header)]
    return _laid_out(place, name, entry(place, [target, *words], shared=shared), environment)


def entry(place: ConfigurationFile, options: list[str], *, shared: bool) -> dict[str, Any]:
    """Return the entry that starts `portico serve`. Graphical programs do not have the PATH of a shell, so the whole
    path of the command is given, except in a file that is shared with the project."""
    command, *first = ["portico"] if shared else _ourselves()
    type = {"type": "stdio"} if place.says_type else {}
    return {**type, "command": command, "args": [*first, "serve", *_checked(options, shared=shared)]}


def _url_entry(place: ConfigurationFile, url: str, headers: list[str]) -> dict[str, Any] | None:
    """Return an entry with a URL; None where the client has none, or no way to write these headers."""
    if place.url is None:
        return None
    parsed = parse_headers(headers)
    type = {"type": "http"} if place.says_type else {}
    block: dict[str, Any] = {**type, place.url: url}
    if place.format == "toml":
        return _codex_headers(block, parsed)
    if place.variable is None and any(_VARIABLE.search(value) for value in parsed.values()):
        return None
    if parsed:
        written = (place.variable or "%s").replace("%s", r"\1")
        block["headers"] = {key: _VARIABLE.sub(written, value) for key, value in parsed.items()}
    return block


def _codex_headers(block: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
    """Codex names the variables that hold a token or a header, and has no texts with variables in them."""
    for key, value in headers.items():
        bearer = re.fullmatch(r"Bearer " + _VARIABLE.pattern, value)
        whole = _VARIABLE.fullmatch(value)
        if bearer and key.lower() == "authorization":
            block["bearer_token_env_var"] = bearer[1]
        elif whole:
            block.setdefault("env_http_headers", {})[key] = whole[1]
        elif _VARIABLE.search(value):
            return None
        else:
            block.setdefault("http_headers", {})[key] = value
    return block


def _laid_out(
    place: ConfigurationFile, name: str, block: dict[str, Any], environment: dict[str, str]
) -> dict[str, Any]:
    """Return the entry with its environment, and with the members that this client wants."""
    if place.format != "yaml":
        return {**block, "env": environment} if environment else block
    about = {"enabled": True, "name": name, "timeout": GOOSE_TIMEOUT_SECONDS}
    if "uri" in block:
        return {**about, "type": "streamable_http", **block}
    return {**about, "type": "stdio", "cmd": block["command"], "args": block["args"], "envs": environment}


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
    """Return the options of `portico serve`; raise UsageError if `serve` would refuse them. Paths are made absolute."""
    arguments = complete_serving(parser_for("serve").read(options))
    if arguments.transport != "stdio":
        raise UsageError(
            "a client starts this server itself, and speaks to it on stdio: leave --transport and its options out"
        )
    target = arguments.target
    if target is None or is_url(target) or shared:
        return options
    file, colon, name = target.rpartition(":") if target.rpartition(":")[0].endswith(".py") else (target, "", "")
    if not file.endswith((".py", ".json", ".toml")):
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


def _edited(path: Path, before: str, edit: Callable[[str], str]) -> str:
    mark = "\ufeff" if before.startswith("\ufeff") else ""
    try:
        return mark + edit(before.removeprefix(mark))
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
