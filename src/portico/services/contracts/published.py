"""The four messages of the contract as JSON Schemas of draft-07, for those who have no Python."""

from __future__ import annotations

from typing import Any

from portico.schema import DRAFT_07
from portico.services.contracts.names import INVOCATION
from portico.services.contracts.versions import CONTRACT_VERSION

STATUSES = ("success", "failure", "no_change_needed", "partial_success")

# The types of error that tools draw from, and what each is for.
ERROR_TYPES = {
    "ValidationError": "The arguments do not fit the tool's schema.",
    "FileNotFoundError": "A file that is needed is not there.",
    "AuthenticationError": "Who is asking could not be established.",
    "ResourceNotFound": "What was asked for does not exist; also a tool that is not there.",
    "ToolExecutionError": "The tool ran and failed, in a way that no other type describes.",
    "ApiLimitExceeded": "Too many calls in too short a time.",
    "TimeoutError": "It took longer than it may.",
    "PermissionError": "Who is asking may not do this.",
}

_ERROR_MEMBERS: dict[str, Any] = {
    "error_type": {
        "type": "string",
        "description": "What kind of error it is, for programs.",
        "examples": list(ERROR_TYPES),
    },
    "error_message": {"type": "string", "description": "What went wrong, in words."},
    "error_details": {
        "oneOf": [{"type": "object", "additionalProperties": True}, {"type": "string"}, {"type": "null"}],
        "description": "More about it: the parameter and why it was refused, the path that is not there.",
    },
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": _ERROR_MEMBERS,
    "required": ["error_type", "error_message"],
}

TOOL_CALL: dict[str, Any] = {
    "$schema": DRAFT_07,
    "title": "MCP Tool Call",
    "description": "How an agent calls a tool.",
    "type": "object",
    "properties": {
        "tool_name": {
            "type": "string",
            "description": "The tool's invocation name: its module and its name, such as 'orders.place_order'.",
            "pattern": INVOCATION,
        },
        "arguments": {
            "type": "object",
            "description": "What the tool is given. Each tool has a schema of its own for it.",
            "additionalProperties": True,
        },
    },
    "required": ["tool_name", "arguments"],
    "additionalProperties": False,
}

TOOL_RESULT: dict[str, Any] = {
    "$schema": DRAFT_07,
    "title": "MCP Tool Result",
    "description": "What a tool answers an agent.",
    "type": "object",
    "properties": {
        "status": {
            "type": "string",
            "description": "What came of the call.",
            "enum": list(STATUSES),
            "default": "success",
        },
        "data": {
            "type": ["object", "null"],
            "description": "What the tool gives. Each tool has a schema of its own for it.",
            "additionalProperties": True,
        },
        # The samples of the contract write null where there was no error, and so do our dumps.
        "error": {
            "anyOf": [{"$ref": "#/definitions/MCPErrorDetail"}, {"type": "null"}],
            "description": "What went wrong, when something did.",
        },
        "explanation": {"type": ["string", "null"], "description": "Words for people about the result."},
    },
    "required": ["status"],
    "definitions": {"MCPErrorDetail": _ERROR},
}

ERROR_DETAIL: dict[str, Any] = {
    "$schema": DRAFT_07,
    "title": "MCP Error Detail",
    "description": "What went wrong, for programs and for people.",
    **_ERROR,
}

CONTEXT: dict[str, Any] = {
    "$schema": DRAFT_07,
    "title": "MCP Contract Context",
    "description": "What an agent tells a tool about the circumstances of a call, beside its arguments.",
    "type": "object",
    "properties": {
        "contract_version": {
            "type": "string",
            "description": "The version of the contract that the caller was written for.",
            "pattern": r"^1\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$",
            "default": CONTRACT_VERSION,
        },
        "correlation_id": {"type": "string", "description": "Names one piece of work across calls and logs."},
        "caller": {"type": ["string", "null"], "description": "The agent that calls, by its own word."},
        "conversation_id": {"type": ["string", "null"], "description": "The conversation that the call is part of."},
        "locale": {"type": ["string", "null"], "description": "The user's language, such as 'nb-NO'."},
        "timezone": {
            "type": ["string", "null"],
            "description": "Where the user's clock stands, such as 'Europe/Oslo'.",
        },
        "deadline": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "When nobody waits for the result any more.",
        },
        "roots": {
            "type": "array",
            "items": {"type": "string"},
            "description": "URIs of the folders that the user works in: advice, not permission.",
        },
        "dry_run": {"type": "boolean", "description": "Say what would happen, and change nothing.", "default": False},
        "metadata": {
            "type": "object",
            "description": "Whatever else both sides know of.",
            "additionalProperties": True,
        },
    },
    "required": [],
}

# By the names that resources have.
MESSAGES = {"tool_call": TOOL_CALL, "tool_result": TOOL_RESULT, "error_detail": ERROR_DETAIL, "context": CONTEXT}
