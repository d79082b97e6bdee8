"""Read or change the version of the four packages.

    python release/version.py            print the version
    python release/version.py 0.2.0      change it everywhere
    python release/version.py --check-tag v0.2.0
                                         check that a tag has this version, and that CHANGELOG.md describes it

`portico/__init__.py` defines the version. The pyproject.toml files repeat it, so that an sdist can be built alone, and
pin the other packages to it: the four packages are released together. `tests/packaging` checks that all agree.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "packages"
CHANGELOG = PACKAGES.parent / "CHANGELOG.md"
SOURCE = PACKAGES / "portico" / "src" / "portico" / "__init__.py"
PROJECTS = sorted(PACKAGES.glob("*/pyproject.toml"))
# Final releases and pre-releases of PEP 440.
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_DEFINITION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_REPEATED = re.compile(r'^(version = ")[^"]+|("portico[\w-]*(?:\[[\w,-]+\])?==)[^"]+', re.MULTILINE)


def read_version() -> str:
    """Return the version of the four packages."""
    match = _DEFINITION.search(SOURCE.read_text(encoding="utf-8"))
    assert match is not None, f"no __version__ in {SOURCE}"
    return match[1]


def repeated_versions() -> dict[str, set[str]]:
    """Return the versions that each pyproject.toml contains: its own, and those of the other packages."""
    return {
        path.parent.name: {match[0].removeprefix(match[1] or match[2]) for match in _REPEATED.finditer(_read(path))}
        for path in PROJECTS
    }


def write_version(version: str) -> None:
    """Change the version everywhere. Raises ValueError if it is not a version."""
    if not VERSION.fullmatch(version):
        raise ValueError(f"expected a version such as 1.2.3 or 1.2.3rc1, got {version!r}")
    for path in PROJECTS:
        path.write_text(_REPEATED.sub(rf"\g<1>\g<2>{version}", _read(path)), encoding="utf-8")
    SOURCE.write_text(_DEFINITION.sub(f'__version__ = "{version}"', _read(SOURCE)), encoding="utf-8")


def check_tag(tag: str) -> None:
    """Raise ValueError if a tag is not of this version, or if the changelog has no section for it."""
    version = read_version()
    if tag != f"v{version}":
        raise ValueError(f"tag must be 'v{version}', the version of the packages, got {tag!r}")
    if not re.search(rf"^## \[?{re.escape(version)}\b", _read(CHANGELOG), re.MULTILINE):
        raise ValueError(f"CHANGELOG.md has no section '## [{version}]'")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            check_tag(sys.argv[2]) if sys.argv[1:2] == ["--check-tag"] else write_version(sys.argv[1])
        except ValueError as mistake:
            sys.exit(f"version.py: {mistake}")
    print(read_version())
