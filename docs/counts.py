"""Write the table of sizes in docs/explanation/architecture.md; a test compares it with the code."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import portico
import portico.extend
from portico import Server
from portico.cli.commands import all_commands
from portico.cli.specs import parser_for
from portico.rpc.call import HandlerCapabilities

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "explanation" / "architecture.md"
PACKAGES = {
    "SDK": "portico",
    "gateway": "portico-gateway",
    "services": "portico-services",
    "console": "portico-console",
}
# Counted in the single package, commit 47aa1e8f.
BEFORE = {
    "lines (files)": "122,250 (737)",
    "names in `portico`": "138",
    "names in `portico.extend`": "185",
    "parameters of `Server`": "29",
    "public attributes of the `Server` class": "88",
    "optional members of a Handler": "15",
    "exception classes": "148",
    "Structs of settings files (fields)": "22 (134)",
    "commands (distinct flags)": "26 (112)",
}


def _files(package: str) -> list[Path]:
    return sorted((ROOT / "packages" / package / "src").rglob("*.py"))


def _size(files: list[Path]) -> str:
    return f"{sum(path.read_text().count(chr(10)) for path in files):,} ({len(files)})"


def _classes() -> Iterator[ast.ClassDef]:
    for package in PACKAGES.values():
        for path in _files(package):
            yield from _classes_in(ast.parse(path.read_text()))


def _classes_in(node: ast.AST) -> Iterator[ast.ClassDef]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # most nodes are parts of expressions, which contain no classes
            if isinstance(child, ast.ClassDef):
                yield child
            yield from _classes_in(child)


def _exception_classes(classes: list[ast.ClassDef]) -> int:
    """Return how many of the classes are exceptions, by the names of their bases."""
    exceptions = {name for name, item in vars(builtins).items() if inspect.isclass(item) and _is_exception(item)}
    ours: set[str] = set()
    bases = {item.name: {ast.unparse(base).split(".")[-1] for base in item.bases} for item in classes}
    while result := {name for name, names in bases.items() if names & (exceptions | ours)} - ours - exceptions:
        ours |= result
    return len(ours)


def _is_exception(item: type) -> bool:
    return issubclass(item, BaseException)


@cache
def counts() -> dict[str, str]:
    """Return the counts of the code by measure."""
    classes = list(_classes())
    settings = [item for item in classes if any(word.arg == "forbid_unknown_fields" for word in item.keywords)]
    fields = sum(isinstance(line, ast.AnnAssign) for item in settings for line in item.body)
    flags = {
        name
        for command in all_commands()
        for flag in parser_for(command).flags
        for name in flag.option_strings
        if name.startswith("--")
    }
    return {
        "lines (files)": _size([path for package in PACKAGES.values() for path in _files(package)]),
        **{f"– {name}": _size(_files(package)) for name, package in PACKAGES.items()},
        "names in `portico`": str(len(portico.__all__)),
        "names in `portico.extend`": str(len(portico.extend.__all__)),
        "parameters of `Server`": str(len(inspect.signature(Server).parameters)),
        "public attributes of the `Server` class": str(sum(not name.startswith("_") for name in dir(Server))),
        "optional members of a Handler": str(len(HandlerCapabilities.__struct_fields__)),
        "exception classes": str(_exception_classes(classes)),
        "Structs of settings files (fields)": f"{len(settings)} ({fields})",
        "commands (distinct flags)": f"{len(all_commands())} ({len(flags)})",
    }


def read_table(page: str) -> dict[str, str]:
    """Return the column "now" of the page by measure."""
    rows = re.findall(r"^\| (.+?) \| .*? \| (.+?) \|$", _table(page), re.MULTILINE)
    return {name: now for name, now in rows if name != "measure"}


def _table(page: str) -> str:
    return page.partition("<!-- counts -->\n")[2].partition("<!-- end counts -->")[0]


def main() -> None:
    rows = [f"| {name} | {BEFORE.get(name, '–')} | {now} |" for name, now in counts().items()]
    table = "\n".join(["| measure | before | now |", "|---|---|---|", *rows, ""])
    page = PAGE.read_text()
    PAGE.write_text(page.replace(_table(page), table))


if __name__ == "__main__":
    main()
