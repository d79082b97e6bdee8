"""The services we ship, put together to one server: which of them, with which settings, and where they keep things."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from portico.server.server import Server
from portico.server.service import Service
from portico.server.tools import Tool
from portico.wire.errors import UsageError

log = logging.getLogger("portico")

NAME = "portico"
# What --read-only means to each, whatever its settings say.
_READ_ONLY: dict[str, dict[str, Any]] = {
    "memory": {"read_only": True},
    "system": {"levels": {"eventlog": "read-only", "fs": "read-only", "reg": "read-only"}},
}
INSTRUCTIONS = "Tools of this machine. Each service has its own; what is listed is what there is."

# Each service by its name: where its class is. Imported when it is wanted, with whatever it needs.
HOMES = {
    "memory": ("portico.services.memory.service", "Memory"),
    "system": ("portico.services.system.service", "System"),
    "live": ("portico.services.live.service", "Live"),
    "contracts": ("portico.services.contracts.service", "Contracts"),
}


class Settings(Struct, frozen=True, kw_only=True):
    """What a portico.toml says: `[server]` about the whole, `[services.NAME]` about each."""

    server: dict[str, Any] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)


class Place(Struct, frozen=True, kw_only=True):
    """Where a server is set up."""

    data: Path
    store: str
    read_only: bool = False


def read_settings(path: str | Path) -> Settings:
    """Unknown parts are mistakes: a setting that nobody reads protects nobody."""
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise UsageError(f"{path} cannot be read: {failure.strerror}") from None
    except ValueError as failure:
        raise UsageError(f"{path} is not TOML: {failure}") from None
    unknown = [name for name in said if name not in ("server", "services")]
    services = said.get("services", {})
    unknown += [f"services.{name}" for name in services if name not in HOMES]
    if unknown:
        raise UsageError(
            f"{path}: nobody reads {', '.join(unknown)}; there are server and services.{{{', '.join(HOMES)}}}"
        )
    if not all(isinstance(one, dict) for one in (said.get("server", {}), services, *services.values())):
        raise UsageError(f"{path}: server and each of the services are tables")
    return Settings(server=said.get("server", {}), services=services)


def assemble(names: Sequence[str] | None, settings: Settings, place: Place) -> Server:
    """A server of these services. With no names, of all that can be had on this machine."""
    server = Server(**{"name": NAME, "version": _version(), "instructions": INSTRUCTIONS, **_checked(settings.server)})
    for name in names if names is not None else HOMES:
        try:
            service = make(name, settings.services.get(name.partition(":")[0], {}), place)
            _keep_apart(service, server)
            server.add(service)
        except UsageError as reason:
            if names is not None:
                raise UsageError(f"the service {name!r}: {reason}") from None
            log.warning("the service %r is not there: %s", name, reason)
    return server


def _keep_apart(service: Service, server: Server) -> None:
    """Two services may call a tool alike. The one that comes later then says whose it is: `live_system_info`."""
    offers = service.offers

    def apart() -> Iterator[Any]:
        for offered in offers():
            if isinstance(offered, Tool) and server.offers.tool(offered.name) is not None:
                yield _renamed(offered, f"{service.name}_{offered.name}")
            else:
                yield offered

    service.offers = apart  # type: ignore[method-assign]


def _renamed(tool: Tool, name: str) -> Tool:
    other = copy(tool)
    other.name, other.definition = name, replace(tool.definition, name=name)
    return other


def make(name: str, options: Mapping[str, Any], place: Place) -> Service:
    name, _, extent = name.partition(":")
    home = HOMES.get(name)
    if home is None:
        raise UsageError(f"there is no service {name!r}; there are {', '.join(HOMES)}")
    given = {
        **_usual(name, place),
        **({"offered": extent} if extent else {}),
        **options,
        **(_READ_ONLY.get(name, {}) if place.read_only else {}),
    }
    try:
        kind = getattr(import_module(home[0]), home[1])
    except ImportError as missing:
        raise UsageError(f"it needs a package that is not installed: portico[{name}] ({missing.name})") from None
    try:
        made: Service = kind(**given)
    except TypeError as failure:
        # Its constructor is the list of its settings.
        raise UsageError(str(failure).partition("() ")[2] or str(failure)) from None
    return made


def _usual(name: str, place: Place) -> dict[str, Any]:
    """What a service is told when nobody says otherwise."""
    if name == "system":
        return {"data": place.data / "system"}
    return {"store": place.store} if name in ("memory", "tasks") else {}


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    known = ("name", "version", "title", "description", "website_url", "instructions")
    unknown = [name for name in said if name not in known]
    if unknown:
        raise UsageError(f"server.{unknown[0]} is no setting; there are {', '.join(known)}")
    return said


def _version() -> str:
    return str(import_module("portico").__version__)
