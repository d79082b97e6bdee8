"""Saved prompts: templates with variables, `Review {{file}} for {{concern}}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction, encode_json_column
from portico_services import text as texts
from portico_services.memory.errors import InvalidInput, SavedPromptNotFound
from portico_services.memory.store.namespaces import DOMAINS, normalize_domain
from portico_services.memory.store.ownership import home_of

TOPIC = "memory prompt"
# Limits of what a client can store: a listed prompt costs every client of the server tokens.
MAX_PROMPT_CHARS = 50_000
MAX_VARIABLES = 30
MAX_SAVED_PROMPTS = 500
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z][A-Za-z0-9_]{0,63})\s*\}\}")
_COLUMNS = "domain, project, name, content, description, variables, version, created_at, updated_at"


class PromptVariable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a template variable."""

    description: Annotated[str, "Meaning of the variable"] = ""
    default: Annotated[str | None, "Default value; without one the variable is required"] = None
    choices: Annotated[list[str], "Allowed values; empty for any"] = field(default_factory=list)


class SavedPrompt(Struct, frozen=True, kw_only=True):
    """A saved prompt template."""

    domain: str
    project: str
    name: str
    content: str
    description: str = ""
    variables: dict[str, PromptVariable] = field(default_factory=dict)
    version: int = 1
    created_at: int
    updated_at: int


def find_variables(content: str) -> list[str]:
    """Return the names of the variables in a template, in order."""
    return list(dict.fromkeys(_VARIABLE.findall(content)))


def render(template: SavedPrompt, values: Mapping[str, str]) -> str:
    """Fill in the variables of a template. Values are inserted literally: variables inside them are not expanded.

    Raises `InvalidInput` if a required value is missing.
    """
    missing = [
        name for name, variable in template.variables.items() if variable.default is None and values.get(name) is None
    ]
    if missing:
        raise InvalidInput(f"The prompt {template.name!r} requires values for {', '.join(missing)}.", missing=missing)

    def value(match: re.Match[str]) -> str:
        text = values.get(match[1])
        return text if text is not None else (template.variables[match[1]].default or "")

    # One pass over the template: a value that contains {{name}} is not expanded again.
    return _VARIABLE.sub(value, template.content)


def check_length(text: str, label: str = "A prompt") -> str:
    """Return the text if it is within MAX_PROMPT_CHARS. Call it before any other processing."""
    if len(text) > MAX_PROMPT_CHARS:
        raise InvalidInput(f"{label} must have 1 to {MAX_PROMPT_CHARS:,} characters.")
    return text


def build_prompt(
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
    """Validate the parts of a template and return it. Raises `InvalidInput`."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"Invalid prompt name {name[:80]!r}: use a letter, then letters, digits, _ and -, at most 64."
        )
    content = texts.replace_unstorable(check_length(content))
    if not content.strip():
        raise InvalidInput(f"A prompt must have 1 to {MAX_PROMPT_CHARS:,} characters.")
    names = find_variables(content)
    # Variables become keyword arguments of the MCP prompt's function.
    strange = [item for item in names if iskeyword(item)]
    if strange or len(names) > MAX_VARIABLES:
        raise InvalidInput(
            f"Invalid variable name {strange[0]!r}: use letters, digits and _."
            if strange
            else f"A prompt can have at most {MAX_VARIABLES} variables."
        )
    # A misspelled name would otherwise leave the intended variable without its description and default.
    unused = [item for item in variables if item not in names]
    if unused:
        raise InvalidInput(
            f"variables_def names {{{{{unused[0][:64]}}}}}, but the prompt has {', '.join(names) or 'no variables'}."
        )
    domain = normalize_domain(domain)
    return SavedPrompt(
        domain=domain,
        project=home_of(domain, project, owner) or "",
        name=name,
        content=content,
        description=texts.replace_unstorable(description)[:500],
        variables={item: variables.get(item, PromptVariable()) for item in names},
        created_at=now,
        updated_at=now,
    )


def save_prompt(tx: Transaction, template: SavedPrompt) -> SavedPrompt:
    """Store a template, as a new version if the name exists already."""
    row = {name: getattr(template, name) for name in template.__struct_fields__} | {
        "variables": encode_json_column(template.variables)
    }
    version, created = tx.fetch_one(
        tuple[int, int],
        f"insert into memory_prompt ({_COLUMNS}) values (:domain, :project, :name, :content, :description, :variables, "
        ":version, :created_at, :updated_at) on conflict (domain, project, name) do update set "
        "content = excluded.content, description = excluded.description, variables = excluded.variables, "
        "version = memory_prompt.version + 1, updated_at = excluded.updated_at returning version, created_at",
        row,
    )
    tx.publish(TOPIC, template.name)
    return replace(template, version=version, created_at=created)


def list_visible(tx: Transaction, homes: tuple[str, ...], owner: str) -> list[SavedPrompt]:
    """List the prompts that an owner sees, by name. If several have the same name, the project's takes precedence over
    the user's, and that over the organisation's.
    """
    rows = tx.fetch_all(
        SavedPrompt,
        f"select {_COLUMNS} from memory_prompt where (domain <> 'user' and project in :projects) "
        "or (domain = 'user' and project = :owner) order by name",
        {"projects": ["", *homes], "owner": owner},
    )
    nearest: dict[str, SavedPrompt] = {}
    for item in sorted(
        # DOMAINS is ordered by precedence; among project prompts, the current name of the project comes before former
        # ones.
        rows,
        key=lambda prompt: (DOMAINS.index(normalize_domain(prompt.domain)), prompt.project not in homes[:1]),
    ):
        nearest.setdefault(item.name, item)
    return sorted(nearest.values(), key=lambda prompt: prompt.name)[:MAX_SAVED_PROMPTS]


def get_prompt(tx: Transaction, name: str, homes: tuple[str, ...], owner: str) -> SavedPrompt:
    """Return the visible prompt with a name. Raises `SavedPromptNotFound`."""
    result = next((item for item in list_visible(tx, homes, owner) if item.name == name), None)
    if result is None:
        raise SavedPromptNotFound(f"Saved prompt {name[:80]!r} not found. Use the action list to see all prompts.")
    return result


def delete_prompt(tx: Transaction, template: SavedPrompt) -> None:
    where = {"domain": template.domain, "project": template.project, "name": template.name}
    tx.execute("delete from memory_prompt where domain = :domain and project = :project and name = :name", where)
    tx.publish(TOPIC, template.name)
