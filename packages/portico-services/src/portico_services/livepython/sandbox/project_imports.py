"""Discovery and import of the packages of a project under development.

Not the whole directory is exposed, since a project may have secrets next to its code. Packages are those in `src`,
those next to `pyproject.toml`, and those that an editable install maps to the directory.
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

# Files that distinguish a project from a plain directory of packages.
_PROJECT_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_IGNORED_MODULES = ("setup", "conftest", "noxfile", "tasks", "manage")
MAX_FILE_BYTES = 1 << 20


def find_packages(projects: Iterable[str], site: Iterable[str]) -> dict[str, str]:
    """Return the packages and modules of these directories, by name. `site` are the site-packages directories."""
    site = list(site)
    result: dict[str, str] = {}
    for project in map(os.path.realpath, projects):
        installed = [path for folder in site for path in _editable_installs(folder) if _is_within(path, project)]
        named = {
            name: path for folder in site for name, path in _setuptools_mappings(folder) if _is_within(path, project)
        }
        for root in dict.fromkeys([project, *installed]):
            named |= _source_dirs(root)
        result |= {name: path for name, path in named.items() if _is_within(path, project)}
    # The standard library cannot be shadowed.
    return {name: path for name, path in result.items() if name not in sys.stdlib_module_names}


def _is_within(path: str, project: str) -> bool:
    return f"{os.path.realpath(path)}{os.sep}".startswith(project.rstrip(os.sep) + os.sep)


def _source_dirs(root: str) -> dict[str, str]:
    """Return the packages in `src`, or else those in the directory itself."""
    within = os.path.join(root, "src")
    return dict(_packages(within)) or dict(_packages(root))


def _packages(root: str) -> Iterator[tuple[str, str]]:
    is_project = any(os.path.exists(os.path.join(root, mark)) for mark in _PROJECT_MARKERS)
    try:
        entries = sorted(os.scandir(root), key=lambda directory_entry: directory_entry.name)
    except OSError:
        return
    for entry in entries:
        name = entry.name.partition(".")[0]
        if not name.isidentifier() or name == "__pycache__":
            continue
        if entry.is_dir():
            # A project also has directories that are not packages.
            if entry.name == name and (not is_project or os.path.exists(os.path.join(entry.path, "__init__.py"))):
                yield name, entry.path
        elif entry.name in {name + suffix for suffix in _SUFFIXES} and not (is_project and name in _IGNORED_MODULES):
            yield name, entry.path


# Editable installs


def _editable_installs(site: str) -> Iterator[str]:
    """Yield the directories of editable installs: those in .pth files, and those of direct_url.json (PEP 610)."""
    for path in glob(os.path.join(escape(site), "*.pth")):
        yield from (line.strip() for line in _text(path).splitlines() if os.path.isabs(line.strip()))
    for path in glob(os.path.join(escape(site), "*.dist-info", "direct_url.json")):
        try:
            metadata = json.loads(_text(path))
            address = urlparse(metadata["url"])
            if metadata["dir_info"]["editable"] is True and address.scheme == "file":
                yield unquote(address.path)
        except (ValueError, KeyError, TypeError):
            continue


def _setuptools_mappings(site: str) -> Iterator[tuple[str, str]]:
    """Yield the packages in setuptools' editable finders, which are not on the path."""
    # The finder is parsed, not imported: it would run code outside of the sandbox.
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
                    yield from _parse_mapping(said)


def _parse_mapping(node: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(node.keys, node.values, strict=True):
        match key, value:
            case ast.Constant(str() as name), ast.Constant(str() as path) if "." not in name:
                yield name, path if os.path.isdir(path) else f"{path}.py"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_FILE_BYTES)
    except (OSError, ValueError):
        return ""


# Imports


class ProjectFinder:
    """Imports project packages without listing their parent directories, which the sandbox cannot read."""

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


def importable_names() -> list[str]:
    """Return the names that can be imported from projects."""
    return sorted(name for finder in sys.meta_path if isinstance(finder, ProjectFinder) for name in finder.packages)
