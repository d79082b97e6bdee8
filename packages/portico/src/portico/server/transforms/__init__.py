"""Transforms: changes to the components of a server, as a whole or tool by tool."""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, lazy_exports

if TYPE_CHECKING:
    from portico.server.transforms.arguments import (
        ArgTransform as ArgTransform,
    )
    from portico.server.transforms.builtin import (
        Namespace as Namespace,
        PromptsAsTools as PromptsAsTools,
        ResourcesAsTools as ResourcesAsTools,
        ToolTransform as ToolTransform,
        ToolTransformConfig as ToolTransformConfig,
        Transform as Transform,
        VersionFilter as VersionFilter,
    )
    from portico.server.transforms.transformed_tool import (
        forward as forward,
        forward_raw as forward_raw,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.server.transforms.arguments": ("ArgTransform",),
    "portico.server.transforms.builtin": (
        "Namespace",
        "PromptsAsTools",
        "ResourcesAsTools",
        "ToolTransform",
        "ToolTransformConfig",
        "Transform",
        "VersionFilter",
    ),
    "portico.server.transforms.transformed_tool": (
        "forward",
        "forward_raw",
    ),
}


if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
