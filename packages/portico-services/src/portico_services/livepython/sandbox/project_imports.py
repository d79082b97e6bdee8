"""The packages of a project that is being worked on: found where it keeps them, and imported from there.

Not the whole folder: a project may have its secrets next to its code. What counts is what stands in `src`, or the
packages beside its `pyproject.toml`, and whatever an installation for editing says of this folder.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from glob import escape, glob
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from urllib.parse import unquote, urlparse

# What tells the folder of a project from one that has nothing but packages in it.
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_ABOUT_ITSELF = ("setup", "conftest", "noxfile", "tasks", "manage")
LONGEST_FILE = 1 << 20


def find(projects: Iterable[str], site: Iterable[str]) -> dict[str, str]:
    """The packages and modules of these folders, by name. `site` are the folders that packages are installed in."""
    site = list(site)
    found: dict[str, str] = {}
    for project in map(os.path.realpath, projects):
        installed = [path for place in site for path in _installed(place) if _is_within(path, project)]
        named = {name: path for place in site for name, path in _mapped(place) if _is_within(path, project)}
        for root in dict.fromkeys([project, *installed]):
            named |= _layout(root)
        found |= {name: path for name, path in named.items() if _is_within(path, project)}
    # What comes with Python is never another's.
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names}


def _is_within(path: str, project: str) -> bool:
    return f"{os.path.realpath(path)}{os.sep}".startswith(project.rstrip(os.sep) + os.sep)


def _layout(root: str) -> dict[str, str]:
    """What is in `src`, if anything is, or in the folder itself."""
    within = os.path.join(root, "src")
    return dict(_packages(within)) or dict(_packages(root))


def _packages(root: str) -> Iterator[tuple[str, str]]:
    is_project = any(os.path.exists(os.path.join(root, mark)) for mark in _MARKS)
    try:
        entries = sorted(os.scandir(root), key=lambda one: one.name)
    except OSError:
        return
    for entry in entries:
        name = entry.name.partition(".")[0]
        if not name.isidentifier() or name == "__pycache__":
            continue
        if entry.is_dir():
            # Beside the code of a project there are folders of other things.
            if entry.name == name and (not is_project or os.path.exists(os.path.join(entry.path, "__init__.py"))):
                yield name, entry.path
        elif entry.name in {name + suffix for suffix in _SUFFIXES} and not (is_project and name in _ABOUT_ITSELF):
            yield name, entry.path


# Installed for editing


def _installed(site: str) -> Iterator[str]:
    """The folders that an installation points to: those that are put on the path, and those it was made from."""
    for path in glob(os.path.join(escape(site), "*.pth")):
        yield from (line.strip() for line in _text(path).splitlines() if os.path.isabs(line.strip()))
    for path in glob(os.path.join(escape(site), "*.dist-info", "direct_url.json")):
        try:
            said = json.loads(_text(path))
            address = urlparse(said["url"])
            if said["dir_info"]["editable"] is True and address.scheme == "file":
                yield unquote(address.path)
        except (ValueError, KeyError, TypeError):
            continue


def _mapped(site: str) -> Iterator[tuple[str, str]]:
    """The packages that setuptools' finders know of, which stand nowhere on the path."""
    for path in glob(os.path.join(escape(site), "__editable__*_finder.py")):
        try:
            tree = ast.parse(_text(path))
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in tree.body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name("MAPPING"), value=ast.Dict() as said)
                    | ast.Assign(targets=[ast.Name("MAPPING")], value=ast.Dict() as said)
                ):
                    yield from _pairs(said)


def _pairs(said: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(said.keys, said.values, strict=True):
        match key, value:
            case ast.Constant(str() as name), ast.Constant(str() as path) if "." not in name:
                yield name, path if os.path.isdir(path) else f"{path}.py"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LONGEST_FILE)
    except (OSError, ValueError):
        return ""


# Importing


class ProjectFinder:
    """Imports them without a look at the folders they are in, which cannot be read."""

    def __init__(self, packages: Mapping[str, str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        where = self.packages.get(name) if path is None else None
        if where is None:
            return None
        if not os.path.isdir(where):
            return spec_from_file_location(name, where)
        own = os.path.join(where, "__init__.py")
        if os.path.exists(own):
            return spec_from_file_location(name, own, submodule_search_locations=[where])
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [where]
        return spec


def listed() -> list[str]:
    """The names that can be imported from projects here."""
    return sorted(name for finder in sys.meta_path if isinstance(finder, ProjectFinder) for name in finder.packages)
