"""FastMCP's providers: a bundle for several servers, folders of skills, another server."""

from __future__ import annotations

import logging
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portico._lazy import LazyModule
from portico.compat.unsupported import Unsupported, pop_unsupported, reject_options
from portico.protocol.errors import UsageError
from portico.server.registry.service import Component, Service

if TYPE_CHECKING:
    from portico.compat.fastmcp import server as server_module
    from portico.server.skills import service
else:
    server_module = LazyModule("portico.compat.fastmcp.server")
    service = LazyModule("portico.server.skills.service")

log = logging.getLogger("portico")

_numbers = count(1)
_LOCAL_UNSUPPORTED = {"on_duplicate": Unsupported("use FastMCP(on_duplicate=…)", accepted=(None, "error"))}
_SKILLS_UNSUPPORTED = {
    # Files are read when they are asked for.
    "reload": Unsupported("use True or False", accepted=(None, True, False)),
    "main_file_name": Unsupported("the file is SKILL.md", accepted=(None, "SKILL.md")),
    # Supporting files are listed as resources and read by a template.
    "supporting_files": Unsupported("use 'template' or 'resources'", accepted=(None, "template", "resources")),
    "experimental_skills": Unsupported("leave it out", accepted=(None, False, True)),
}
_PROXY_UNSUPPORTED = {"mode": Unsupported("the versions of both sides are translated; leave it out")}


class LocalProvider(Service):
    """A bundle that several servers have: `@components.tool`, then `Server(providers=[components])`."""

    def __init__(self, name: str | None = None, **unsupported: Any) -> None:
        reject_options("LocalProvider", unsupported, _LOCAL_UNSUPPORTED)
        super().__init__(name or f"local{next(_numbers)}")
        self._servers: list[Any] = []

    def added(self, server: Any) -> None:
        self._servers.append(server)

    def _register(self, component: Component) -> None:
        super()._register(component)
        for server in getattr(self, "_servers", ()):
            server.add_to_bundle(self.name, [component])


class Provider:
    """FastMCP's word for a source of components of one's own, which is a Service here."""

    def __init_subclass__(cls) -> None:
        raise UsageError(
            f"{cls.__name__} would not be asked: where components come from elsewhere, a portico.Service offers them, "
            "or server.add and server.remove at any time; listeners are told"
        )


class SkillsDirectoryProvider:
    """FastMCP's word for `server.add(Skills(folder))`."""

    def __init__(self, roots: Any, **unsupported: Any) -> None:
        reject_options(type(self).__name__, unsupported, _SKILLS_UNSUPPORTED)
        folders = [roots] if isinstance(roots, str | os.PathLike) else list(roots)
        there = [one for one in folders if Path(one).expanduser().is_dir()]
        for one in folders:
            if one not in there:
                log.warning("there is no folder %s, so no skills come from it", one)
        if len(there) > 1:
            raise UsageError(
                "skills come from one folder here; add a Skills for each of several servers, and mount them"
            )
        self._folders = there

    def put_on(self, server: Any) -> None:
        for folder in self._folders:
            server.add(service.Skills(Path(folder).expanduser()))


class ClaudeSkillsProvider(SkillsDirectoryProvider):
    """The skills in `~/.claude/skills`."""

    def __init__(self, **unsupported: Any) -> None:
        super().__init__("~/.claude/skills", **unsupported)


def create_proxy(target: Any, *, name: str | None = None, **options: Any) -> Any:
    """A server that passes everything on to another one: a URL, a command, a Client, a Server."""
    pop_unsupported("create_proxy", options, _PROXY_UNSUPPORTED)
    server = server_module.FastMCP(name or "proxy", **options)
    server.mount(target)
    return server
