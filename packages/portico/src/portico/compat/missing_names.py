"""Messages for names of FastMCP and the SDK that `portico.compat` does not have."""

from __future__ import annotations

from portico._lazy import TYPE_CHECKING, load_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def explain_missing_names(package: str, get: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that says what to use instead of a known name of FastMCP or the SDK."""

    def get_or_explain(name: str) -> Any:
        try:
            return get(name)
        except AttributeError:
            # Only needed for the message; imports both compatibility packages.
            advice = load_module("portico.compat.port.mappings").explain_missing_name(name)
            if name.startswith("_") or advice is None:
                raise
        # `from package import name` would replace the message of an AttributeError.
        raise ImportError(f"cannot import name {name!r} from {package!r}: {advice}")

    return get_or_explain
