"""What people need who build on Portico: services, middleware, gateways, tools of another kind.

`portico` has the names for everybody, `portico.jsonschema` those about JSON Schema, `portico.audit` those for audit
logs. Each is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portico._lazy import public_names

# Two tables, one module after the other: what type checkers see, and where the names are.
# ruff: isort: off
# fmt: off
if TYPE_CHECKING:
    from portico._options import expand_paths as expand_paths, explained as explained
    from portico.rpc.rate_limit import Rate as Rate
    from portico.server.policy.settings import set_access as set_access
    from portico.server.policy.settings import ACCESS_SECTIONS as ACCESS_SECTIONS
    from portico.auth.principal import Principal as Principal
    from portico.client.notifications import LogMessage as LogMessage
    from portico.client.subscriptions import Change as Change
    from portico.client.skills import (
        SkillMismatch as SkillMismatch, list_skills as list_skills, read_skill as read_skill,
        read_skill_file as read_skill_file,
    )
    from portico.search.tool_search_base import ServerFace as ServerFace
    from portico.search.tool_search import SearchFace as SearchFace, add_find_tools as add_find_tools
    from portico.search.visible_tools import SeenTool as SeenTool, SeenTools as SeenTools
    from portico.search.tool_index import ToolIndex as ToolIndex, ToolWords as ToolWords
    from portico.search.fuzzy_names import NearNames as NearNames
    from portico.search.synonyms import neighbours as neighbours
    from portico.search.text import (
        STOP as STOP,
        camel_parts as camel_parts,
        listed as listed,
        stem as stem,
        words as words,
    )
    from portico.protocol.json_depth import (
        TOO_DEEP as TOO_DEEP,
        decode_bounded as decode_bounded,
        exceeds_depth as exceeds_depth,
    )
    from portico.rpc.call import (
        Call as Call, Conversation as Conversation, Emit as Emit, Handler as Handler, Listening as Listening,
        HandlerMiddleware as HandlerMiddleware, Members as Members, Reply as Reply, members as members,
    )
    from portico.rpc.dispatcher import failed_result as failed_result, respond as respond
    from portico.rpc.identity import identity_of as identity_of
    from portico.rpc.supervision import BackgroundTasks as BackgroundTasks, run_in_thread as run_in_thread
    from portico.rpc.fair_queue import FairPlaces as FairPlaces
    from portico.telemetry.request_log import log_requests as log_requests
    from portico.server.context.context import Elicitation as Elicitation, Sample as Sample
    from portico.server.context.input_rounds import rounds_of as rounds_of
    from portico.server.components.completion import CallerCompleter as CallerCompleter, Completer as Completer
    from portico.server.components.lazy import (
        LatePrompt as LatePrompt,
        LateResource as LateResource,
        LateTool as LateTool,
    )
    from portico.server.components.prompts import Prompt as Prompt, PromptOptions as PromptOptions
    from portico.server.components.resources import Resource as Resource, ResourceOptions as ResourceOptions
    from portico.server.components.results import to_json as to_json
    from portico.server.components.runtime import ArgumentErrors as ArgumentErrors, Runtime as Runtime
    from portico.server.components.tools import Tool as Tool, ToolOptions as ToolOptions, checked_name as checked_name
    from portico.server.http import serve_http as serve_http
    from portico.server.policy.interfaces import (
        AccessGuard as AccessGuard,
        Decision as Decision,
        Kind as Kind,
        Meter as Meter,
        Owned as Owned,
        Passage as Passage,
        Sight as Sight,
        Witness as Witness,
    )
    from portico.server.registry.service import Completes as Completes, Component as Component
    from portico.store.event_bus import Subscription as Subscription
    from portico.store.database import Database as Database, when_ready as when_ready
    from portico.store.errors import (
        BadStatement as BadStatement, Conflict as Conflict, Damaged as Damaged, DatabaseClosed as DatabaseClosed,
        NotUnique as NotUnique, ReadOnly as ReadOnly, StoreError as StoreError, UnfitValue as UnfitValue,
        Violated as Violated,
    )
    from portico.store.transaction import Event as Event
    from portico.store.data_directory import data_directory as data_directory
    from portico.store.keys import SigningKeys as SigningKeys
    from portico.store.rows import json_column as json_column
    from portico.store.sqlite_transaction import (
        SqliteTransaction as SqliteTransaction, explain_sqlite as explain_sqlite,
    )
    from portico.store.transaction import Transaction as Transaction
    from portico.transports.http_server.bind_address import is_loopback as is_loopback
    from portico.transports.http_client.browser_login import headless as headless
    from portico.transports.http_client.simple_request import HttpAnswer as HttpAnswer, http_exchange as http_exchange
    from portico.protocol.completion import (
        MOST_COMPLETIONS as MOST_COMPLETIONS,
        Completion as Completion,
        PromptReference as PromptReference,
        ResourceReference as ResourceReference,
    )
    from portico.protocol.content import (
        Annotations as Annotations,
        AudioContent as AudioContent,
        BlobContents as BlobContents,
        EmbeddedResource as EmbeddedResource,
        ImageContent as ImageContent,
        ResourceLink as ResourceLink,
        Result as Result,
        TextContent as TextContent,
        TextContents as TextContents,
    )
    from portico.protocol.errors import (
        BadStatus as BadStatus,
        Closed as Closed,
        HeaderMismatch as HeaderMismatch,
        InsufficientScope as InsufficientScope,
        InternalError as InternalError,
        InvalidParams as InvalidParams,
        MethodNotFound as MethodNotFound,
        MissingCapability as MissingCapability,
        NeedsTask as NeedsTask,
        ResourceNotFound as ResourceNotFound,
        TimedOut as TimedOut,
        TransportError as TransportError,
        Unknown as Unknown,
        from_wire as from_wire,
    )
    from portico.protocol.client_features import (
        CreateMessageParams as CreateMessageParams,
        CreateMessageResult as CreateMessageResult,
        ElicitParams as ElicitParams,
        ElicitResult as ElicitResult,
        InputRequiredResult as InputRequiredResult,
        Root as Root,
        SamplingMessage as SamplingMessage,
        ListRootsResult as ListRootsResult,
    )
    from portico.protocol.meta import (
        ClientCapabilities as ClientCapabilities,
        Icon as Icon,
        Implementation as Implementation,
        Params as Params,
        ServerCapabilities as ServerCapabilities,
    )
    from portico.protocol.methods import Method as Method, add_method as add_method
    from portico.protocol.prompts import (
        GetPromptParams as GetPromptParams,
        GetPromptResult as GetPromptResult,
        PromptArgument as PromptArgument,
        PromptMessage as PromptMessage,
        ListPromptsResult as ListPromptsResult,
    )
    from portico.protocol.resources import (
        ReadResourceParams as ReadResourceParams,
        ReadResourceResult as ReadResourceResult,
        ListResourcesResult as ListResourcesResult,
        ListResourceTemplatesResult as ListResourceTemplatesResult,
    )
    from portico.protocol.versions import (
        LATEST as LATEST,
        MODERN as MODERN,
        NEWEST_HANDSHAKE as NEWEST_HANDSHAKE,
        REVISIONS as REVISIONS,
        Revision as Revision,
        V2024_11_05 as V2024_11_05,
        V2025_03_26 as V2025_03_26,
        V2025_06_18 as V2025_06_18,
        V2025_11_25 as V2025_11_25,
        V2026_07_28 as V2026_07_28,
    )
    from portico.protocol.subscriptions import Filter as Filter
    from portico.protocol.tasks import TASKS_EXTENSION as TASKS_EXTENSION
    from portico.protocol.tools import (
        ERROR as ERROR,
        RESULT as RESULT,
        WRAPPED as WRAPPED,
        CallToolParams as CallToolParams,
        CallToolResult as CallToolResult,
        ToolAnnotations as ToolAnnotations,
        ListToolsResult as ListToolsResult,
    )
    from portico.protocol.uri_template import Template as Template

_HOMES: dict[str, tuple[str, ...]] = {
    "portico._options": ("expand_paths", "explained"),
    "portico.rpc.rate_limit": ("Rate",),
    "portico.server.policy.settings": ("ACCESS_SECTIONS", "set_access"),
    "portico.auth.principal": ("Principal",),
    "portico.client.notifications": ("LogMessage",),
    "portico.client.subscriptions": ("Change",),
    "portico.client.skills": ("SkillMismatch", "list_skills", "read_skill", "read_skill_file"),
    "portico.search.tool_search_base": ("ServerFace",),
    "portico.search.tool_search": ("SearchFace", "add_find_tools"),
    "portico.search.visible_tools": ("SeenTool", "SeenTools"),
    "portico.search.tool_index": ("ToolIndex", "ToolWords"),
    "portico.search.fuzzy_names": ("NearNames",),
    "portico.search.synonyms": ("neighbours",),
    "portico.search.text": ("STOP", "camel_parts", "listed", "stem", "words"),
    "portico.rpc.call": (
        "Call", "Conversation", "Emit", "Handler", "Listening", "HandlerMiddleware", "Members", "Reply", "members",
    ),
    "portico.rpc.dispatcher": ("failed_result", "respond"),
    "portico.rpc.identity": ("identity_of",),
    "portico.rpc.fair_queue": ("FairPlaces",),
    "portico.telemetry.request_log": ("log_requests",),
    "portico.server.context.context": ("Elicitation", "Sample"),
    "portico.server.context.input_rounds": ("rounds_of",),
    "portico.server.components.completion": ("CallerCompleter", "Completer"),
    "portico.server.components.lazy": ("LatePrompt", "LateResource", "LateTool"),
    "portico.server.components.prompts": ("Prompt", "PromptOptions"),
    "portico.server.components.resources": ("Resource", "ResourceOptions"),
    "portico.server.components.results": ("to_json",),
    "portico.server.components.runtime": ("ArgumentErrors", "Runtime"),
    "portico.server.components.tools": ("Tool", "ToolOptions", "checked_name"),
    "portico.server.http": ("serve_http",),
    "portico.server.policy.interfaces": (
        "AccessGuard", "Decision", "Kind", "Meter", "Owned", "Passage", "Sight", "Witness",
    ),
    "portico.server.registry.service": ("Completes", "Component"),
    "portico.store.event_bus": ("Subscription",),
    "portico.store.database": ("Database", "when_ready"),
    "portico.store.errors": (
        "BadStatement", "Conflict", "Damaged", "DatabaseClosed", "NotUnique", "ReadOnly", "StoreError",
        "UnfitValue", "Violated",
    ),
    "portico.store.data_directory": ("data_directory",),
    "portico.store.keys": ("SigningKeys",),
    "portico.store.rows": ("json_column",),
    "portico.store.sqlite_transaction": ("SqliteTransaction", "explain_sqlite"),
    "portico.store.transaction": ("Event", "Transaction"),
    "portico.transports.http_server.bind_address": ("is_loopback",),
    "portico.transports.http_client.browser_login": ("headless",),
    "portico.protocol.json_depth": ("TOO_DEEP", "decode_bounded", "exceeds_depth"),
    "portico.rpc.supervision": ("BackgroundTasks", "run_in_thread"),
    "portico.transports.http_client.simple_request": ("HttpAnswer", "http_exchange"),
    "portico.protocol.completion": ("MOST_COMPLETIONS", "Completion", "PromptReference", "ResourceReference"),
    "portico.protocol.content": (
        "Annotations", "AudioContent", "BlobContents", "EmbeddedResource", "ImageContent", "ResourceLink",
        "Result", "TextContent", "TextContents",
    ),
    "portico.protocol.errors": (
        "BadStatus", "Closed", "HeaderMismatch", "InsufficientScope", "InternalError", "InvalidParams",
        "MethodNotFound", "MissingCapability", "NeedsTask", "ResourceNotFound", "TimedOut", "TransportError", "Unknown",
        "from_wire",
    ),
    "portico.protocol.client_features": (
        "CreateMessageParams", "CreateMessageResult", "ElicitParams", "ElicitResult", "InputRequiredResult",
        "Root", "SamplingMessage",
        "ListRootsResult",
    ),
    "portico.protocol.meta": ("ClientCapabilities", "Icon", "Implementation", "Params", "ServerCapabilities"),
    "portico.protocol.methods": ("Method", "add_method"),
    "portico.protocol.prompts": (
        "GetPromptParams", "GetPromptResult", "PromptArgument", "PromptMessage",
        "ListPromptsResult",
    ),
    "portico.protocol.resources": (
        "ReadResourceParams", "ReadResourceResult",
        "ListResourcesResult", "ListResourceTemplatesResult",
    ),
    "portico.protocol.versions": (
        "LATEST", "MODERN", "NEWEST_HANDSHAKE", "REVISIONS", "Revision", "V2024_11_05", "V2025_03_26",
        "V2025_06_18", "V2025_11_25", "V2026_07_28",
    ),
    "portico.protocol.subscriptions": ("Filter",),
    "portico.protocol.tasks": ("TASKS_EXTENSION",),
    "portico.protocol.tools": (
        "ERROR", "RESULT", "WRAPPED", "CallToolParams", "CallToolResult", "ToolAnnotations",
        "ListToolsResult",
    ),
    "portico.protocol.uri_template": ("Template",),
}
# fmt: on

if not TYPE_CHECKING:  # which would take any name for one that is there
    __getattr__, __dir__ = public_names(__name__, _HOMES)
