"""Plays a Pharo image that serves itself on standard input and output, as LLM-Pharo-MCP's guide has it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CLASSES = {"OrderedCollection": "SequenceableCollection", "Object": "ProtoObject"}
SAID = {"3 + 4": "7", "OrderedCollection new": "an OrderedCollection()"}
CLASS = "pharo://class/"


class NoSuchMethod(Exception):
    """What is answered with -32601."""


class Invalid(Exception):
    """What is answered with -32602."""


def evaluated(expression: str) -> dict[str, Any]:
    if expression == "Smalltalk exit":
        os._exit(1)
    text = SAID.get(expression)
    if text is None:
        return {"content": [{"type": "text", "text": "Error: MessageNotUnderstood"}], "isError": True}
    return {"content": [{"type": "text", "text": text}]}


def read(uri: str) -> dict[str, Any]:
    if uri == "pharo://system/version":
        # As its document has it, without the address that the protocol wants.
        contents = {"type": "text", "text": "Pharo 13.0"}
    elif uri.removeprefix(CLASS) in CLASSES:
        results = {"name": uri.removeprefix(CLASS), "superclass": CLASSES[uri.removeprefix(CLASS)]}
        contents = {"uri": uri, "mimeType": "application/json", "text": json.dumps(results)}
    else:
        raise Invalid(f"Resource not found: {uri}")
    return {"contents": [contents]}


def review(name: str) -> dict[str, Any]:
    content = {"type": "text", "text": f"Please review the class {name}."}
    return {"description": f"Code review for {name}", "messages": [{"role": "user", "content": content}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-03-26",
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "serverInfo": {"name": "pharo-mcp", "version": "0.1.0"},
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [{"name": "evaluate", "description": "Smalltalk", "inputSchema": schema}]}
        case "tools/call":
            return evaluated(params["arguments"]["expression"])
        case "resources/list":
            version = {"uri": "pharo://system/version", "name": "System Version", "mimeType": "text/plain"}
            return {"resources": [version]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": f"{CLASS}{{className}}", "name": "Class Details"}]}
        case "resources/read":
            return read(params["uri"])
        case "prompts/list":
            return {"prompts": [{"name": "review-class", "arguments": [{"name": "className", "required": True}]}]}
        case "prompts/get":
            return review(params["arguments"]["className"])
    raise NoSuchMethod(f"Method not found: {method}")


def main() -> None:
    for line in sys.stdin:
        data = json.loads(line)
        if "id" not in data:
            continue
        message = {"jsonrpc": "2.0", "id": data["id"]}
        try:
            message["result"] = answer(data["method"], data.get("params") or {})
        except (NoSuchMethod, Invalid) as refusal:
            message["error"] = {
                "code": -32601 if isinstance(refusal, NoSuchMethod) else -32602,
                "message": str(refusal),
            }
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
