"""What a server offers besides tools, as far as a lock pins it: prompts, resources and templates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.definitions.comparison import Level

OfferKind = Literal["prompt", "resource", "template"]

# Of each kind the list it stands in, the member that lists hold it under, and the member that it is found by.
LISTS: dict[OfferKind, tuple[str, str, str]] = {
    "prompt": ("prompts/list", "prompts", "name"),
    "resource": ("resources/list", "resources", "uri"),
    "template": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
}
# Sizes and times of change describe the content at the moment and are not pinned; all other members are.
_NOT_PINNED, _CHANGED_AT = "size", "lastModified"
_WORDS = ("title", "description")
# Members that programs depend on. All others are shown by hosts or read by models.
_USED = ("name", "uri", "uriTemplate", "mimeType")


class Offer(Struct, frozen=True):
    kind: OfferKind
    # Of a prompt its name, of the others the URI or the template of it.
    key: str
    definition: dict[str, Any]

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self.definition, order="sorted")).hexdigest()

    def words(self, path: str) -> str:
        """What stands at a member of it, or is said of an argument."""
        if path in self.definition:
            return str(self.definition[path])
        about = _named(self).get(path, {})
        return " ".join(str(about[word]) for word in _WORDS if word in about)


class OfferChange(Struct, frozen=True):
    """`is_breaking`: who has used it has to do something. `is_words`: only what is read has changed."""

    offer: Offer
    path: str
    said: str
    is_breaking: bool = False
    is_words: bool = False

    @property
    def level(self) -> Level:
        return "breaking" if self.is_breaking else "patch" if self.is_words else "minor"


def offers_of(kind: OfferKind, listed: Iterable[Any]) -> list[Offer]:
    """From the entries of a list, as JSON. What makes no sense in them is left out."""
    key = LISTS[kind][2]
    found: dict[str, Offer] = {}
    for entry in listed:
        if isinstance(entry, Mapping) and isinstance(entry.get(key), str):
            found.setdefault(entry[key], Offer(kind, entry[key], _pinned(entry)))
    return list(found.values())


def _pinned(entry: Mapping[str, Any]) -> dict[str, Any]:
    ordered = dict.fromkeys(("name", "uri", "uriTemplate", "title", "description", "mimeType", "arguments", *entry))
    found = {name: entry[name] for name in ordered if entry.get(name) is not None and name != _NOT_PINNED}
    if isinstance(found.get("annotations"), Mapping):
        found["annotations"] = {name: said for name, said in found["annotations"].items() if name != _CHANGED_AT}
        if not found["annotations"]:
            del found["annotations"]
    return found


def offer_changes(old: Iterable[Offer], new: Iterable[Offer]) -> Iterator[OfferChange]:
    """From what was offered to what is."""
    before = {(one.kind, one.key): one for one in old}
    after = {(one.kind, one.key): one for one in new}
    for at, was in before.items():
        if at not in after:
            yield OfferChange(was, "", f"the {was.kind} was removed", is_breaking=True)
        elif was.definition != after[at].definition:
            yield from _changed(was, after[at])
    for at, now in after.items():
        if at not in before:
            yield OfferChange(now, "", f"the {now.kind} is new")


def _changed(was: Offer, now: Offer) -> Iterator[OfferChange]:
    for member in dict.fromkeys([*was.definition, *now.definition]):
        if member == "arguments" or was.definition.get(member) == now.definition.get(member):
            continue
        is_words = member not in _USED or (member == "name" and now.kind != "prompt")
        yield OfferChange(now, member, f"the {member} is another", is_breaking=not is_words, is_words=is_words)
    yield from _arguments(now, _named(was), _named(now))


def _named(offer: Offer) -> dict[str, Mapping[str, Any]]:
    listed = offer.definition.get("arguments")
    found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return {str(one.get("name")): one for one in found}


def _arguments(
    offer: Offer, old: dict[str, Mapping[str, Any]], new: dict[str, Mapping[str, Any]]
) -> Iterator[OfferChange]:
    for name, one in old.items():
        if name not in new:
            yield OfferChange(offer, name, f"the argument `{name}` was removed", is_breaking=True)
            continue
        is_needed = new[name].get("required") is True
        if is_needed != (one.get("required") is True):
            said = f"the argument `{name}` is {'required' if is_needed else 'optional'} now"
            yield OfferChange(offer, name, said, is_breaking=is_needed)
        if any(one.get(word) != new[name].get(word) for word in _WORDS):
            yield OfferChange(offer, name, f"the argument `{name}` is described in other words", is_words=True)
    for name in new:
        if name not in old:
            is_needed = new[name].get("required") is True
            yield OfferChange(offer, name, f"the argument `{name}` is new", is_breaking=is_needed)
