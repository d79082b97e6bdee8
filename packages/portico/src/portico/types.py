"""Types of the protocol, in the shape of its newest version: content blocks, definitions, results, capabilities.

A name is imported when it is first used.
"""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, public_names

if TYPE_CHECKING:
    from portico.client.notifications import (
        LogMessage as LogMessage,
    )
    from portico.client.subscriptions import (
        Change as Change,
    )
    from portico.protocol.client_features import (
        CreateMessageParams as CreateMessageParams,
    )
    from portico.protocol.client_features import (
        CreateMessageResult as CreateMessageResult,
    )
    from portico.protocol.client_features import (
        ElicitParams as ElicitParams,
    )
    from portico.protocol.client_features import (
        ElicitResult as ElicitResult,
    )
    from portico.protocol.client_features import (
        InputRequiredResult as InputRequiredResult,
    )
    from portico.protocol.client_features import (
        ListRootsResult as ListRootsResult,
    )
    from portico.protocol.client_features import (
        ModelHint as ModelHint,
    )
    from portico.protocol.client_features import (
        ModelPreferences as ModelPreferences,
    )
    from portico.protocol.client_features import (
        Root as Root,
    )
    from portico.protocol.client_features import (
        SamplingMessage as SamplingMessage,
    )
    from portico.protocol.completion import (
        CompleteResult as CompleteResult,
    )
    from portico.protocol.completion import (
        Completion as Completion,
    )
    from portico.protocol.completion import (
        PromptReference as PromptReference,
    )
    from portico.protocol.completion import (
        ResourceReference as ResourceReference,
    )
    from portico.protocol.content import (
        Annotations as Annotations,
    )
    from portico.protocol.content import (
        AudioContent as AudioContent,
    )
    from portico.protocol.content import (
        BlobContents as BlobContents,
    )
    from portico.protocol.content import (
        EmbeddedResource as EmbeddedResource,
    )
    from portico.protocol.content import (
        ImageContent as ImageContent,
    )
    from portico.protocol.content import (
        ResourceLink as ResourceLink,
    )
    from portico.protocol.content import (
        TextContent as TextContent,
    )
    from portico.protocol.content import (
        TextContents as TextContents,
    )
    from portico.protocol.content import (
        ToolResultContent as ToolResultContent,
    )
    from portico.protocol.content import (
        ToolUseContent as ToolUseContent,
    )
    from portico.protocol.meta import (
        ClientCapabilities as ClientCapabilities,
    )
    from portico.protocol.meta import (
        Icon as Icon,
    )
    from portico.protocol.meta import (
        Implementation as Implementation,
    )
    from portico.protocol.meta import (
        LogLevel as LogLevel,
    )
    from portico.protocol.meta import (
        ServerCapabilities as ServerCapabilities,
    )
    from portico.protocol.prompts import (
        GetPromptResult as GetPromptResult,
    )
    from portico.protocol.prompts import (
        ListPromptsResult as ListPromptsResult,
    )
    from portico.protocol.prompts import (
        Prompt as Prompt,
    )
    from portico.protocol.prompts import (
        PromptArgument as PromptArgument,
    )
    from portico.protocol.prompts import (
        PromptMessage as PromptMessage,
    )
    from portico.protocol.resources import (
        ListResourcesResult as ListResourcesResult,
    )
    from portico.protocol.resources import (
        ListResourceTemplatesResult as ListResourceTemplatesResult,
    )
    from portico.protocol.resources import (
        ReadResourceResult as ReadResourceResult,
    )
    from portico.protocol.resources import (
        Resource as Resource,
    )
    from portico.protocol.resources import (
        ResourceTemplate as ResourceTemplate,
    )
    from portico.protocol.skills import (
        Skill as Skill,
    )
    from portico.protocol.skills import (
        SkillFile as SkillFile,
    )
    from portico.protocol.subscriptions import (
        Filter as Filter,
    )
    from portico.protocol.tasks import (
        DetailedTask as DetailedTask,
    )
    from portico.protocol.tasks import (
        Task as Task,
    )
    from portico.protocol.tasks import (
        TaskHandle as TaskHandle,
    )
    from portico.protocol.tools import (
        CallToolResult as CallToolResult,
    )
    from portico.protocol.tools import (
        ListToolsResult as ListToolsResult,
    )
    from portico.protocol.tools import (
        Tool as Tool,
    )
    from portico.protocol.tools import (
        ToolAnnotations as ToolAnnotations,
    )
    from portico.protocol.tools import (
        ToolChoice as ToolChoice,
    )
    from portico.protocol.versions import (
        LATEST as LATEST,
    )
    from portico.protocol.versions import (
        REVISIONS as REVISIONS,
    )
    from portico.protocol.versions import (
        Revision as Revision,
    )
    from portico.server.context.context import (
        AcceptedElicitation as AcceptedElicitation,
    )
    from portico.server.context.context import (
        CancelledElicitation as CancelledElicitation,
    )
    from portico.server.context.context import (
        DeclinedElicitation as DeclinedElicitation,
    )
    from portico.server.context.context import (
        ElicitationResult as ElicitationResult,
    )
    from portico.server.context.context import (
        Sample as Sample,
    )

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.client.notifications": ("LogMessage",),
    "portico.client.subscriptions": ("Change",),
    "portico.protocol.client_features": (
        "CreateMessageParams",
        "CreateMessageResult",
        "ElicitParams",
        "ElicitResult",
        "InputRequiredResult",
        "ListRootsResult",
        "ModelHint",
        "ModelPreferences",
        "Root",
        "SamplingMessage",
    ),
    "portico.protocol.completion": (
        "CompleteResult",
        "Completion",
        "PromptReference",
        "ResourceReference",
    ),
    "portico.protocol.content": (
        "Annotations",
        "AudioContent",
        "BlobContents",
        "EmbeddedResource",
        "ImageContent",
        "ResourceLink",
        "TextContent",
        "TextContents",
        "ToolResultContent",
        "ToolUseContent",
    ),
    "portico.protocol.meta": (
        "ClientCapabilities",
        "Icon",
        "Implementation",
        "LogLevel",
        "ServerCapabilities",
    ),
    "portico.protocol.prompts": (
        "GetPromptResult",
        "ListPromptsResult",
        "Prompt",
        "PromptArgument",
        "PromptMessage",
    ),
    "portico.protocol.resources": (
        "ListResourceTemplatesResult",
        "ListResourcesResult",
        "ReadResourceResult",
        "Resource",
        "ResourceTemplate",
    ),
    "portico.protocol.skills": (
        "Skill",
        "SkillFile",
    ),
    "portico.protocol.subscriptions": ("Filter",),
    "portico.protocol.tasks": (
        "DetailedTask",
        "Task",
        "TaskHandle",
    ),
    "portico.protocol.tools": (
        "CallToolResult",
        "ListToolsResult",
        "Tool",
        "ToolAnnotations",
        "ToolChoice",
    ),
    "portico.protocol.versions": (
        "LATEST",
        "REVISIONS",
        "Revision",
    ),
    "portico.server.context.context": (
        "AcceptedElicitation",
        "CancelledElicitation",
        "DeclinedElicitation",
        "ElicitationResult",
        "Sample",
    ),
}


if not TYPE_CHECKING:  # a type checker would accept any name of a module with __getattr__
    __getattr__, __dir__ = public_names(__name__, _HOMES)
