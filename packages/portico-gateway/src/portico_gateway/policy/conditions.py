"""`when`: CEL conditions over the caller, the component and the arguments. Requires `portico-gateway[cel]`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from portico._lazy import load_module
from portico.protocol.errors import UsageError
from portico.rpc.call import Call
from portico.server.policy.interfaces import QualifiedName
from portico_gateway.policy.patterns import fold_confusables

MAX_EXPRESSION_CHARS = 4096
# Variables that depend on the call and are therefore unknown while a list is filtered.
# Words in string literals match as well. That is safe: the condition is then evaluated with the call although it
# would not have to be.
_CALL_VARIABLES = re.compile(r"\b(arguments|tool|provider|time|ip)\b")
_VARIABLES = ("principal", "arguments", "tool", "provider", "client_id", "ip", "time")


class CelCondition:
    """A compiled CEL expression."""

    def __init__(self, location: str, text: str) -> None:
        self.text = text
        # Whether it depends on the caller only.
        self.is_caller_only = _CALL_VARIABLES.search(text) is None
        if len(text) > MAX_EXPRESSION_CHARS:
            raise UsageError(f"{location} must be at most {MAX_EXPRESSION_CHARS} characters long")
        try:
            self._expression = _environment(location).compile(text)
        except RuntimeError as mistake:
            reason = str(mistake).splitlines()[0].removeprefix("INVALID_ARGUMENT: ERROR: <input>:")
            raise UsageError(f"{location}: invalid CEL expression {text!r}: {reason}") from None

    def evaluate(self, call: Call, component: QualifiedName, arguments: bytes | Raw) -> bool | None:
        """Evaluate the condition. Return None if it is undefined, for example because an argument is missing or
        ambiguous.
        """
        # Arguments are parsed only for conditions that use them, because they may be megabytes long.
        args = {} if self.is_caller_only else parse_arguments(arguments)
        if args is None:
            return None
        variables = {
            "principal": principal_attributes(call.principal),
            "arguments": args,
            "tool": component.name,
            "provider": component.owner,
            "client_id": getattr(call.principal, "client_id", None) or "",
            "ip": call.address or "",
            "time": int(time.time()),
        }
        # A value that is not a boolean, such as an error for a missing key, counts as undefined; the caller then
        # fails closed.
        result = self._expression.eval(data=variables).value()
        return result if isinstance(result, bool) else None


def principal_attributes(principal: Any) -> dict[str, Any]:
    """Return the attributes of a principal for conditions: its claims, overridden by verified attributes."""
    if principal is None:
        return {"id": "", "scopes": [], "groups": [], "issuer": "", "client": ""}
    claims = getattr(principal, "claims", None)
    return {
        # Claims come first: a token must not be able to override the verified id, groups or issuer with a claim of
        # the same name.
        **(msgspec.json.decode(msgspec.json.encode(claims)) if isinstance(claims, Mapping) else {}),
        "id": str(getattr(principal, "id", "")),
        "scopes": sorted(getattr(principal, "scopes", None) or ()),
        "groups": sorted(getattr(principal, "groups", ())),
        "issuer": getattr(principal, "issuer", None) or "",
        "client": getattr(principal, "client_id", None) or "",
    }


def parse_arguments(arguments: bytes | Raw) -> Any:
    """Parse the arguments of a call. Return None if an upstream might read them differently.

    That is the case for duplicate names in an object (some parsers ignore case, so `Repo` and `repo` are duplicates),
    and for JSON that cannot be parsed here, for example because of its depth or very long numbers.
    """
    if not arguments:
        return {}
    try:
        # msgspec accepts the last of several duplicate names, and an upstream may use the first. The standard parser
        # reports all pairs, so ambiguous arguments are detected here.
        json.loads(bytes(arguments), object_pairs_hook=_members)
        return msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({fold_confusables(name) for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


# Created on first use: CEL is an optional dependency, and most policies have no conditions.
_environments: list[Any] = []


def _environment(where: str) -> Any:
    if not _environments:
        try:
            cel = load_module("cel_expr_python.cel")
        except ImportError:
            raise UsageError(f"{where} requires CEL: pip install 'portico-gateway[cel]'") from None
        _environments.append(cel.NewEnv(variables=dict.fromkeys(_VARIABLES, cel.Type.DYN)))
    return _environments[0]
