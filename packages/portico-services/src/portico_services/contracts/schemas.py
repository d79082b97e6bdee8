"""JSON Schemas (draft-07) of the contract's four messages, for callers in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

_SCHEMAS_DIR = Path(__file__).parent / "messages"

# Keyed by resource name.
MESSAGE_SCHEMAS: dict[str, dict[str, Any]] = {
    name: msgspec.json.decode((_SCHEMAS_DIR / f"{name}.json").read_bytes())
    for name in ("tool_call", "tool_result", "error_detail", "context")
}
TOOL_CALL_SCHEMA, TOOL_RESULT_SCHEMA, ERROR_DETAIL_SCHEMA, CONTEXT_SCHEMA = MESSAGE_SCHEMAS.values()
STATUSES: list[str] = TOOL_RESULT_SCHEMA["properties"]["status"]["enum"]

# Standard error types with their meaning.
ERROR_TYPES = {
    "ValidationError": "The arguments do not match the tool's schema.",
    "FileNotFoundError": "A required file does not exist.",
    "AuthenticationError": "The caller could not be authenticated.",
    "ResourceNotFound": "The requested resource or tool does not exist.",
    "ToolExecutionError": "The tool ran and failed in a way that no other type describes.",
    "ApiLimitExceeded": "The rate limit was exceeded.",
    "TimeoutError": "The call exceeded its time limit.",
    "PermissionError": "The caller is not allowed to do this.",
}
