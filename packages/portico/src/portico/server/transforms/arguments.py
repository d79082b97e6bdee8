"""The arguments of a tool in another shape: renamed, hidden, fixed, with other defaults and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from portico.jsonschema.generation import schema as schema_of
from portico.protocol.errors import ToolError, UsageError


class ArgTransform(Struct, kw_only=True):
    """One argument in another shape.

    * **name** – what it is called.
    * **description**, **examples** – what the model reads of it.
    * **default** – its value where none is given.
    * **default_factory** – makes that value, for each call; the argument has to be hidden then.
    * **type** – another type for it.
    * **hide** – whether clients do not see it: it has its default.
    * **required** – True: it has no default any more.
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
            raise UsageError("default_factory is for arguments that are hidden: ArgTransform(hide=True, …)")
        if self.default is not UNSET and self.default_factory is not UNSET:
            raise UsageError("an argument has a default or a default_factory, not both")
        if self.required and self.default is not UNSET:
            raise UsageError("what is required has no default")


class ArgumentShape:
    """What `transform_args` makes of the arguments of one tool, in both directions."""

    def __init__(self, tool: str, schema: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        properties = dict(schema.get("properties", {}))
        unknown = sorted(set(changes) - set(properties))
        if unknown:
            raise UsageError(f"the tool {tool!r} has no argument {unknown[0]!r} to change")
        self._inward: dict[str, str] = {}
        self._hidden: set[str] = set()
        self._fixed: dict[str, Any] = {}
        self._made: dict[str, Callable[[], Any]] = {}
        self._defaults: dict[str, Any] = {}
        shown: dict[str, Any] = {}
        required: list[str] = []
        was = set(schema.get("required", ()))
        for name, described in properties.items():
            change = as_change(changes.get(name))
            if change.hide:
                self._hidden.add(name)
                self._hide(tool, name, change, name in was)
                continue
            outward = change.name if isinstance(change.name, str) else name
            if outward in shown:
                raise UsageError(f"the tool {tool!r} would have two arguments {outward!r}")
            self._inward[outward] = name
            shown[outward] = _described(described, change)
            if change.default is not UNSET:
                self._defaults[name] = change.default
            if change.required or (name in was and change.default is UNSET):
                required.append(outward)
        self.schema: dict[str, Any] = {**schema, "properties": shown, "required": required}
        if not required:
            del self.schema["required"]

    def _hide(self, tool: str, name: str, change: ArgTransform, required: bool) -> None:
        if change.default is not UNSET:
            self._fixed[name] = change.default
        elif not isinstance(change.default_factory, UnsetType):
            self._made[name] = change.default_factory
        elif required:
            raise UsageError(f"the tool {tool!r} needs {name!r}: hidden, it has to have a default")

    @property
    def names(self) -> set[str]:
        return set(self._inward)

    def inward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool knows them. What it has never heard of stays, for it to refuse. Raises ToolError:
        what is hidden cannot be said from outside."""
        said = {self._inward.get(name, name): value for name, value in arguments.items()}
        gone = {*self._hidden, *self._inward.values()} - self._inward.keys()
        for name in sorted(gone & arguments.keys()):
            # The old name of something that has another one now, or is hidden: nothing has this name any more.
            raise ToolError(f"Unknown argument {name!r}. Accepted: {', '.join(map(repr, self._inward))}.")
        made = {name: make() for name, make in self._made.items()}
        return {**self._defaults, **said, **self._fixed, **made}

    def encoded(self, arguments: bytes | Raw) -> Raw:
        """The same for arguments that were not read yet; what is no object is left for the tool to refuse."""
        try:
            said = msgspec.json.decode(arguments or b"{}")
        except (ValueError, RecursionError):
            return Raw(bytes(arguments))
        return Raw(msgspec.json.encode(self.inward(said) if isinstance(said, dict) else said))


def as_change(given: Any) -> ArgTransform:
    """An ArgTransform, from one of ours, of theirs, a table, or nothing."""
    if given is None:
        return ArgTransform()
    if isinstance(given, ArgTransform):
        return given
    members: Mapping[str, Any] = given if isinstance(given, Mapping) else vars(given)
    fields = ArgTransform.__struct_fields__
    said = {name: value for name, value in members.items() if name in fields and type(value).__name__ != "NotSetT"}
    unset = {name for name, value in said.items() if value is ... or (value is None and name != "default")}
    return ArgTransform(**{name: value for name, value in said.items() if name not in unset})


def _described(schema: Any, change: ArgTransform) -> Any:
    made = dict(schema) if isinstance(schema, Mapping) else {}
    if change.type is not UNSET:
        kept = {name: made[name] for name in ("description", "title", "default") if name in made}
        made = {**schema_of(change.type), **kept}
    if change.description is not UNSET:
        made["description"] = change.description
    if change.examples is not UNSET:
        made["examples"] = change.examples
    if change.default is not UNSET:
        made["default"] = change.default
    elif change.required:
        made.pop("default", None)
    return made
