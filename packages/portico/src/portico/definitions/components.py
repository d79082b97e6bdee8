"""Prompts, resources and resource templates as pinned in lock files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.definitions.comparison import Level

ComponentKind = Literal["prompt", "resource", "template"]

# List method, member of the result, and key member of each kind.
LISTS: dict[ComponentKind, tuple[str, str, str]] = {
    "prompt": ("prompts/list", "prompts", "name"),
    "resource": ("resources/list", "resources", "uri"),
    "template": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
}
# Size and modification time describe the current content and are not pinned; all other members are.
_NOT_PINNED, _CHANGED_AT = "size", "lastModified"
_WORDS = ("title", "description")
# Members that programs depend on. The others are shown by hosts or read by models.
_USED = ("name", "uri", "uriTemplate", "mimeType")


class PinnedComponent(Struct, frozen=True):
    """One pinned prompt, resource or resource template."""

    kind: ComponentKind
    # The name of a prompt, else the URI or URI template.
    key: str
    definition: dict[str, Any]

    @property
    def digest(self) -> str:
        """Return the SHA-256 digest of the definition."""
        # Sorted, because JSON objects have no order and servers may list their members differently
        # after an update.
        return hashlib.sha256(msgspec.json.encode(self.definition, order="sorted")).hexdigest()

    def text_of(self, path: str) -> str:
        """Return the text of a member, or the description of an argument."""
        if path in self.definition:
            return str(self.definition[path])
        about = _arguments_by_name(self).get(path, {})
        return " ".join(str(about[word]) for word in _WORDS if word in about)


class ComponentChange(Struct, frozen=True):
    """One change. `is_breaking`: callers must act. `is_words`: only text has changed."""

    offer: PinnedComponent
    path: str
    message: str
    is_breaking: bool = False
    is_words: bool = False

    @property
    def level(self) -> Level:
        return "breaking" if self.is_breaking else "patch" if self.is_words else "minor"


def components_from_list(kind: ComponentKind, listed: Iterable[Any]) -> list[PinnedComponent]:
    """Build components from the entries of a list. Invalid entries are skipped."""
    key = LISTS[kind][2]
    result: dict[str, PinnedComponent] = {}
    for entry in listed:
        if isinstance(entry, Mapping) and isinstance(entry.get(key), str):
            # Of entries with the same key only the first is reachable, so it is the one to pin.
            result.setdefault(entry[key], PinnedComponent(kind, entry[key], _pin_entry(entry)))
    return list(result.values())


def _pin_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    ordered = dict.fromkeys(("name", "uri", "uriTemplate", "title", "description", "mimeType", "arguments", *entry))
    result = {name: entry[name] for name in ordered if entry.get(name) is not None and name != _NOT_PINNED}
    if isinstance(result.get("annotations"), Mapping):
        result["annotations"] = {name: value for name, value in result["annotations"].items() if name != _CHANGED_AT}
        if not result["annotations"]:
            del result["annotations"]
    return result


def diff_components(old: Iterable[PinnedComponent], new: Iterable[PinnedComponent]) -> Iterator[ComponentChange]:
    """Yield the changes from the old components to the new ones."""
    before = {(item.kind, item.key): item for item in old}
    after = {(item.kind, item.key): item for item in new}
    for at, was in before.items():
        if at not in after:
            yield ComponentChange(was, "", f"the {was.kind} was removed", is_breaking=True)
        elif was.definition != after[at].definition:
            yield from _compare_members(was, after[at])
    for at, now in after.items():
        if at not in before:
            yield ComponentChange(now, "", f"the {now.kind} is new")


def _compare_members(before: PinnedComponent, now: PinnedComponent) -> Iterator[ComponentChange]:
    for member in dict.fromkeys([*before.definition, *now.definition]):
        if member == "arguments" or before.definition.get(member) == now.definition.get(member):
            continue
        # Texts are reported too: a changed description can carry instructions for the model (tool
        # poisoning).
        is_words = member not in _USED or (member == "name" and now.kind != "prompt")
        yield ComponentChange(now, member, f"the {member} has changed", is_breaking=not is_words, is_words=is_words)
    yield from _arguments(now, _arguments_by_name(before), _arguments_by_name(now))


def _arguments_by_name(offer: PinnedComponent) -> dict[str, Mapping[str, Any]]:
    listed = offer.definition.get("arguments")
    result = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return {str(item.get("name")): item for item in result}


def _arguments(
    offer: PinnedComponent, old: dict[str, Mapping[str, Any]], new: dict[str, Mapping[str, Any]]
) -> Iterator[ComponentChange]:
    for name, argument in old.items():
        if name not in new:
            yield ComponentChange(offer, name, f"the argument `{name}` was removed", is_breaking=True)
            continue
        is_needed = new[name].get("required") is True
        if is_needed != (argument.get("required") is True):
            message = f"the argument `{name}` is {'required' if is_needed else 'optional'} now"
            yield ComponentChange(offer, name, message, is_breaking=is_needed)
        if any(argument.get(word) != new[name].get(word) for word in _WORDS):
            yield ComponentChange(offer, name, f"the description of the argument `{name}` has changed", is_words=True)
    for name in new:
        if name not in old:
            is_needed = new[name].get("required") is True
            yield ComponentChange(offer, name, f"the argument `{name}` is new", is_breaking=is_needed)
