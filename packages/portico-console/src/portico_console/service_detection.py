"""The services that come with Portico, recognised behind a target by the names of its tools."""

from __future__ import annotations

from collections.abc import Iterable

_MEMORY = (
    "capture", "recall", "get", "update", "delete", "restore", "history", "delete_all", "status", "namespaces",
    "consolidate", "enrich", "conflicts", "prompts", "graph", "export", "import", "sync",
)  # fmt: skip
_TASKS = (
    "create_task", "create_tasks", "list_tasks", "get_task", "update_task", "delete_task", "add_blocker",
    "remove_blocker", "get_blockers", "next_task", "complete_task", "add_note", "task_tree", "task_history",
)  # fmt: skip
_CONTRACTS = ("list", "get", "render", "lint", "diff", "codegen")

# By the word that the page has for each tool.
TOOLS: dict[str, dict[str, str]] = {
    "memory": {word: f"memory_{word}" for word in _MEMORY},
    "tasks": {word: word for word in _TASKS},
    "contracts": {word: f"spec_{word}" for word in _CONTRACTS},
}
# Who has these has the service. A gateway puts a name before them.
_SIGNS = {
    "memory": ("memory_capture", "memory_recall", "memory_get"),
    "tasks": ("create_task", "list_tasks", "get_task"),
    "contracts": ("spec_list", "spec_lint", "spec_diff"),
}


def known_services(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """For each service that is there, its tools: our word, and the name at the target."""
    there = set(names)
    found = {}
    for service, signs in _SIGNS.items():
        prefixes = sorted((name.removesuffix(signs[0]) for name in there if name.endswith(signs[0])), key=len)
        prefix = next((one for one in prefixes if all(one + sign in there for sign in signs)), None)
        if prefix is not None:
            tools = {word: prefix + name for word, name in TOOLS[service].items()}
            found[service] = {word: name for word, name in tools.items() if name in there}
    return found
