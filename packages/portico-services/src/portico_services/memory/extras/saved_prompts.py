"""Saved prompts: texts with places to fill in, `Review {{file}} for {{concern}}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction, json_column
from portico_services import text as texts
from portico_services.memory.errors import InvalidInput, NoSuchPrompt
from portico_services.memory.store.namespaces import DOMAINS, checked_domain
from portico_services.memory.store.ownership import home_of

TOPIC = "memory prompt"
LONGEST = 50_000
MOST_VARIABLES = 30
MOST = 500
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z][A-Za-z0-9_]{0,63})\s*\}\}")
_COLUMNS = "domain, project, name, content, description, variables, version, created_at, updated_at"


class PromptVariable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known about a place to fill in."""

    description: Annotated[str, "What it is for"] = ""
    default: Annotated[str | None, "Its value when none is given; without a default the variable is required"] = None
    choices: Annotated[list[str], "The values it may have, if only those"] = field(default_factory=list)


class SavedPrompt(Struct, frozen=True, kw_only=True):
    domain: str
    project: str
    name: str
    content: str
    description: str = ""
    variables: dict[str, PromptVariable] = field(default_factory=dict)
    version: int = 1
    created_at: int
    updated_at: int


def variables_of(content: str) -> list[str]:
    return list(dict.fromkeys(_VARIABLE.findall(content)))


def filled(template: SavedPrompt, values: Mapping[str, str]) -> str:
    """What was given is put in as it is: what looks like a place to fill in there stays what it is."""
    missing = [name for name, one in template.variables.items() if one.default is None and values.get(name) is None]
    if missing:
        raise InvalidInput(f"The prompt {template.name!r} needs {', '.join(missing)}.", missing=missing)

    def value(found: re.Match[str]) -> str:
        said = values.get(found[1])
        return said if said is not None else (template.variables[found[1]].default or "")

    return _VARIABLE.sub(value, template.content)


def bounded(text: str, what: str = "A prompt") -> str:
    """Before anything else is done with it."""
    if len(text) > LONGEST:
        raise InvalidInput(f"{what} has 1 to {LONGEST:,} characters.")
    return text


def made(
    *,
    domain: str,
    project: str | None,
    name: str,
    content: str,
    description: str,
    variables: Mapping[str, PromptVariable],
    now: int,
    owner: str = "",
) -> SavedPrompt:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is no name for a prompt. Use a letter, then letters, digits, _ and -, at most 64."
        )
    content = texts.storable(bounded(content))
    if not content.strip():
        raise InvalidInput(f"A prompt has 1 to {LONGEST:,} characters.")
    names = variables_of(content)
    strange = [one for one in names if iskeyword(one)]
    if strange or len(names) > MOST_VARIABLES:
        raise InvalidInput(
            f"{strange[0]!r} cannot be the name of a variable."
            if strange
            else f"At most {MOST_VARIABLES} variables, please."
        )
    unused = [one for one in variables if one not in names]
    if unused:
        raise InvalidInput(f"The prompt has no {{{{{unused[0][:64]}}}}}; it has {', '.join(names) or 'no variables'}.")
    domain = checked_domain(domain)
    return SavedPrompt(
        domain=domain,
        project=home_of(domain, project, owner) or "",
        name=name,
        content=content,
        description=texts.storable(description)[:500],
        variables={one: variables.get(one, PromptVariable()) for one in names},
        created_at=now,
        updated_at=now,
    )


def save(tx: Transaction, template: SavedPrompt) -> SavedPrompt:
    """A new version where there is one of this name already."""
    row = {name: getattr(template, name) for name in template.__struct_fields__} | {
        "variables": json_column(template.variables)
    }
    version, created = tx.one(
        tuple[int, int],
        f"insert into memory_prompt ({_COLUMNS}) values (:domain, :project, :name, :content, :description, :variables, "
        ":version, :created_at, :updated_at) on conflict (domain, project, name) do update set "
        "content = excluded.content, description = excluded.description, variables = excluded.variables, "
        "version = memory_prompt.version + 1, updated_at = excluded.updated_at returning version, created_at",
        row,
    )
    tx.publish(TOPIC, template.name)
    return replace(template, version=version, created_at=created)


def visible(tx: Transaction, homes: tuple[str, ...], owner: str) -> list[SavedPrompt]:
    """List the prompts that an owner sees, by name. Of several with one name, the project's comes before the user's,
    and that before the organisation's."""
    found = tx.all(
        SavedPrompt,
        f"select {_COLUMNS} from memory_prompt where (domain <> 'user' and project in :projects) "
        "or (domain = 'user' and project = :owner) order by name",
        {"projects": ["", *homes], "owner": owner},
    )
    nearest: dict[str, SavedPrompt] = {}
    for one in sorted(found, key=lambda one: (DOMAINS.index(checked_domain(one.domain)), one.project not in homes[:1])):
        nearest.setdefault(one.name, one)
    return sorted(nearest.values(), key=lambda one: one.name)[:MOST]


def get(tx: Transaction, name: str, homes: tuple[str, ...], owner: str) -> SavedPrompt:
    found = next((one for one in visible(tx, homes, owner) if one.name == name), None)
    if found is None:
        raise NoSuchPrompt(f"There is no saved prompt {name[:80]!r}. The action list shows those there are.")
    return found


def delete(tx: Transaction, template: SavedPrompt) -> None:
    where = {"domain": template.domain, "project": template.project, "name": template.name}
    tx.run("delete from memory_prompt where domain = :domain and project = :project and name = :name", where)
    tx.publish(TOPIC, template.name)
