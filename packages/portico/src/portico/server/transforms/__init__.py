"""Transforms: change what a server offers, as a whole or tool by tool."""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, public_names

if TYPE_CHECKING:
    from portico.server.transforms.arguments import (
        ArgTransform as ArgTransform,
    )
    from portico.server.transforms.builtin import (
        Namespace as Namespace,
    )
    from portico.server.transforms.builtin import (
        PromptsAsTools as PromptsAsTools,
    )
    from portico.server.transforms.builtin import (
        ResourcesAsTools as ResourcesAsTools,
    )
    from portico.server.transforms.builtin import (
        ToolTransform as ToolTransform,
    )
    from portico.server.transforms.builtin import (
        ToolTransformConfig as ToolTransformConfig,
    )
    from portico.server.transforms.builtin import (
        Transform as Transform,
    )
    from portico.server.transforms.builtin import (
        VersionFilter as VersionFilter,
    )
    from portico.server.transforms.transformed_tool import (
        forward as forward,
    )
    from portico.server.transforms.transformed_tool import (
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
    __getattr__, __dir__ = public_names(__name__, _HOMES)
