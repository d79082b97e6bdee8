"""The four messages of the contract as JSON Schemas of draft-07, for those who have no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

_FOLDER = Path(__file__).parent / "messages"

# By the names that resources have.
MESSAGES: dict[str, dict[str, Any]] = {
    name: msgspec.json.decode((_FOLDER / f"{name}.json").read_bytes())
    for name in ("tool_call", "tool_result", "error_detail", "context")
}
TOOL_CALL, TOOL_RESULT, ERROR_DETAIL, CONTEXT = MESSAGES.values()
STATUSES: list[str] = TOOL_RESULT["properties"]["status"]["enum"]

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
