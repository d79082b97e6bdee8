"""`when`: a condition in CEL over the caller, the component and the arguments. Needs `portico-gateway[cel]`."""

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
from portico.server.policy.interfaces import Owned
from portico_gateway.policy.patterns import fold

LONGEST = 4096
# What depends on more than who asks, and is therefore not known while a list is made.
_LATE = re.compile(r"\b(args|tool|owner|time|address)\b")
_VARIABLES = ("principal", "args", "tool", "owner", "client", "address", "time")


class CelCondition:
    """One expression."""

    def __init__(self, where: str, text: str) -> None:
        self.text = text
        # Whether it can be said without the call.
        self.early = _LATE.search(text) is None
        if len(text) > LONGEST:
            raise UsageError(f"{where} is longer than {LONGEST} characters")
        try:
            self._expression = _environment(where).compile(text)
        except RuntimeError as mistake:
            said = str(mistake).splitlines()[0].removeprefix("INVALID_ARGUMENT: ERROR: <input>:")
            raise UsageError(f"{where} is {text!r}, and that cannot be understood: {said}") from None

    def holds(self, call: Call, owned: Owned, arguments: bytes | Raw) -> bool | None:
        """None: it cannot be said, such as where an argument is missing, or the arguments cannot be read."""
        args = {} if self.early else read_arguments(arguments)
        if args is None:
            return None
        given = {
            "principal": principal_values(call.principal),
            "args": args,
            "tool": owned.name,
            "owner": owned.owner,
            "client": getattr(call.principal, "client_id", None) or "",
            "address": call.address or "",
            "time": int(time.time()),
        }
        found = self._expression.eval(data=given).value()
        return found if isinstance(found, bool) else None


def principal_values(principal: Any) -> dict[str, Any]:
    """A principal as conditions see it: its claims, and over them what was verified."""
    if principal is None:
        return {"id": "", "scopes": [], "groups": [], "issuer": "", "client": ""}
    claims = getattr(principal, "claims", None)
    return {
        **(_plain(claims) if isinstance(claims, Mapping) else {}),
        "id": str(getattr(principal, "id", "")),
        "scopes": sorted(getattr(principal, "scopes", None) or ()),
        "groups": sorted(getattr(principal, "groups", ())),
        "issuer": getattr(principal, "issuer", None) or "",
        "client": getattr(principal, "client_id", None) or "",
    }


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def read_arguments(given: bytes | Raw) -> Any:
    """The arguments of a call. None where an upstream may read something else than we do: a name stands twice in an
    object (some parsers take it in any case, so `Repo` beside `repo` is the same name twice), or it is no JSON to us,
    being nested too deeply, say, or with a number too long."""
    if not given:
        return {}
    try:
        json.loads(bytes(given), object_pairs_hook=_members)
        return msgspec.json.decode(given)
    except (ValueError, RecursionError):
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({fold(name) for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


_environments: list[Any] = []


def _environment(where: str) -> Any:
    if not _environments:
        try:
            cel = load_module("cel_expr_python.cel")
        except ImportError:
            raise UsageError(
                f"{where} is a condition in CEL, which needs: pip install 'portico-gateway[cel]'"
            ) from None
        _environments.append(cel.NewEnv(variables=dict.fromkeys(_VARIABLES, cel.Type.DYN)))
    return _environments[0]
