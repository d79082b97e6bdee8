"""What people need who build on Portico: services, middleware, gateways, tools of another kind.

`portico` has the names for everybody, `portico.schema` those about JSON Schema. Each is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

# Two tables, one module after the other: what type checkers see, and where the names are.
# ruff: isort: off
# fmt: off
if TYPE_CHECKING:
    from portico import beneath as beneath, screening as screening
    from portico._options import expand_paths as expand_paths, explained as explained
    from portico.access.limits import Rate as Rate
    from portico.access.restrict import set_access as set_access
    from portico.access.settings import ACCESS_SECTIONS as ACCESS_SECTIONS
    from portico.access.audit.audit import without_secrets as without_secrets
    from portico.access.audit.records import CallRecord as CallRecord
    from portico.access.audit.trail import (
        FileTrail as FileTrail, trail_parts as trail_parts, verify_trail as verify_trail,
    )
    from portico.auth.principal import Principal as Principal
    from portico.client.hearing import LogMessage as LogMessage
    from portico.client.listen import Change as Change
    from portico.client.skills import (
        SkillMismatch as SkillMismatch, list_skills as list_skills, read_skill as read_skill,
        read_skill_file as read_skill_file,
    )
    from portico.faces.face import ServerFace as ServerFace
    from portico.faces.search import SearchFace as SearchFace, add_find_tools as add_find_tools
    from portico.faces.seen import SeenTool as SeenTool, SeenTools as SeenTools
    from portico.finding.index import ToolIndex as ToolIndex, ToolWords as ToolWords
    from portico.finding.near import NearNames as NearNames
    from portico.finding.thesaurus import neighbours as neighbours
    from portico.finding.words import (
        STOP as STOP, camel_parts as camel_parts, listed as listed, stem as stem, words as words,
    )
    from portico.json_depth import (
        TOO_DEEP as TOO_DEEP, decode_bounded as decode_bounded, exceeds_depth as exceeds_depth,
    )
    from portico.legacy import translate as translate
    from portico.rpc.call import (
        Call as Call, Conversation as Conversation, Emit as Emit, Handler as Handler, Listening as Listening,
        Members as Members, Middleware as Middleware, Reply as Reply, members as members,
    )
    from portico.rpc.door import failed_result as failed_result, respond as respond
    from portico.rpc.identity import identity_of as identity_of
    from portico.supervision import BackgroundTasks as BackgroundTasks, run_in_thread as run_in_thread
    from portico.rpc.turns import FairPlaces as FairPlaces
    from portico.telemetry.request_log import log_requests as log_requests
    from portico.server.asking.context import Elicitation as Elicitation, Sample as Sample
    from portico.server.asking.familiar_context import ServerSession as ServerSession
    from portico.server.asking.rounds import rounds_of as rounds_of
    from portico.server.calling.completion import CallerCompleter as CallerCompleter, Completer as Completer
    from portico.server.calling.late import (
        LatePrompt as LatePrompt, LateResource as LateResource, LateTool as LateTool,
    )
    from portico.server.calling.prompts import Prompt as Prompt, PromptOptions as PromptOptions
    from portico.server.calling.resources import Resource as Resource, ResourceOptions as ResourceOptions
    from portico.server.calling.results import to_json as to_json
    from portico.server.calling.runtime import ArgumentErrors as ArgumentErrors, Runtime as Runtime
    from portico.server.calling.tools import Tool as Tool, ToolOptions as ToolOptions, checked_name as checked_name
    from portico.server.endpoint import serve_http as serve_http
    from portico.server.guard import (
        AccessGuard as AccessGuard, Decision as Decision, Kind as Kind, Meter as Meter, Owned as Owned,
        Passage as Passage, Sight as Sight, Witness as Witness,
    )
    from portico.server.familiar.low_level import (
        ErrorData as ErrorData, InitializationOptions as InitializationOptions, INTERNAL_ERROR as
        INTERNAL_ERROR, INVALID_PARAMS as INVALID_PARAMS, INVALID_REQUEST as INVALID_REQUEST, LowLevelServer
        as LowLevelServer, CodedError as CodedError, METHOD_NOT_FOUND as METHOD_NOT_FOUND, NotificationOptions
        as NotificationOptions, PARSE_ERROR as PARSE_ERROR, PromptDefinition as PromptDefinition,
        ReadResourceContents as ReadResourceContents, RequestMembers as RequestMembers, ResourceDefinition
        as ResourceDefinition, ResourceTemplateDefinition as ResourceTemplateDefinition, ToolDefinition as
        ToolDefinition, stdio_server as stdio_server,
    )
    from portico.server.registry.service import Completes as Completes, Component as Component
    from portico.store.bus import Subscription as Subscription
    from portico.store.database import Database as Database, when_ready as when_ready
    from portico.store.errors import (
        BadStatement as BadStatement, Conflict as Conflict, Damaged as Damaged, DatabaseClosed as DatabaseClosed,
        NotUnique as NotUnique, ReadOnly as ReadOnly, StoreError as StoreError, UnfitValue as UnfitValue,
        Violated as Violated,
    )
    from portico.store.transaction import Event as Event
    from portico.store.folder import data_directory as data_directory
    from portico.store.keys import SigningKeys as SigningKeys
    from portico.store.rows import json_column as json_column
    from portico.store.sqlite_transaction import (
        SqliteTransaction as SqliteTransaction, explain_sqlite as explain_sqlite,
    )
    from portico.store.transaction import Transaction as Transaction
    from portico.transport.http.place import is_loopback as is_loopback
    from portico.transport.http_client.browser import headless as headless
    from portico.transport.http_client.once import HttpAnswer as HttpAnswer, http_exchange as http_exchange
    from portico.wire.completion import (
        MOST_COMPLETIONS as MOST_COMPLETIONS, Completion as Completion, PromptReference as PromptReference,
        ResourceReference as ResourceReference,
    )
    from portico.wire.content import (
        Annotations as Annotations, AudioContent as AudioContent, BlobContents as BlobContents,
        EmbeddedResource as EmbeddedResource, ImageContent as ImageContent, ResourceLink as ResourceLink,
        Result as Result, TextContent as TextContent, TextContents as TextContents,
    )
    from portico.wire.errors import (
        BadStatus as BadStatus, Closed as Closed, HeaderMismatch as HeaderMismatch,
        InsufficientScope as InsufficientScope, InternalError as InternalError, InvalidParams as InvalidParams,
        MethodNotFound as MethodNotFound, MissingCapability as MissingCapability,
        NeedsTask as NeedsTask, ResourceNotFound as ResourceNotFound, TimedOut as TimedOut,
        TransportError as TransportError, Unknown as Unknown, from_wire as from_wire,
    )
    from portico.wire.inputs import (
        CreateMessageParams as CreateMessageParams, CreateMessageResult as CreateMessageResult,
        ElicitParams as ElicitParams, ElicitResult as ElicitResult, InputRequiredResult as InputRequiredResult,
        Root as Root, SamplingMessage as SamplingMessage,
        ListRootsResult as ListRootsResult,
    )
    from portico.wire.meta import (
        ClientCapabilities as ClientCapabilities, Icon as Icon, Implementation as Implementation, Params as Params,
        ServerCapabilities as ServerCapabilities,
    )
    from portico.wire.methods import Method as Method, add_method as add_method
    from portico.wire import notices as notices
    from portico.wire.prompts import (
        GetPromptParams as GetPromptParams, GetPromptResult as GetPromptResult, PromptArgument as PromptArgument,
        PromptMessage as PromptMessage,
        ListPromptsResult as ListPromptsResult,
    )
    from portico.wire.resources import (
        ReadResourceParams as ReadResourceParams, ReadResourceResult as ReadResourceResult,
        ListResourcesResult as ListResourcesResult, ListResourceTemplatesResult as ListResourceTemplatesResult,
    )
    from portico.wire.revisions import (
        LATEST as LATEST, MODERN as MODERN, NEWEST_HANDSHAKE as NEWEST_HANDSHAKE, REVISIONS as REVISIONS,
        Revision as Revision, V2024_11_05 as V2024_11_05, V2025_03_26 as V2025_03_26, V2025_06_18 as V2025_06_18,
        V2025_11_25 as V2025_11_25, V2026_07_28 as V2026_07_28,
    )
    from portico.wire.subscriptions import Filter as Filter
    from portico.wire.tasks import TASKS_EXTENSION as TASKS_EXTENSION
    from portico.wire.tools import (
        ERROR as ERROR, RESULT as RESULT, WRAPPED as WRAPPED, CallToolParams as CallToolParams,
        CallToolResult as CallToolResult, ToolAnnotations as ToolAnnotations,
        ListToolsResult as ListToolsResult,
    )
    from portico.wire.uris import Template as Template

_HOMES: dict[str, tuple[str, ...]] = {
    "portico.beneath": (),
    "portico.screening": (),
    "portico._options": ("expand_paths", "explained"),
    "portico.access.limits": ("Rate",),
    "portico.access.restrict": ("set_access",),
    "portico.access.settings": ("ACCESS_SECTIONS",),
    "portico.access.audit.audit": ("without_secrets",),
    "portico.access.audit.records": ("CallRecord",),
    "portico.access.audit.trail": ("FileTrail", "trail_parts", "verify_trail"),
    "portico.auth.principal": ("Principal",),
    "portico.client.hearing": ("LogMessage",),
    "portico.client.listen": ("Change",),
    "portico.client.skills": ("SkillMismatch", "list_skills", "read_skill", "read_skill_file"),
    "portico.faces.face": ("ServerFace",),
    "portico.faces.search": ("SearchFace", "add_find_tools"),
    "portico.faces.seen": ("SeenTool", "SeenTools"),
    "portico.finding.index": ("ToolIndex", "ToolWords"),
    "portico.finding.near": ("NearNames",),
    "portico.finding.thesaurus": ("neighbours",),
    "portico.finding.words": ("STOP", "camel_parts", "listed", "stem", "words"),
    "portico.legacy.translate": (),
    "portico.rpc.call": (
        "Call", "Conversation", "Emit", "Handler", "Listening", "Members", "Middleware", "Reply", "members",
    ),
    "portico.rpc.door": ("failed_result", "respond"),
    "portico.rpc.identity": ("identity_of",),
    "portico.rpc.turns": ("FairPlaces",),
    "portico.telemetry.request_log": ("log_requests",),
    "portico.server.asking.context": ("Elicitation", "Sample"),
    "portico.server.asking.familiar_context": ("ServerSession",),
    "portico.server.asking.rounds": ("rounds_of",),
    "portico.server.calling.completion": ("CallerCompleter", "Completer"),
    "portico.server.calling.late": ("LatePrompt", "LateResource", "LateTool"),
    "portico.server.calling.prompts": ("Prompt", "PromptOptions"),
    "portico.server.calling.resources": ("Resource", "ResourceOptions"),
    "portico.server.calling.results": ("to_json",),
    "portico.server.calling.runtime": ("ArgumentErrors", "Runtime"),
    "portico.server.calling.tools": ("Tool", "ToolOptions", "checked_name"),
    "portico.server.endpoint": ("serve_http",),
    "portico.server.guard": (
        "AccessGuard", "Decision", "Kind", "Meter", "Owned", "Passage", "Sight", "Witness",
    ),
    "portico.server.familiar.low_level": (
        "ErrorData", "InitializationOptions", "INTERNAL_ERROR", "INVALID_PARAMS", "INVALID_REQUEST",
        "LowLevelServer", "CodedError", "METHOD_NOT_FOUND", "NotificationOptions", "PARSE_ERROR",
        "PromptDefinition", "ReadResourceContents", "RequestMembers", "ResourceDefinition",
        "ResourceTemplateDefinition", "ToolDefinition", "stdio_server",
    ),
    "portico.server.registry.service": ("Completes", "Component"),
    "portico.store.bus": ("Subscription",),
    "portico.store.database": ("Database", "when_ready"),
    "portico.store.errors": (
        "BadStatement", "Conflict", "Damaged", "DatabaseClosed", "NotUnique", "ReadOnly", "StoreError",
        "UnfitValue", "Violated",
    ),
    "portico.store.folder": ("data_directory",),
    "portico.store.keys": ("SigningKeys",),
    "portico.store.rows": ("json_column",),
    "portico.store.sqlite_transaction": ("SqliteTransaction", "explain_sqlite"),
    "portico.store.transaction": ("Event", "Transaction"),
    "portico.transport.http.place": ("is_loopback",),
    "portico.transport.http_client.browser": ("headless",),
    "portico.json_depth": ("TOO_DEEP", "decode_bounded", "exceeds_depth"),
    "portico.supervision": ("BackgroundTasks", "run_in_thread"),
    "portico.transport.http_client.once": ("HttpAnswer", "http_exchange"),
    "portico.wire.completion": ("MOST_COMPLETIONS", "Completion", "PromptReference", "ResourceReference"),
    "portico.wire.content": (
        "Annotations", "AudioContent", "BlobContents", "EmbeddedResource", "ImageContent", "ResourceLink",
        "Result", "TextContent", "TextContents",
    ),
    "portico.wire.errors": (
        "BadStatus", "Closed", "HeaderMismatch", "InsufficientScope", "InternalError", "InvalidParams",
        "MethodNotFound", "MissingCapability", "NeedsTask", "ResourceNotFound", "TimedOut", "TransportError", "Unknown",
        "from_wire",
    ),
    "portico.wire.inputs": (
        "CreateMessageParams", "CreateMessageResult", "ElicitParams", "ElicitResult", "InputRequiredResult",
        "Root", "SamplingMessage",
        "ListRootsResult",
    ),
    "portico.wire.meta": ("ClientCapabilities", "Icon", "Implementation", "Params", "ServerCapabilities"),
    "portico.wire.methods": ("Method", "add_method"),
    "portico.wire.notices": (),
    "portico.wire.prompts": (
        "GetPromptParams", "GetPromptResult", "PromptArgument", "PromptMessage",
        "ListPromptsResult",
    ),
    "portico.wire.resources": (
        "ReadResourceParams", "ReadResourceResult",
        "ListResourcesResult", "ListResourceTemplatesResult",
    ),
    "portico.wire.revisions": (
        "LATEST", "MODERN", "NEWEST_HANDSHAKE", "REVISIONS", "Revision", "V2024_11_05", "V2025_03_26",
        "V2025_06_18", "V2025_11_25", "V2026_07_28",
    ),
    "portico.wire.subscriptions": ("Filter",),
    "portico.wire.tasks": ("TASKS_EXTENSION",),
    "portico.wire.tools": (
        "ERROR", "RESULT", "WRAPPED", "CallToolParams", "CallToolResult", "ToolAnnotations",
        "ListToolsResult",
    ),
    "portico.wire.uris": ("Template",),
}
# fmt: on

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
