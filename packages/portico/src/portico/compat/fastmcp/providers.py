"""FastMCP's providers: a bundle for several servers, skill directories, another server."""

from __future__ import annotations

import logging
import os
from itertools import count
from pathlib import Path
from typing import Any

from portico.compat.unsupported import UnsupportedFeature, pop_unsupported, reject_options
from portico.protocol.errors import UsageError
from portico.server.registry.service import Component, Service

log = logging.getLogger("portico")

_numbers = count(1)
_LOCAL_UNSUPPORTED = {"on_duplicate": UnsupportedFeature("use FastMCP(on_duplicate=…)", accepted=(None, "error"))}
_SKILLS_UNSUPPORTED = {
    # Files are read on demand.
    "reload": UnsupportedFeature("use True or False", accepted=(None, True, False)),
    "main_file_name": UnsupportedFeature("the file is SKILL.md", accepted=(None, "SKILL.md")),
    # Supporting files are listed as resources and read through a template.
    "supporting_files": UnsupportedFeature("use 'template' or 'resources'", accepted=(None, "template", "resources")),
    "experimental_skills": UnsupportedFeature("omit it: skills are always available", accepted=(None, False, True)),
}
_PROXY_UNSUPPORTED = {"mode": UnsupportedFeature("protocol versions are translated between both sides; omit it")}


class LocalProvider(Service):
    """A bundle of components for several servers: `@components.tool`, then `Server(providers=[components])`."""

    def __init__(self, name: str | None = None, **unsupported: Any) -> None:
        reject_options("LocalProvider", unsupported, _LOCAL_UNSUPPORTED)
        super().__init__(name or f"local{next(_numbers)}")
        self._servers: list[Any] = []

    def on_added(self, server: Any) -> None:
        self._servers.append(server)

    def _register(self, component: Component) -> None:
        super()._register(component)
        for server in getattr(self, "_servers", ()):
            server.add_to_service(self.name, [component])


class Provider:
    """FastMCP's base class of custom component sources, which is a Service in Portico."""

    def __init_subclass__(cls) -> None:
        raise UsageError(
            f"{cls.__name__}: subclasses of Provider are not supported. Provide components with a "
            "portico.Service, or with server.add and server.remove at any time; listeners are notified"
        )


class SkillsDirectoryProvider:
    """FastMCP's name for `server.add(Skills(folder))`."""

    def __init__(self, roots: Any, **unsupported: Any) -> None:
        reject_options(type(self).__name__, unsupported, _SKILLS_UNSUPPORTED)
        folders = [roots] if isinstance(roots, str | os.PathLike) else list(roots)
        existing = [folder for folder in folders if Path(folder).expanduser().is_dir()]
        for folder in folders:
            if folder not in existing:
                log.warning("skills directory %s not found", folder)
        if len(existing) > 1:
            raise UsageError(
                "only one skills directory is supported; create a server with Skills for each directory, and mount them"
            )
        self._folders = existing

    def attach(self, server: Any) -> None:
        """Add the skills to a server."""
        from portico.server.skills.service import Skills

        for folder in self._folders:
            server.add(Skills(Path(folder).expanduser()))


class ClaudeSkillsProvider(SkillsDirectoryProvider):
    """The skills in `~/.claude/skills`."""

    def __init__(self, **unsupported: Any) -> None:
        super().__init__("~/.claude/skills", **unsupported)


def create_proxy(target: Any, *, name: str | None = None, **options: Any) -> Any:
    """Return a server that forwards everything to another one: a URL, a command, a Client or a Server."""
    pop_unsupported("create_proxy", options, _PROXY_UNSUPPORTED)
    from portico.compat.fastmcp.server import FastMCP

    server = FastMCP(name or "proxy", **options)
    server.mount(target)
    return server
