"""The services we ship, put together to one server: which of them, with which settings, and where they keep things."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from portico import Server, Service, UsageError, __version__
from portico._lazy import LazyModule, load_module
from portico.extend import Tool, expand_paths
from portico.server.settings import ServerIdentity, place
from portico_services import settings
from portico_services.contracts.invocation_names import (
    INVOCATION,
    NOTES,
    VERSION,
    invocation,
    is_invocation,
    numbered,
)
from portico_services.profiles.settings import ServiceShape
from portico_services.settings import ServeSettings

if TYPE_CHECKING:
    from portico.compat.mcp_sdk import ToolDefinition
    from portico_services import operator_tools as operator_module
    from portico_services.profiles import adapter, loader
else:
    operator_module = LazyModule("portico_services.operator_tools")
    loader = LazyModule("portico_services.profiles.loader")
    adapter = LazyModule("portico_services.profiles.adapter")

log = logging.getLogger("portico")

NAME = "portico"
# Of a tool whose author says none.
FIRST_VERSION = "1.0.0"
# What --read-only means to each, whatever its settings say.
_READ_ONLY: dict[str, dict[str, Any]] = {
    "memory": {"read_only": True},
    "tasks": {"read_only": True},
}
INSTRUCTIONS = "Tools of this machine. Each service has its own; what is listed is what there is."

# Where only some of them are listed.
SHORT_INSTRUCTIONS = "Tools of this machine. Each service has its own."
# Added where there is a memory: without it, assistants rarely use one.
MEMORY_INSTRUCTIONS = (
    "Call memory_recall at the start of a task and before asking the user what they may have said before. Call "
    "memory_capture for decisions with their reasons, preferences and findings worth keeping."
)
READ_ONLY_MEMORY_INSTRUCTIONS = (
    "Call memory_recall at the start of a task and before asking the user what they may have said before."
)

# Each service by its name: where its class is. Imported when it is wanted, with whatever it needs.
HOMES = {
    "memory": ("portico_services.memory", "Memory"),
    "tasks": ("portico_services.workitems", "Tasks"),
    "system": ("portico_services.system", "System"),
    "live": ("portico_services.livepython", "Live"),
    "contracts": ("portico_services.contracts", "Contracts"),
}


# What is listed where no service was named, as long as there is room: what most people use comes first. Everything else
# is there all the same, for those who find it or know its name.
LISTED = (
    "memory_recall", "memory_capture", "create_task", "list_tasks", "complete_task", "evaluate", "fs_search", "fs_read",
    "fs_list", "next_task", "system_info", "process_list", "memory_get", "get_task", "memory_delete", "memory_status",
    "eventlog_query", "inspect_object", "memory_update", "update_task", "add_note", "eventlog_list_logs",
)  # fmt: skip
# The same for `--services memory`: with `find_tools` and `call_tool`, fewer than 2,700 tokens.
LISTED_MEMORY = (
    "memory_recall", "memory_capture", "memory_get", "memory_update", "memory_delete", "memory_restore",
    "memory_status",
)  # fmt: skip
# About four bytes make a token, so these are fewer than 4,500; `find_tools` and `call_tool` come on top.
MOST_LISTED = 23
MOST_BYTES = 17_500

# Names that several services have for tools of theirs, and whose they are.
OWNERS = {"system_info": "system"}


class ServicePlace(Struct, frozen=True, kw_only=True):
    """Where a server is set up."""

    data: Path
    store: str
    read_only: bool = False
    # More folders that the system service may look into.
    roots: tuple[str, ...] = ()
    # Folders whose packages live Python can import.
    projects: tuple[str, ...] = ()
    # Whether there are tools that switch services on and off, and whether others than one client can reach them.
    operator: bool = False
    over_http: bool = False
    # The files that the settings come from.
    settings: tuple[Path, ...] = ()


def read_settings(profile: str | None, config: str | None) -> ServeSettings:
    """What a configuration says, on top of what a profile says."""
    return settings.of(*(settings.read(path, HOMES) for path in files(profile, config)))


def logs_calls(said: ServeSettings) -> bool:
    """Whether the settings want a line in the log for calls."""
    return any(shape.log_calls for shape in said.shapes.values())


def files(profile: str | None, config: str | None) -> list[Path]:
    """Where settings are read from; what a later one says stands."""
    files = [loader.find(profile)] if profile is not None else []
    return files + ([Path(config)] if config is not None else [])


def assemble(
    names: Sequence[str] | None,
    said: ServeSettings,
    place: ServicePlace,
    *,
    unavailable: dict[str, str] | None = None,
    into: Server | None = None,
) -> Server:
    """Return a server with the named services; without names, those of the settings, or all that work here.

    A service that was not named and cannot work here is left out; `unavailable` receives its name and the reason.
    Settings of a service name it: an error in them raises UsageError. `into` is an existing server to add to.
    """
    server = Server(**_identity(said.server)) if into is None else into
    unknown = {"tools/call": said.server.unknown_tool, "prompts/get": said.server.unknown_prompt}
    if any(unknown.values()):
        server.add_middleware(adapter.naming_unknown({method: part for method, part in unknown.items() if part}))
    if said.server.error_details:
        server.add_middleware(adapter.adding_details)
    if logs_calls(said):
        server.add_middleware(adapter.logging_calls(server))
    wanted = names if names is not None else said.serve.services
    chosen = list(wanted if wanted is not None else HOMES)
    possible = set(HOMES) if place.operator else {name.partition(":")[0] for name in chosen}

    def prepare(name: str) -> Service:
        service_name = name.partition(":")[0]
        service = make(name, said.services.get(service_name, {}), place, named=wanted is not None)
        _fit(service, possible, said.shapes.get(service_name))
        return service

    for name in chosen:
        service_name = name.partition(":")[0]
        try:
            server.add(prepare(name))
        except UsageError as reason:
            if wanted is not None or service_name in said.services or service_name in said.shapes:
                where = _where(place.settings, service_name, getattr(reason, "option", ""))
                raise UsageError(f"{where}the service {name!r}: {reason}") from None
            log.info("the service %r is not available: %s", name, reason)
            if unavailable is not None:
                unavailable[service_name] = str(reason)
    if unavailable is not None:
        unavailable |= _partly_unavailable(server, place)
    if server.instructions == INSTRUCTIONS:
        server.instructions = _instructions(server, place)
    if place.operator:
        operator = operator_module.ServiceSwitch
        audit = place.data / "operator-audit.jsonl"
        server.add(operator(HOMES, _by_first_word(chosen, prepare), audit, over_http=place.over_http))
    return server


def _instructions(server: Server, place: ServicePlace) -> str:
    """Return how a model should use these services."""
    # Under another naming the tools have other names.
    if "memory_recall" not in server.tools:
        return INSTRUCTIONS
    return f"{INSTRUCTIONS} {READ_ONLY_MEMORY_INSTRUCTIONS if place.read_only else MEMORY_INSTRUCTIONS}"


def _partly_unavailable(server: Server, place: ServicePlace) -> dict[str, str]:
    """Return the tools of the served services that are left out or cannot work here, with the reason."""
    if "system" not in {service.name for service in server.services}:
        return {}
    missing = {}
    if not has_psutil():
        missing["system_info, process_list"] = "need portico-services[system]"
    if place.over_http and server.tools.get("fs_read") is None:
        missing["fs_* tools"] = "need --root PATH over HTTP"
    return missing


def has_psutil() -> bool:
    """Return whether the package that reads processes and the machine's state is installed."""
    return find_spec("psutil") is not None


def listed(server: Server, *, files: bool) -> list[str]:
    """The names of the tools that a server of all services lists; `files`: it was given folders to look into."""
    found: list[str] = []
    room = MOST_BYTES
    for name in LISTED:
        tool = server.tools.get(name)
        if tool is None or (name.startswith("fs_") and not files):
            continue
        meta = {name: part for name, part in (tool.definition.meta or {}).items() if name != NOTES}
        size = len(msgspec.json.encode(replace(tool.definition, output_schema=None, meta=meta or None)))
        if size <= room and len(found) < MOST_LISTED:
            found.append(name)
            room -= size
    return found


def _by_first_word(chosen: Sequence[str], prepare: Callable[[str], Service]) -> Callable[[str], Service]:
    """A service by its name, as it was chosen: `memory` where that was `memory:all` is `memory:all` again."""
    said = {name.partition(":")[0]: name for name in chosen}
    return lambda name: prepare(said.get(name, name))


def dress(server: Server, said: ServeSettings) -> None:
    """Give the tools of a server of the user's own the shape that `[shapes.own]` says. Raises UsageError."""
    shape = said.shapes.get(settings.OWN)
    if shape is None:
        raise UsageError("these settings are for the services that come with Portico: they have no [shapes.own]")
    names: dict[str, str] = {}
    registry = server.registry
    # All versions of a tool have its name, so each round has one of every tool that has so many.
    rounds: list[list[Tool]] = []
    for tool in list(registry.tools):
        meant = (tool.definition.meta or {}).get(INVOCATION) or invocation(server.info.name, tool.name)
        names[tool.name] = numbered(meant, names.values()) if shape.dotted else tool.name
        versions = registry.versions(tool)
        rounds += [[] for _ in versions[len(rounds) :]]
        for version, some in zip(reversed(versions), rounds, strict=False):
            registry.remove(version)
            some.append(cast("Tool", version))
    for some in rounds:
        listed = {tool.name: names[tool.name] for tool in some}
        registry.add_all(list(adapter.shaped(some, replace(shape, tools=listed), own=True)))
    if shape.log_calls:
        server.add_middleware(adapter.logging_calls(server))


def _where(files: Sequence[Path], service: str, option: str) -> str:
    """The file and the line that an option of a service comes from: the last that has it."""
    key = f"services.{service}.{option}"
    found = [one for one in (place(path, key) for path in files) if ", line " in one]
    return f"{found[-1]}: " if found and option else ""


_SAID_LATER = ("unknown_tool", "unknown_prompt", "error_details")


def _identity(said: ServerIdentity) -> dict[str, Any]:
    """Who the server is, as its constructor takes it."""
    usual: dict[str, Any] = {"name": NAME, "version": __version__, "instructions": INSTRUCTIONS}
    given = {name: part for name, part in asdict(said).items() if part is not None and name not in _SAID_LATER}
    if said.capabilities is not None:
        given["capabilities"] = {
            name: {} if part is True else part for name, part in said.capabilities.items() if part is not False
        }
    return usual | {name: None if part == "" else part for name, part in given.items()}


def _fit(service: Service, possible: Collection[str], shape: ServiceShape | None) -> None:
    """Give a service the shape that is wanted, and each of its tools names of its own among these services."""
    offers = service.offers
    if shape is not None:
        service.schemes = shape.known_as(service.schemes)

    def fitted() -> Iterator[Any]:
        found = (_addressed(one, service.name) if isinstance(one, Tool) else one for one in offers())
        for offered in found if shape is None else adapter.shaped(found, shape):
            yield _apart(offered, service.name, possible) if isinstance(offered, Tool) else offered

    service.offers = fitted  # type: ignore[method-assign]


def _addressed(tool: Tool, service: str) -> Tool:
    """Every tool can be called by the name of its service, too: `live.evaluate`, `live_evaluate`.

    The dotted name is the one that contracts call it by; it is listed in `_meta`, with the tool's version.
    """
    other = copy(tool)
    dotted = f"{service}.{tool.name}"
    known = [name for name in (tool.name, *tool.aliases) if is_invocation(name)]
    if not known:
        other.aliases = (*tool.aliases, dotted, f"{service}_{tool.name}")
    elif dotted not in known:
        dotted = known[0]
    other.redefine(partial(_versioned, service, dotted))
    return other


def _versioned(service: str, dotted: str, said: ToolDefinition) -> ToolDefinition:
    meta = {VERSION: FIRST_VERSION, INVOCATION: dotted, **(said.meta or {})}
    uses = _use_cases(service).get(dotted)
    if uses:
        meta.setdefault(NOTES, {"use_cases": uses})
    return replace(said, meta=meta, input_schema=_explicit(said.input_schema))


# The folders of services that have another name than the service.
_FOLDERS = {"tasks": "workitems", "live": "livepython", "code": "codemode"}


@cache
def _use_cases(service: str) -> dict[str, list[str]]:
    """Return the use cases of a service's tools by invocation name; specifications name them."""
    path = Path(__file__).parent / _FOLDERS.get(service, service) / "use_cases.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]]) if path.exists() else {}


def _explicit(schema: Any) -> Any:
    """The same schema, in which every object says what is required, also where nothing is: some generators of code take
    a schema that does not say it for one that was forgotten."""
    if isinstance(schema, list):
        return [_explicit(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {name: _explicit(one) for name, one in schema.items()}
    if whole.get("type") == "object" and isinstance(whole.get("properties"), dict):
        whole.setdefault("required", [])
    return whole


def _apart(tool: Tool, service: str, possible: Collection[str]) -> Tool:
    """A name that two services have is one's alone where both may be served, in whatever order they come. The other
    says whose it is: `live_system_info`, which it answers to in any case."""
    theirs = {name for name, owner in OWNERS.items() if owner != service and owner in possible}
    name = f"{service}_{tool.name}" if tool.name in theirs else tool.name
    aliases = tuple(one for one in tool.aliases if one != name and one not in theirs)
    if (name, aliases) == (tool.name, tool.aliases):
        return tool
    other = copy(tool)
    other.name, other.aliases = name, aliases
    other.redefine(lambda said: replace(said, name=name))
    return other


def make(name: str, options: Mapping[str, Any], place: ServicePlace, *, named: bool = True) -> Service:
    """A service. `named`: it was asked for by its name, so all of it is there, whether it can work here or not."""
    name, _, extent = name.partition(":")
    home = HOMES.get(name)
    if home is None:
        raise UsageError(f"there is no service {name!r}; there are {', '.join(HOMES)}")
    try:
        kind = getattr(load_module(home[0]), home[1])
    except ImportError as missing:
        raise UsageError(
            f"it needs a package that is not installed: portico-services[{name}] ({missing.name})"
        ) from None
    given = {
        **_usual(name, place),
        **expand_paths(kind.__init__, options),
        **({"offered": extent} if extent else {}),
        **(_READ_ONLY.get(name, {}) if place.read_only else {}),
    }
    if name == "system":
        given = _system(given, place, named)
    if name == "live" and place.projects:
        given["projects"] = [*given.get("projects", []), *place.projects]
    # Its constructor is the list of its settings.
    made: Service = kind(**given)
    return made


def _system(given: dict[str, Any], place: ServicePlace, named: bool) -> dict[str, Any]:
    """The options of the system service, with what was said on the command line."""
    if not named:
        given = given | {"levels": _unable(given, place) | given.get("levels", {})}
    roots = given.get("roots", [])
    more = {"roots": [*roots, *place.roots]} if isinstance(roots, list) else {}
    # Where the operator has named no folder, the one client on stdio may, with its user's consent.
    asks = {"client_roots": not place.over_http and not roots and not place.roots}
    return asks | given | more | ({"levels": _lowered(given.get("levels", {}))} if place.read_only else {})


def _unable(given: dict[str, Any], place: ServicePlace) -> dict[str, str]:
    """Return the parts to disable: files without a folder, if no client could name one; the registry without hives
    where the system has none; processes without psutil."""
    files = bool(given.get("roots") or place.roots) or given.get("client_roots") or not place.over_http
    registry = bool(given.get("hives")) or os.name == "nt"
    usable = {"fs": files, "reg": registry, "process": has_psutil()}
    return {part: "disabled" for part, works in usable.items() if not works}


def _lowered(levels: Any) -> Any:
    """The levels with read-only in place of read-write; disabled and unknown ones stay as they are."""
    if not isinstance(levels, dict):
        return levels
    return {part: "read-only" if level == "read-write" else level for part, level in levels.items()}


def _usual(name: str, place: ServicePlace) -> dict[str, Any]:
    """The options that a service is given by default."""
    if name == "system":
        return {"data": place.data / "system"}
    if name == "memory":
        return {"store": place.store, "models": place.data}
    if name == "live":
        return {"saved": place.data / "live"}
    return {"store": place.store} if name == "tasks" else {}
