# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.client.notifications import LogMessage as LogMessage
from portico.client.subscriptions import Change as Change
from portico.protocol.client_features import (
    CreateMessageParams as CreateMessageParams,
    CreateMessageResult as CreateMessageResult,
    ElicitParams as ElicitParams,
    ElicitResult as ElicitResult,
    InputRequiredResult as InputRequiredResult,
    ListRootsResult as ListRootsResult,
    ModelHint as ModelHint,
    ModelPreferences as ModelPreferences,
    Root as Root,
    SamplingMessage as SamplingMessage,
)
from portico.protocol.completion import (
    CompleteResult as CompleteResult,
    Completion as Completion,
    PromptReference as PromptReference,
    ResourceReference as ResourceReference,
)
from portico.protocol.content import (
    Annotations as Annotations,
    AudioContent as AudioContent,
    BlobResourceContents as BlobResourceContents,
    EmbeddedResource as EmbeddedResource,
    ImageContent as ImageContent,
    ResourceLink as ResourceLink,
    TextContent as TextContent,
    TextResourceContents as TextResourceContents,
    ToolResultContent as ToolResultContent,
    ToolUseContent as ToolUseContent,
)
from portico.protocol.meta import (
    ClientCapabilities as ClientCapabilities,
    Icon as Icon,
    Implementation as Implementation,
    LogLevel as LogLevel,
    ServerCapabilities as ServerCapabilities,
)
from portico.protocol.prompts import (
    GetPromptResult as GetPromptResult,
    ListPromptsResult as ListPromptsResult,
    Prompt as Prompt,
    PromptArgument as PromptArgument,
    PromptMessage as PromptMessage,
)
from portico.protocol.resources import (
    ListResourcesResult as ListResourcesResult,
    ListResourceTemplatesResult as ListResourceTemplatesResult,
    ReadResourceResult as ReadResourceResult,
    Resource as Resource,
    ResourceTemplate as ResourceTemplate,
)
from portico.protocol.skills import Skill as Skill, SkillFile as SkillFile
from portico.protocol.subscriptions import SubscriptionFilter as SubscriptionFilter
from portico.protocol.tasks import DetailedTask as DetailedTask, Task as Task, TaskHandle as TaskHandle
from portico.protocol.tools import (
    CallToolResult as CallToolResult,
    ListToolsResult as ListToolsResult,
    Tool as Tool,
    ToolAnnotations as ToolAnnotations,
    ToolChoice as ToolChoice,
)
from portico.protocol.versions import (
    LATEST_PROTOCOL_VERSION as LATEST_PROTOCOL_VERSION,
    SUPPORTED_PROTOCOL_VERSIONS as SUPPORTED_PROTOCOL_VERSIONS,
    V2024_11_05 as V2024_11_05,
    V2025_03_26 as V2025_03_26,
    V2025_06_18 as V2025_06_18,
    V2025_11_25 as V2025_11_25,
    V2026_07_28 as V2026_07_28,
    ProtocolVersion as ProtocolVersion,
)
from portico.server.context.context import (
    AcceptedElicitation as AcceptedElicitation,
    CancelledElicitation as CancelledElicitation,
    DeclinedElicitation as DeclinedElicitation,
    Elicitation as Elicitation,
    ElicitationResult as ElicitationResult,
    SamplingResult as SamplingResult,
)
