"""Assembly of the built-in services into one server: selection, settings and storage locations."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from portico import ComponentDefaults, Server, Service, Tool, UsageError, __version__
from portico._lazy import LazyModule, load_module
from portico.extend import expand_paths
from portico.server.settings import ServerSection
from portico.settings_file import locate
from portico_services import settings
from portico_services.contracts.invocation_names import (
    INVOCATION_META_KEY,
    SPEC_META_KEY,
    VERSION_META_KEY,
    deduplicate,
    is_invocation_name,
    make_invocation_name,
)
from portico_services.settings import CompatSection, SettingsFile

if TYPE_CHECKING:
    from portico.compat.mcp_sdk import ToolDefinition
    from portico_services.profiles import adapter
else:
    adapter = LazyModule("portico_services.profiles.adapter")

log = logging.getLogger("portico")

NAME = "portico"
# Version of tools whose author declares none.
DEFAULT_TOOL_VERSION = "1.0.0"
# Options that --read-only forces on each service, whatever its settings.
_READ_ONLY_OPTIONS: dict[str, dict[str, Any]] = {
    "memory": {"read_only": True},
    "tasks": {"read_only": True},
}
INSTRUCTIONS = "Tools for this machine, grouped by service. The tool list is complete."

# Used when only some of the tools are listed.
DEFAULT_LIST_INSTRUCTIONS = "Tools for this machine, grouped by service."
# Added when the memory service is present: without a hint, assistants rarely use it.
MEMORY_INSTRUCTIONS = (
    "Call memory_recall at the start of a task and before asking the user for something said before. Call "
    "memory_capture for decisions with their reasons, preferences and findings worth keeping."
)
READ_ONLY_MEMORY_INSTRUCTIONS = (
    "Call memory_recall at the start of a task and before asking the user for something said before."
)

# Module and class of each service by name. A module is imported only when its service is selected, together with its
# dependencies.
SERVICE_CLASSES = {
    "memory": ("portico_services.memory", "Memory"),
    "tasks": ("portico_services.workitems", "Tasks"),
    "system": ("portico_services.system", "System"),
    "live": ("portico_services.livepython", "LivePython"),
    "contracts": ("portico_services.contracts", "Contracts"),
}


# Tools listed when no service was named, most used first, as long as the budget below permits. The remaining tools can
# still be called by name or found with tool search.
DEFAULT_TOOL_ORDER = (
    "memory_recall", "memory_capture", "create_task", "list_tasks", "complete_task", "evaluate", "fs_search", "fs_read",
    "fs_list", "next_task", "eventlog_query", "system_info", "memory_get", "get_task", "memory_delete", "memory_status",
    "process_list", "inspect_object", "memory_update", "update_task", "add_note", "eventlog_list_logs",
)  # fmt: skip
# The same for `--services memory`: fewer than 2,700 tokens including `find_tools` and `call_tool`.
LISTED_MEMORY = (
    "memory_recall", "memory_capture", "memory_get", "memory_update", "memory_delete", "memory_restore",
    "memory_status",
)  # fmt: skip
# A token is about four bytes, so these are fewer than 4,200 tokens; `find_tools`, `call_tool` and `read_result` come
# on top, and all are fewer than 5,000.
MAX_DEFAULT_TOOLS = 23
MAX_DEFAULT_TOOLS_BYTES = 16_500

# Tool names that several services use, and the service that keeps the unprefixed name.
TOOL_OWNERS = {"system_info": "system"}


class ServiceEnvironment(Struct, frozen=True, kw_only=True):
    """Environment in which services are created: paths, transport and command-line options."""

    data: Path
    store: str
    read_only: bool = False
    # Additional directories that the system service may read.
    roots: tuple[str, ...] = ()
    # Directories whose packages live Python can import.
    projects: tuple[str, ...] = ()
    # Whether the tools that enable and disable services are offered, and whether remote clients can reach them.
    operator: bool = False
    over_http: bool = False
    # Files that the settings were read from, for error locations.
    settings: tuple[Path, ...] = ()


def read_settings(profile: str | None, config: str | None) -> SettingsFile:
    """Return the settings of a profile and a configuration file; the file takes precedence."""
    return settings.merge_settings(
        *(settings.load_settings_file(path, SERVICE_CLASSES) for path in settings_paths(profile, config))
    )


def wants_call_log(settings_file: SettingsFile) -> bool:
    """Return whether any compat section enables the call log."""
    return any(compat.log_calls for compat in settings_file.compat.values())


def settings_paths(profile: str | None, config: str | None) -> list[Path]:
    """Return the paths of the settings files in order of increasing precedence."""
    from portico_services.profiles import loader

    files = [loader.find_profile(profile)] if profile is not None else []
    return files + ([Path(config)] if config is not None else [])


def build_server(
    names: Sequence[str] | None,
    settings_file: SettingsFile,
    environment: ServiceEnvironment,
    *,
    unavailable: dict[str, str] | None = None,
    into: Server | None = None,
) -> Server:
    """Return a server with the named services; without names, the services of the settings, or all that work here.

    Services that were not named and cannot run here are skipped; `unavailable` receives their names and reasons. A
    settings table for a service counts as naming it, so an error raises UsageError. `into` is an existing server to add
    the services to.
    """
    server = Server(**_server_options(settings_file.server)) if into is None else into
    unknown = {"tools/call": settings_file.server.unknown_tool, "prompts/get": settings_file.server.unknown_prompt}
    if any(unknown.values()):
        server.add_middleware(
            adapter.unknown_component_middleware({method: part for method, part in unknown.items() if part})
        )
    if settings_file.server.error_details:
        server.add_middleware(adapter.adding_details)
    if wants_call_log(settings_file):
        adapter.enable_call_log(server)
    service_names = names if names is not None else settings_file.serve.services
    chosen = list(service_names if service_names is not None else SERVICE_CLASSES)
    # With operator tools every service may be enabled later, so names are disambiguated against all of them.
    possible = set(SERVICE_CLASSES) if environment.operator else {name.partition(":")[0] for name in chosen}

    def prepare(name: str) -> Service:
        service_name = name.partition(":")[0]
        service = create_service(
            name, settings_file.services.get(service_name, {}), environment, named=service_names is not None
        )
        _apply_compat_to_service(service, possible, settings_file.compat.get(service_name))
        return service

    for name in chosen:
        service_name = name.partition(":")[0]
        try:
            server.add(prepare(name))
        except UsageError as reason:
            if (
                service_names is not None
                or service_name in settings_file.services
                or service_name in settings_file.compat
            ):
                where = _setting_location(environment.settings, service_name, getattr(reason, "option", ""))
                is_built_in = service_name in SERVICE_CLASSES
                raise UsageError(f"{where}the service {name!r}: {reason}" if is_built_in else str(reason)) from None
            log.info("service %r is not available: %s", name, reason)
            if unavailable is not None:
                unavailable[service_name] = str(reason)
    _add_call_endpoints(server, (settings_file.compat.get(name.partition(":")[0]) for name in chosen))
    if unavailable is not None:
        unavailable |= _partly_unavailable(server, environment)
    if server.instructions == INSTRUCTIONS:
        server.instructions = _instructions(server, environment)
    if environment.operator:
        from portico_services import operator_tools as operator_module

        operator = operator_module.OperatorTools
        audit = environment.data / "operator-audit.jsonl"
        server.add(operator(SERVICE_CLASSES, _factory_by_name(chosen, prepare), audit, over_http=environment.over_http))
    return server


def _instructions(server: Server, environment: ServiceEnvironment) -> str:
    """Return the server instructions, with advice on the memory service if it is present."""
    # A compat profile may have renamed the tools that the instructions mention.
    if "memory_recall" not in server.tools:
        return INSTRUCTIONS
    return f"{INSTRUCTIONS} {READ_ONLY_MEMORY_INSTRUCTIONS if environment.read_only else MEMORY_INSTRUCTIONS}"


def _partly_unavailable(server: Server, environment: ServiceEnvironment) -> dict[str, str]:
    """Return the tools of the served services that are left out or cannot work here, with the reason."""
    if "system" not in {service.name for service in server.services}:
        return {}
    missing = {}
    if not has_psutil():
        missing["system_info, process_list"] = "need portico-services[system]"
    if environment.over_http and server.tools.get("fs_read") is None:
        missing["fs_* tools"] = "need --allow-path PATH over HTTP"
    return missing


def has_psutil() -> bool:
    """Return whether psutil is installed, which process and system information need."""
    return find_spec("psutil") is not None


def select_default_tools(server: Server, *, files: bool) -> list[str]:
    """Return the names of the tools that a server of all services lists by default.

    File tools are included only if `files` is true, that is, if directories were allowed.
    """
    results: list[str] = []
    room = MAX_DEFAULT_TOOLS_BYTES
    for name in DEFAULT_TOOL_ORDER:
        tool = server.tools.get(name)
        if tool is None or (name.startswith("fs_") and not files):
            continue
        # The specification notes are not part of the list of a client, so they do not count.
        meta = {name: part for name, part in (tool.definition.meta or {}).items() if name != SPEC_META_KEY}
        size = len(msgspec.json.encode(replace(tool.definition, output_schema=None, meta=meta or None)))
        if size <= room and len(results) < MAX_DEFAULT_TOOLS:
            results.append(name)
            room -= size
    return results


def _factory_by_name(chosen: Sequence[str], prepare: Callable[[str], Service]) -> Callable[[str], Service]:
    """Return a factory that re-creates a service with the extent it was selected with: `memory` becomes `memory:all`
    again.
    """
    entries = {name.partition(":")[0]: name for name in chosen}
    return lambda name: prepare(entries.get(name, name))


def apply_compat(server: Server, settings_file: SettingsFile) -> None:
    """Adapt the tools of a user's own server to `[compat.target]`. Raises UsageError if the section is missing."""
    compat = settings_file.compat.get(settings.TARGET_SECTION)
    if compat is None:
        raise UsageError(
            "a profile for the built-in services cannot be applied to another server: remove TARGET, or add "
            "[compat.target] to a profile of your own"
        )
    names: dict[str, str] = {}
    registry = server.registry
    # All versions of a tool share its name, and a compat section maps a name once. Each round therefore holds at most
    # one version of every tool.
    rounds: list[list[Tool]] = []
    for tool in list(registry.tools):
        invocation_name = (tool.definition.meta or {}).get(INVOCATION_META_KEY) or make_invocation_name(
            server.info.name, tool.name
        )
        names[tool.name] = deduplicate(invocation_name, names.values()) if compat.dotted_names else tool.name
        versions = registry.versions(tool)
        rounds += [[] for _ in versions[len(rounds) :]]
        for version, batch in zip(reversed(versions), rounds, strict=False):
            registry.remove(version)
            batch.append(cast("Tool", version))
    for batch in rounds:
        listed = {tool.name: names[tool.name] for tool in batch}
        registry.add_all(list(adapter.adapt_components(batch, replace(compat, tools=listed), is_user_server=True)))
    if compat.log_calls:
        adapter.enable_call_log(server)
    _add_call_endpoints(server, [compat])


def _add_call_endpoints(server: Server, sections: Iterable[CompatSection | None]) -> None:
    for compat in sections:
        if compat is not None and compat.call_path is not None:
            from portico_services.contracts import http_endpoint

            http_endpoint.add_call_endpoint(server, compat.call_path)


def _setting_location(files: Sequence[Path], service: str, option: str) -> str:
    """Return the file and line that define an option of a service, as an error prefix; the last file wins."""
    key = f"services.{service}.{option}"
    result = [item for item in (locate(path, key) for path in files) if item not in map(str, files)]
    return f"{result[-1]}: " if result and option else ""


_DEFERRED_KEYS = ("unknown_tool", "unknown_prompt", "error_details")


def _server_options(section: ServerSection) -> dict[str, Any]:
    """Return the constructor arguments of the server from its [server] section."""
    defaults: dict[str, Any] = {"name": NAME, "version": __version__, "instructions": INSTRUCTIONS}
    options = {name: part for name, part in asdict(section).items() if part is not None and name not in _DEFERRED_KEYS}
    if section.capabilities is not None:
        options["capabilities"] = {
            name: {} if part is True else part for name, part in section.capabilities.items() if part is not False
        }
    if "strict_arguments" in options:
        options["component_defaults"] = ComponentDefaults(strict_arguments=options.pop("strict_arguments"))
    # An empty string removes a default, such as the instructions.
    return defaults | {name: None if part == "" else part for name, part in options.items()}


def _apply_compat_to_service(service: Service, possible: Collection[str], compat: CompatSection | None) -> None:
    """Apply a compat section to a service and make its tool names unique among the possible services."""
    list_components = service.components
    if compat is not None:
        service.scheme_aliases = compat.scheme_aliases(service.scheme_aliases)

    def adapt_service() -> Iterator[Any]:
        result = (
            _add_prefixed_aliases(component, service.name) if isinstance(component, Tool) else component
            for component in list_components()
        )
        for component in result if compat is None else adapter.adapt_components(result, compat):
            yield _disambiguate_name(component, service.name, possible) if isinstance(component, Tool) else component

    service.components = adapt_service  # type: ignore[method-assign]


def _add_prefixed_aliases(tool: Tool, service: str) -> Tool:
    """Add the service-prefixed names as aliases: `live.evaluate`, `live_evaluate`.

    Contracts call the tool by its dotted name, which is listed in `_meta` together with the tool's version.
    """
    other = copy(tool)
    dotted = f"{service}.{tool.name}"
    known_names = [name for name in (tool.name, *tool.aliases) if is_invocation_name(name)]
    if not known_names:
        other.aliases = (*tool.aliases, dotted, f"{service}_{tool.name}")
    elif dotted not in known_names:
        dotted = known_names[0]
    other.update_definition(partial(_set_version, service, dotted))
    return other


def _set_version(service: str, dotted: str, definition: ToolDefinition) -> ToolDefinition:
    meta = {VERSION_META_KEY: DEFAULT_TOOL_VERSION, INVOCATION_META_KEY: dotted, **(definition.meta or {})}
    uses = _use_cases(service).get(dotted)
    if uses:
        meta.setdefault(SPEC_META_KEY, {"use_cases": uses})
    return replace(definition, meta=meta, input_schema=add_explicit_required(definition.input_schema))


# Directories of services that are not named after the service.
_FOLDERS = {"tasks": "workitems", "live": "livepython", "code": "codemode"}


@cache
def _use_cases(service: str) -> dict[str, list[str]]:
    """Return the use cases of a service's tools by invocation name, for their specifications."""
    path = Path(__file__).parent / _FOLDERS.get(service, service) / "use_cases.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]]) if path.exists() else {}


def add_explicit_required(schema: Any) -> Any:
    """Return the schema with an explicit `required` list on every object, even an empty one.

    Some code generators reject schemas that omit it.
    """
    if isinstance(schema, list):
        return [add_explicit_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: add_explicit_required(item) for name, item in schema.items()}
    if result.get("type") == "object" and isinstance(result.get("properties"), dict):
        # JSON Schema allows to omit it; the generators of some clients do not.
        result.setdefault("required", [])
    return result


def _disambiguate_name(tool: Tool, service: str, possible: Collection[str]) -> Tool:
    """Prefix a tool name that another service owns, independent of the order in which services are added.

    The other tool becomes `live_system_info`, for example, which is an alias of it in any case.
    """
    # Independent of which services are enabled at the moment: a name must not change when another service is added.
    theirs = {name for name, owner in TOOL_OWNERS.items() if owner != service and owner in possible}
    name = f"{service}_{tool.name}" if tool.name in theirs else tool.name
    aliases = tuple(alias for alias in tool.aliases if alias != name and alias not in theirs)
    if (name, aliases) == (tool.name, tool.aliases):
        return tool
    other = copy(tool)
    other.name, other.aliases = name, aliases
    other.update_definition(lambda definition: replace(definition, name=name))
    return other


def create_service(
    name: str, options: Mapping[str, Any], environment: ServiceEnvironment, *, named: bool = True
) -> Service:
    """Create a service from its options. A service that the user `named` is complete, even if parts of it cannot work
    here.
    """
    name, _, extent = name.partition(":")
    home = SERVICE_CLASSES.get(name)
    if home is None:
        # Only needed here.
        from difflib import get_close_matches

        suggestions = get_close_matches(name, SERVICE_CLASSES, n=1)
        hint = f"did you mean {suggestions[0]!r}?" if suggestions else f"expected one of {', '.join(SERVICE_CLASSES)}"
        raise UsageError(f"unknown service {name!r} ({hint})")
    try:
        # Only now are the dependencies of the service imported.
        kind = getattr(load_module(home[0]), home[1])
    except ImportError as missing:
        raise UsageError(f"missing dependency {missing.name}: install portico-services[{name}]") from None
    merged_options = {
        **_default_options(name, environment),
        **expand_paths(kind.__init__, options),
        **({"tools": extent} if extent else {}),
        # Last, so that no setting can undo --read-only.
        **(_READ_ONLY_OPTIONS.get(name, {}) if environment.read_only else {}),
    }
    if name == "system":
        merged_options = _system_options(merged_options, environment, named)
    if name == "live" and environment.projects:
        merged_options["project_dirs"] = [*merged_options.get("project_dirs", []), *environment.projects]
    # The constructor's parameters are the service's settings.
    service: Service = kind(**merged_options)
    return service


def _system_options(options: dict[str, Any], environment: ServiceEnvironment, named: bool) -> dict[str, Any]:
    """Return the options of the system service, including the command line."""
    if not named:
        options = options | {
            "access_levels": _unavailable_parts(options, environment) | options.get("access_levels", {})
        }
    roots = options.get("allowed_paths", [])
    extra_paths = {"allowed_paths": [*roots, *environment.roots]} if isinstance(roots, list) else {}
    # If the operator allowed no directory, the single client on stdio may offer its roots, with the user's consent.
    # Clients over HTTP may not: they would name directories of a machine that is not theirs.
    client_roots = {"client_roots": not environment.over_http and not roots and not environment.roots}
    return (
        client_roots
        | options
        | extra_paths
        | ({"access_levels": _read_only_levels(options.get("access_levels", {}))} if environment.read_only else {})
    )


def _unavailable_parts(options: dict[str, Any], environment: ServiceEnvironment) -> dict[str, str]:
    """Return the parts to disable: files if neither the operator nor a client can name a directory, the registry
    without hives on systems other than Windows, processes without psutil.
    """
    files = (
        bool(options.get("allowed_paths") or environment.roots)
        or options.get("client_roots")
        or not environment.over_http
    )
    registry = bool(options.get("hives")) or os.name == "nt"
    usable = {"files": files, "registry": registry, "processes": has_psutil()}
    return {part: "disabled" for part, works in usable.items() if not works}


def _read_only_levels(levels: Any) -> Any:
    """Return the levels with read-write reduced to read-only; disabled and unknown levels are unchanged."""
    if not isinstance(levels, dict):
        return levels
    return {part: "read-only" if level == "read-write" else level for part, level in levels.items()}


def _default_options(name: str, environment: ServiceEnvironment) -> dict[str, Any]:
    """Return the default options of a service."""
    if name == "system":
        return {"data_dir": environment.data / "system"}
    if name == "memory":
        return {"store": environment.store, "embedding_model_dir": environment.data}
    if name == "live":
        return {"saved_sessions_dir": environment.data / "live"}
    return {"store": environment.store} if name == "tasks" else {}
