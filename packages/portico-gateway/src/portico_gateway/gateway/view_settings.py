"""Settings of views: parts of the upstreams' components, each at a separate path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypedDict

from msgspec import Struct

from portico._options import check_table
from portico.protocol.errors import UsageError
from portico.server.policy.interfaces import RESULTS_OWNER
from portico_gateway.gateway.name_filter import name_filter


class ViewOptions(TypedDict, total=False):
    """Keywords of `Gateway.add_view` and keys of `[view.NAME]`."""

    # Path of the view's endpoint; different for each view.
    path: str
    # Patterns of aliases of upstreams in the view; all if empty.
    upstreams: Sequence[str]
    # Patterns of components in the view, as `alias.name`; all if empty.
    include: Sequence[str]
    # Patterns of components that are not in the view, as `alias.name`.
    exclude: Sequence[str]
    # Display name in the view's server info.
    title: str
    # Description in the view's server info.
    description: str
    # Instructions that clients of the view give to the model.
    instructions: str


class ViewSettings(Struct, frozen=True, kw_only=True):
    """Settings of a view. Patterns match aliases of upstreams, and components as `alias.name`."""

    name: str
    path: str
    upstreams: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    title: str | None = None
    description: str | None = None
    instructions: str | None = None

    def includes(self, alias: str, name: str) -> bool:
        """Return whether a tool, prompt or URI of an upstream, by its original name, is in the view."""
        if alias == RESULTS_OWNER:
            return True
        # `fnmatch` would ignore case on Windows, and a filter must select the same on every platform.
        selected = not self.upstreams or any(fnmatchcase(alias, upstream) for upstream in self.upstreams)
        return selected and name_filter(self.include, self.exclude).shows(name, alias)


def parse_view(name: str, table: Mapping[str, Any]) -> ViewSettings:
    """Parse the settings of a view. Raises UsageError if they are invalid."""
    check_table(f"view.{name}", table, ViewOptions)
    options: dict[str, Any] = {
        key: tuple(value) if key in ("upstreams", "include", "exclude") else value for key, value in table.items()
    }
    return ViewSettings(name=name, **{"path": f"/mcp/{name}", **options})


def check_view_paths(views: Mapping[str, ViewSettings]) -> dict[str, ViewSettings]:
    """Return the views. Raises UsageError if two of them have the same path."""
    paths: dict[str, str] = {}
    for name, view in views.items():
        # One of the two would never be reached, and its clients would get the other's components.
        if name != paths.setdefault(view.path, name):
            raise UsageError(f"the views {paths[view.path]!r} and {name!r} have the same path {view.path}")
    return dict(views)
