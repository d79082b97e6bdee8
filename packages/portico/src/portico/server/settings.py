"""The file that `--config` names: how a server is served, and what it says about itself.

Other packages add tables to it. What it says about access is read by `portico.server.policy.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from portico.protocol.errors import UsageError
from portico.protocol.meta import ServerCapabilities
from portico.server.policy.settings import ACCESS_SECTIONS

Table = dict[str, Any]
Text = Annotated[str, Meta(min_length=1)]
# What msgspec says at the end: `… - at `$.serve.max_message``.
_PLACE = r"at `(?:key in )?\$\.?([^`\[]*)"
_HEAD = r"\s*\[+([^\[\]]+)\]+\s*(?:#.*)?$"
_HEAD_NAME = r"[\s\"']"
_PAIR = r"\s*([A-Za-z0-9_.\"' -]+?)\s*="


class Serving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[serve]`: what can be said on the command line, for when it is not."""

    services: list[str] | None = None
    operator: bool = False
    # Over HTTP on this machine: serve every user of it, without a token.
    open: bool = False
    lifecycle: Literal["auto", "strict", "lenient"] | None = None
    max_message: Annotated[int, Meta(ge=1)] | None = None
    face: Literal["all", "search", "code", "auto"] | None = None
    # The tools that a face lists all the same.
    always: list[str] = []
    # What scripts may do in the code face: the options of `Code`.
    code: Table = {}
    # Over HTTP: the revision that a client is taken to speak which never greets.
    assume: Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] | None = None


class ServerIdentity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[server]`: who the whole says it is, and what it says it can do. An empty text says nothing."""

    name: Text | None = None
    version: Text | None = None
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    instructions: str | None = None
    argument_errors: Literal["auto", "result", "protocol"] | None = None
    # Refuse arguments that only fit after a repair, such as the text "5" for a number.
    strict_arguments: bool | None = None
    # What is advertised, instead of everything; what is not advertised is not there. `false` takes one away.
    capabilities: dict[str, Table | bool] | None = None
    # What the error for a tool that is not there says in its data, besides the tool's name.
    unknown_tool: Table | None = None
    # The same for a prompt. A `number` in it is the code itself at 2024-11-05.
    unknown_prompt: Table | None = None
    # Whether the data of every error has `details`, a sentence.
    error_details: bool = False


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a settings file. Unknown keys are errors, because an ignored setting protects nothing."""

    about: str = ""
    server: ServerIdentity = field(default_factory=ServerIdentity)
    serve: Serving = field(default_factory=Serving)


SettingsT = TypeVar("SettingsT", bound=ServerSettings)


def read_settings(path: str | Path) -> ServerSettings:
    """Return the settings of a file for a server of the user's own. Raises UsageError."""
    tables = read_tables(path)
    services = sorted({"services", "shapes"} & tables.keys())
    if services:
        raise UsageError(
            f"{place(path, services[0])}: [{services[0]}] is for the built-in services, which need portico-services: "
            "pip install 'portico[services]'"
        )
    return checked(path, tables, ServerSettings)


def read_tables(path: str | Path) -> Table:
    """Return the tables of a file, without those about access. Raises UsageError."""
    # Only where there is a file.
    import tomllib

    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror}") from None
    except (ValueError, RecursionError) as failure:
        raise UsageError(f"{path} is not TOML: {failure}") from None
    return {name: part for name, part in said.items() if name not in ACCESS_SECTIONS}


def checked(
    path: str | Path, tables: Table, kind: type[SettingsT], others: Mapping[str, type[Struct]] | None = None
) -> SettingsT:
    """Return the settings of one file. Raises UsageError, with the line and the key that was probably meant.

    `others`: the types of the tables in a table, such as `shapes.NAME`, by the name of the outer one.
    """
    try:
        return merged(kind, tables)
    except UsageError as mistake:
        found = re.search(_PLACE, str(mistake))
        where = found[1] if found else ""
        field_name = re.search(r"unknown field `([^`]*)`", str(mistake))
        if field_name is not None:
            raise UsageError(_describe_unknown(path, where, field_name[1], kind, others or {})) from None
        raise UsageError(f"{place(path, where)}: {mistake}") from None


def _describe_unknown(
    path: str | Path, table: str, name: str, kind: type[Struct], others: Mapping[str, type[Struct]]
) -> str:
    """Return the message for a key that a file must not have, with its line and the key that was probably meant."""
    # Only for an error.
    from difflib import get_close_matches

    tables: dict[str, type[Struct]] = {"": kind, "server": ServerIdentity, "serve": Serving, **others}
    table_type = tables.get(table) or tables.get(table.partition(".")[0])
    known = table_type.__struct_fields__ if table_type is not None else ()
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    key = f"{table}.{name}".strip(".")
    where = place(path, key)
    if ", line " not in where:
        # In a table of a table, whose name the error leaves out.
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        number = next((at for at, line in enumerate(lines, 1) if re.match(rf"\s*{re.escape(name)}\s*=", line)), None)
        where = where if number is None else f"{where}, line {number}"
    return f"{where}: unknown key {key!r} ({hint})"


def place(path: str | Path, key: str) -> str:
    """`portico.toml, line 3` for the line that says something about a key such as `services.system.roots`; without the
    line where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return str(path)
    table, nearest, number = "", "", None
    for at, line in enumerate(lines, 1):
        head = re.match(_HEAD, line)
        name = re.sub(_HEAD_NAME, "", head[1]) if head else ""
        if head:
            table = name
        elif (pair := re.match(_PAIR, line)) is not None:
            name = f"{table}.{re.sub(_HEAD_NAME, '', pair[1])}".strip(".")
        if name and len(name) > len(nearest) and f"{key}.".startswith(f"{name}."):
            nearest, number = name, at
    return f"{path}, line {number}" if number is not None else str(path)


def merged(kind: type[SettingsT], *tables: Mapping[str, Any]) -> SettingsT:
    """Return the settings of several files together. Those of a later file replace those of the others."""
    said: Table = {}
    for table in tables:
        said = _over(said, table)
    try:
        settings = msgspec.convert(said, kind)
    except msgspec.ValidationError as mistake:
        raise UsageError(str(mistake)) from None
    unknown = (settings.server.capabilities or {}).keys() - set(ServerCapabilities.__struct_fields__)
    if unknown:
        raise UsageError(f"there is no capability {sorted(unknown)[0]!r}")
    return settings


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Tables are put together, all else is replaced."""
    said = {**below, **above}
    for name, part in above.items():
        if isinstance(part, dict) and isinstance(below.get(name), dict):
            said[name] = _over(below[name], part)
    return said
