"""Versions and platform, for `portico --version`, `portico doctor` and bug reports."""

from __future__ import annotations

import platform
import re
import sqlite3
from importlib.metadata import PackageNotFoundError, distributions, version

from portico import __version__

PACKAGES = ("portico", "portico-gateway", "portico-services", "portico-console")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages of Portico."""
    # The SDK may run from a checkout that was never installed.
    return {"portico": __version__} | {name: version for name in PACKAGES[1:] if (version := _version(name))}


def dependency_versions() -> dict[str, str]:
    """Return the versions of the installed dependencies of these packages, those of their extras included."""
    names = {
        _normalize(match[0])
        for distribution in distributions()
        if _normalize(distribution.name) in PACKAGES
        for requirement in distribution.requires or ()
        if (match := _NAME.match(requirement))
    }
    return {name: version for name in sorted(names - {*PACKAGES}) if (version := _version(name))}


def describe_python() -> str:
    """Return the implementation and version of Python."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def describe_platform() -> str:
    """Return the operating system, its version and the architecture."""
    return f"{platform.system()} {platform.release()} ({platform.machine()})"


def describe_event_loop() -> str:
    """Return the event loop that servers run on."""
    version = _version("uvloop")
    return f"uvloop {version}" if version else "asyncio"


def describe_sqlite() -> str:
    """Return the version of the SQLite library."""
    return f"SQLite {sqlite3.sqlite_version}"


def describe_environment() -> str:
    """Return all of it as lines of text. The first line is the version of Portico."""
    rows = {
        **package_versions(),
        "Python": describe_python(),
        "platform": describe_platform(),
        "event loop": describe_event_loop(),
        "SQLite": sqlite3.sqlite_version,
        **dependency_versions(),
    }
    return "\n".join(f"{name} {value}" for name, value in rows.items())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
