"""Validate frames against the official JSON Schema of their protocol version, from `../shared/data/schema`.

Our own frames are validated more strictly: the schemas allow additional members in most objects, but some peers of
2024-11-05 to 2025-11-25 reject them, so we send only members that the version defines.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS, V2025_11_25, V2026_07_28
from support.paths import DATA

SCHEMAS = DATA / "schema"
ABSENT = "the official schemas are missing: ../shared/data/schema does not exist"

RESULTS = {
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "logging/setLevel": "EmptyResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
    "subscriptions/listen": "SubscriptionsListenResult",
    "tasks/get": "GetTaskResult",
    "tasks/cancel": "CancelTaskResult",
    "tasks/result": "GetTaskPayloadResult",
    "tasks/list": "ListTasksResult",
    "sampling/createMessage": "CreateMessageResult",
    "elicitation/create": "ElicitResult",
    "roots/list": "ListRootsResult",
}

# Methods of the core of 2025-11-25 that are an extension of 2026-07-28.
EXTENSIONS = frozenset({"tasks/get", "tasks/cancel", "tasks/update"})


# Any request may have `_meta`, and a client may declare any capability.
_OPEN_PARAMS = frozenset({"_meta", "capabilities"})


class Rules:
    """The schema of one protocol version: find violations, and members that it does not define."""

    # JSON Schemas, which are passed on unchanged (2025-11-25, server/tools: any keyword is allowed), and `_meta`, which
    # is open in every version.
    OPEN = frozenset({"inputSchema", "outputSchema", "_meta"})
    # Members that extensions add to messages of the core.
    ADDED = frozenset({"taskIds"})

    def __init__(self, revision: str) -> None:
        document = json.loads((SCHEMAS / f"{revision}.json").read_bytes())
        self.revision = revision
        self.dialect = document["$schema"]
        self.keyword = "$defs" if "$defs" in document else "definitions"
        self.definitions: dict[str, Any] = document[self.keyword]
        if "ElicitResult" in self.definitions:
            # Forms may request numbers, but the schema of their results allows integers only.
            result = json.dumps(self.definitions["ElicitResult"]).replace('"integer"', '"number"')
            self.definitions["ElicitResult"] = json.loads(result)
        self._validators: dict[str, Any] = {}
        self._of_method = {
            one["properties"]["method"]["const"]: name
            for name, one in reversed(self.definitions.items())
            if one.get("properties", {}).get("method", {}).get("const")
        }
        self._of_code = {code: name for name, one in self.definitions.items() if (code := _code_of(one)) is not None}

    def reference(self, name: str) -> dict[str, Any]:
        return {"$ref": f"#/{self.keyword}/{name}"}

    def first(self, *names: str) -> str:
        """Return the first of these names that this version defines."""
        return next(name for name in names if name in self.definitions)

    def of_method(self, method: str) -> str | None:
        """Return the definition of a request or notification by its method."""
        return self._of_method.get(method)

    def of_error(self, code: int) -> str:
        """Return the definition of an error with this code, or the general one."""
        return self._of_code.get(code) or self.first("JSONRPCErrorResponse", "JSONRPCError")

    def of_result(self, result: dict[str, Any], method: str) -> str:
        """Return the definition of a result of this method, or the general one."""
        if self.revision >= V2026_07_28:
            kind = result.get("resultType")
            if kind == "input_required":
                return "InputRequiredResult"
            if kind == "task" or method in EXTENSIONS:
                return "Result"
        elif "task" in result and method == "tools/call":
            return "CreateTaskResult"
        name = RESULTS.get(method, "Result")
        return name if name in self.definitions else "Result"

    def _validator(self, node: dict[str, Any]) -> Any:
        key = json.dumps(node, sort_keys=True)
        if key not in self._validators:
            whole = {"$schema": self.dialect, "allOf": [node], self.keyword: self.definitions}
            # Not at the top: the tests of the SDK also run where no extra is installed.
            import jsonschema_rs

            self._validators[key] = jsonschema_rs.validator_for(whole)
        return self._validators[key]

    def faults(self, said: Any, name: str) -> list[str]:
        found = self._validator(self.reference(name)).iter_errors(said)
        return [f"{name}: {error.message} at {'.'.join(['$', *map(str, error.instance_path)])}" for error in found]

    def unlisted(self, said: Any, node: dict[str, Any], path: str = "$") -> list[str]:
        """Return the paths of members that the definition does not name."""
        if "$ref" in node:
            return self.unlisted(said, self.definitions[node["$ref"].rpartition("/")[2]], path)
        if "anyOf" in node:
            fitting = [item for item in node["anyOf"] if self._validator(item).is_valid(said)]
            results = [self.unlisted(said, item, path) for item in fitting]
            return min(results, key=len, default=[])
        if isinstance(said, list):
            items = node.get("items", {})
            return [item for i, part in enumerate(said) for item in self.unlisted(part, items, f"{path}[{i}]")]
        if isinstance(said, dict):
            return list(self._unlisted_members(said, node, path))
        return []

    def _unlisted_members(self, said: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[str]:
        listed = node.get("properties", {})
        others = node.get("additionalProperties")
        closed = bool(listed) and others is None
        for name, value in said.items():
            if name in self.OPEN and name in listed:
                continue
            # The params of an input request are those of a request, and any request may have `_meta`.
            if name == "_meta" and ".inputRequests." in path and path.endswith(".params"):
                continue
            if name in listed:
                yield from self.unlisted(value, listed[name], f"{path}.{name}")
            elif closed and name not in self.ADDED:
                yield f"{path}.{name}"
            elif isinstance(others, dict):
                yield from self.unlisted(value, others, f"{path}.{name}")


def _code_of(definition: dict[str, Any]) -> int | None:
    """Return the code of an error with a dedicated definition."""
    for item in definition.get("properties", {}).get("error", {}).get("allOf", []):
        code: int | None = item.get("properties", {}).get("code", {}).get("const")
        if code is not None:
            return code
    return None


@functools.cache
def rules_of(revision: str) -> Rules:
    return Rules(revision)


@functools.cache
def _is_of_the_core(method: str) -> bool:
    """Return whether any version defines the method. Extensions and servers may add others."""
    return any(rules_of(revision).of_method(method) for revision in SUPPORTED_PROTOCOL_VERSIONS)


def complaints(frame: dict[str, Any], revision: str | None, method: str = "") -> list[str]:
    """Return the violations of a frame in this protocol version. `method` is the method that it responds to.

    Before a version is negotiated, the frame has to match any of them."""
    if revision is None:
        return min(
            (
                complaints(frame, supported_protocol_version, method)
                for supported_protocol_version in SUPPORTED_PROTOCOL_VERSIONS
            ),
            key=len,
        )
    rules = rules_of(revision)
    if "method" in frame:
        return _spoken_complaints(frame, rules)
    if "error" in frame:
        return _error_complaints(frame, rules)
    envelope = rules.first("JSONRPCResultResponse", "JSONRPCResponse")
    result = frame["result"]
    if not isinstance(result, dict):
        return rules.faults(frame, envelope)
    name = rules.of_result(result, method)
    found = rules.faults(frame, envelope) + rules.faults(result, name)
    found += [
        f"$.{supported_protocol_version}" for supported_protocol_version in frame.keys() - {"jsonrpc", "id", "result"}
    ]
    if name == "EmptyResult":
        # Strict peers reject additional members here, though the generated schema allows them.
        known_names = {"_meta", "resultType"} if revision >= V2026_07_28 else {"_meta"}
        return found + [
            f"$.result.{supported_protocol_version}" for supported_protocol_version in result.keys() - known_names
        ]
    return found + rules.unlisted(result, rules.reference(name), "$.result")


def _error_complaints(frame: dict[str, Any], rules: Rules) -> list[str]:
    if rules.revision < V2025_11_25 and frame.get("id", 0) is None:
        # JSON-RPC requires null where an id could not be read, but these schemas require an id.
        frame = {**frame, "id": 0}
    name = rules.of_error(frame["error"]["code"])
    return rules.faults(frame, name) + rules.unlisted(frame, rules.reference(name))


def _spoken_complaints(frame: dict[str, Any], rules: Rules) -> list[str]:
    method, envelope = frame["method"], "JSONRPCRequest" if "id" in frame else "JSONRPCNotification"
    name = rules.of_method(method)
    if name is None:
        misplaced = _is_of_the_core(method) and not (rules.revision >= V2026_07_28 and method in EXTENSIONS)
        return rules.faults(frame, envelope) + ([f"this version does not define {method}"] if misplaced else [])
    body = {member: value for member, value in frame.items() if member not in ("jsonrpc", "id")}
    # Newer schemas include the envelope in each definition, older ones do not.
    whole = frame if "jsonrpc" in rules.definitions[name]["properties"] else body
    params = body.get("params")
    if isinstance(params, dict):
        body = {**body, "params": {one: value for one, value in params.items() if one not in _OPEN_PARAMS}}
    unlisted = rules.unlisted(body, rules.reference(name))
    return rules.faults(frame, envelope) + rules.faults(whole, name) + unlisted
