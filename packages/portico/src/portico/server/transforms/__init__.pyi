# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.server.transforms.arguments import ArgTransform as ArgTransform
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
