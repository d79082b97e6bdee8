"""Transformed tool arguments: renamed, hidden, fixed, or with other defaults and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from portico.jsonschema.generation import schema_for_type as schema_of
from portico.protocol.errors import ToolError, UsageError


class ArgTransform(Struct, kw_only=True):
    """Changes to one argument of a tool.

    * **name** – new name.
    * **description**, **examples** – new text and examples for the model.
    * **default** – value if the argument is omitted.
    * **default_factory** – creates that value for each call; only for hidden arguments.
    * **type** – new type.
    * **hide** – hide the argument from clients; it then has its default.
    * **required** – True: remove the default.
    """

    name: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    default: Any = UNSET
    default_factory: Callable[[], Any] | UnsetType = UNSET
    type: Any = UNSET
    hide: bool = False
    required: bool | UnsetType | None = UNSET
    examples: Any = UNSET

    def __post_init__(self) -> None:
        if self.default_factory is not UNSET and not self.hide:
            raise UsageError("default_factory requires a hidden argument: ArgTransform(hide=True, …)")
        if self.default is not UNSET and self.default_factory is not UNSET:
            raise UsageError("an argument can have a default or a default_factory, not both")
        if self.required and self.default is not UNSET:
            raise UsageError("a required argument must not have a default")


class ArgumentMapping:
    """Mapping between the arguments of a tool and their transformed form."""

    def __init__(self, tool: str, schema: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        properties = dict(schema.get("properties", {}))
        unknown = sorted(set(changes) - set(properties))
        if unknown:
            raise UsageError(f"transform_args: the tool {tool!r} has no argument {unknown[0]!r}")
        self._inward: dict[str, str] = {}
        self._hidden: set[str] = set()
        self._fixed: dict[str, Any] = {}
        self._default_factories: dict[str, Callable[[], Any]] = {}
        self._defaults: dict[str, Any] = {}
        visible: dict[str, Any] = {}
        required: list[str] = []
        previously_required = set(schema.get("required", ()))
        for name, described in properties.items():
            change = to_arg_transform(changes.get(name))
            if change.hide:
                self._hidden.add(name)
                self._hide_argument(tool, name, change, name in previously_required)
                continue
            outward = change.name if isinstance(change.name, str) else name
            if outward in visible:
                raise UsageError(f"transform_args: the tool {tool!r} would have two arguments {outward!r}")
            self._inward[outward] = name
            visible[outward] = _apply_to_schema(described, change)
            if change.default is not UNSET:
                self._defaults[name] = change.default
            if change.required or (name in previously_required and change.default is UNSET):
                required.append(outward)
        self.schema: dict[str, Any] = {**schema, "properties": visible, "required": required}
        if not required:
            del self.schema["required"]

    def _hide_argument(self, tool: str, name: str, change: ArgTransform, required: bool) -> None:
        if change.default is not UNSET:
            self._fixed[name] = change.default
        elif not isinstance(change.default_factory, UnsetType):
            self._default_factories[name] = change.default_factory
        elif required:
            raise UsageError(
                f"transform_args: the hidden argument {name!r} of the tool {tool!r} is required and must have a default"
            )

    @property
    def names(self) -> set[str]:
        return set(self._inward)

    def to_original(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments under the tool's original names.

        Unknown arguments are passed on for the tool to reject. Raises ToolError for hidden arguments and for original
        names of renamed ones.
        """
        original = {self._inward.get(name, name): value for name, value in arguments.items()}
        # Security: a hidden argument is often a key or a tenant. Without this check a client could
        # set it under the tool's original name.
        hidden_names = {*self._hidden, *self._inward.values()} - self._inward.keys()
        for name in sorted(hidden_names & arguments.keys()):
            # Renamed or hidden: clients must not use the original name.
            raise ToolError(f"Unknown argument {name!r}. Accepted: {', '.join(map(repr, self._inward))}.")
        values = {name: make() for name, make in self._default_factories.items()}
        # Fixed values last, so that nothing a client sends replaces them.
        return {**self._defaults, **original, **self._fixed, **values}

    def to_original_json(self, arguments: bytes | Raw) -> Raw:
        """Return encoded arguments under the original names. Anything but an object is passed on for the tool to
        reject.
        """
        try:
            members = msgspec.json.decode(arguments or b"{}")
        except (ValueError, RecursionError):
            return Raw(bytes(arguments))
        return Raw(msgspec.json.encode(self.to_original(members) if isinstance(members, dict) else members))


def to_arg_transform(change: Any) -> ArgTransform:
    """Return an ArgTransform from one of ours, one of FastMCP's, a table, or None."""
    if change is None:
        return ArgTransform()
    if isinstance(change, ArgTransform):
        return change
    members: Mapping[str, Any] = change if isinstance(change, Mapping) else vars(change)
    fields = ArgTransform.__struct_fields__
    options = {name: value for name, value in members.items() if name in fields and type(value).__name__ != "NotSetT"}
    # FastMCP marks unset fields with `...`, and older versions with None.
    unset = {name for name, value in options.items() if value is ... or (value is None and name != "default")}
    return ArgTransform(**{name: value for name, value in options.items() if name not in unset})


def _apply_to_schema(schema: Any, change: ArgTransform) -> Any:
    changed = dict(schema) if isinstance(schema, Mapping) else {}
    if change.type is not UNSET:
        # Keywords such as `minimum` belong to the old type and would contradict the new one.
        remaining = {name: changed[name] for name in ("description", "title", "default") if name in changed}
        changed = {**schema_of(change.type), **remaining}
    if change.description is not UNSET:
        changed["description"] = change.description
    if change.examples is not UNSET:
        changed["examples"] = change.examples
    if change.default is not UNSET:
        changed["default"] = change.default
    elif change.required:
        changed.pop("default", None)
    return changed
