"""Access to the other Portico packages, if they are installed.

`portico` imports none of them. `portico_gateway`, `portico_services` and `portico_console` each have a module `plugin`
with the functions that `portico` calls.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from portico._lazy import load_module
from portico.protocol.errors import UsageError


@cache
def find_plugin(name: str) -> Any:
    """Return the module `portico_NAME.plugin`, or None if the package is not installed."""
    # No entry points: `portico serve` would read the metadata of all installed packages.
    return None if find_spec(f"portico_{name}") is None else load_module(f"portico_{name}.plugin")


def require_plugin(name: str, purpose: str) -> Any:
    """Return the module `portico_NAME.plugin`.

    Raises `UsageError` with the installation command if the package is not installed.
    """
    plugin = find_plugin(name)
    if plugin is None:
        raise UsageError(f"{purpose} needs portico-{name}, which is not installed: {install_command(name)}")
    return plugin


def install_command(name: str) -> str:
    """Return the command that installs `portico-NAME`: from the checkout that `portico` was installed from, if any."""
    package = _checkout_package(f"portico-{name}")
    # Only for error messages.
    from shlex import quote

    return f"pip install {quote(str(package))}" if package else f"pip install 'portico[{name}]'"


def _checkout_package(name: str) -> Path | None:
    """Return the folder of a package next to the one that `portico` was installed from, or None."""
    # Only for error messages.
    from importlib.metadata import PackageNotFoundError, distribution
    from json import loads
    from urllib.parse import unquote, urlsplit

    try:
        # PEP 610: pip records the folder or the archive that a package was installed from.
        url = loads(distribution("portico").read_text("direct_url.json") or "{}").get("url", "")
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    if not isinstance(url, str) or not url.startswith("file:///") or sys.platform == "win32":
        return None
    package = Path(unquote(urlsplit(url).path)).parent / name
    return package if (package / "pyproject.toml").is_file() else None
